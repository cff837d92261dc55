//! What waits to be sent, and the memory for it.

use std::time::Duration;

use super::*;
use crate::pipe::driver::tuning::RECEIVE_BUFFER;

impl Io {
    /// Bytes of room for frames.
    pub(in crate::pipe) fn buffer(&self) -> usize {
        self.received.len()
    }

    /// As if so much time had passed since much came.
    pub(in crate::pipe) fn ages(&mut self, by: Duration) {
        // A machine that has just started knows no time before that.
        let earlier = self.large_read_at.checked_sub(by);
        self.large_read_at = earlier.expect("this machine runs for longer");
    }
}

/// Bytes that tell their place.
fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

#[test]
fn beside_a_backlog_without_end_what_has_left_leaves_memory() {
    const LEN: usize = 1000;
    let (connection, _) = tokio::io::duplex(1);
    let mut io = Io::new(Box::new(connection), Vec::new(), Waker::noop().clone());
    let (mut written, mut sent, mut most) = (0, 0, 0);
    for _ in 0..5000 {
        let room = io.room().unwrap();
        room.out.extend((written..written + LEN).map(byte));
        written += LEN;
        io.push_message();
        // Never all of it.
        while written - sent > 3 * LEN {
            let taken = (written - sent - 7).min(1300);
            let left = &io.frames[io.frames_sent..];
            assert!((sent..written).map(byte).eq(left.iter().copied()));
            io.advance(taken);
            sent += taken;
        }
        most = most.max(io.frames.len());
    }
    assert!(most <= 4 * RECEIVE_BUFFER, "{most} bytes for 3000");
}
