//! What holds for a pipe between any two calls, whatever its peer has sent: for tests and the fuzz targets.

use super::pipe::PipeState;

impl<S: Clone, D> PipeState<S, D> {
    /// Panics where a peer has made this side hold more than it has allowed.
    pub(crate) fn assert_invariants(&self) {
        let incoming = &self.incoming;
        let held = incoming.messages.len();
        assert!(held as u64 <= self.ours.window_messages, "{held} messages");
        assert!(incoming.questions() <= held, "{}", incoming.questions());
        let (outstanding, ours) = (self.receive_window.outstanding(), &self.ours);
        assert!(
            outstanding.messages <= ours.window_messages
                && outstanding.bytes <= ours.window_bytes
                && outstanding.ahead <= self.receive_window.ahead().promised,
            "{outstanding:?}"
        );
        assert_eq!(outstanding.messages, held as u64);
        for (number, message) in incoming.messages.iter() {
            assert!(number < incoming.next, "{number}");
            for part in &message.parts {
                assert!(part.got <= part.len, "{} of {}", part.got, part.len);
            }
        }
    }
}
