//! Frames and fields of a later version are skipped.

use crate::proto::sim::frames::{control, frame};
use crate::proto::sim::{Pair, message};
use crate::proto::wire::frame::{Control, OPTIONAL};

#[test]
fn an_optional_frame_of_an_unknown_kind_is_skipped() {
    for split in [1, 5, usize::MAX] {
        for len in [0, 1, 1000, 16 << 10] {
            let mut pair = Pair::new();
            pair.b.split = split;
            pair.tell(&frame(200, OPTIONAL, &vec![0x55; len]));
            pair.a.write(&message("after").tensor(2000));
            pair.settle();
            assert_eq!(pair.b.delivered.len(), 1);
        }
    }
}

#[test]
fn fields_at_the_end_of_a_known_frame_are_skipped() {
    let mut pair = Pair::new();
    let mut frame = control([Control::Ping { nonce: 3 }]);
    frame[0] += 5;
    frame.extend_from_slice(b"later");
    pair.tell(&frame);
    pair.settle();
    assert_eq!(pair.b.frames.len(), 1);
}
