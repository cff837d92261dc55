//! A channel's own settings.

use super::*;

#[test]
fn silly_numbers_are_refused() {
    for wrong in [0, CONNECTIONS_MAX + 1, 255] {
        assert!(MptChannel::new().connections(wrong).is_err());
    }
    assert_eq!(
        MptChannel::new().connections(2).unwrap().chunks_sent(),
        [0, 0]
    );
}
