//! An open pipe whose peer says anything, driven as in the stories of the protocol, by an application that does anything.

use std::time::{Duration, Instant};

use super::{OURS, THEIRS};
use crate::error::{PeerFault, ResetCode};
use crate::proto::sim::{End, Link, message};

const SILENCE: Duration = Duration::from_secs(10);

/// The first byte is the length of the pieces in which the peer's bytes come. The second is the length of the application's script,
/// which follows, one byte a command. The peer's bytes are the rest. When the script is at its end, the application reads and sends
/// whatever there is.
pub fn frames(data: &[u8]) {
    let Some(([piece, script], rest)) = data.split_first_chunk::<2>() else {
        return;
    };
    let (script, bytes) = rest.split_at(usize::from(*script).min(rest.len()));
    let mut scene = Scene::new(script);
    let piece = match *piece {
        0 => bytes.len().max(1),
        piece => usize::from(piece),
    };
    // A fault ends the pipe.
    if bytes
        .chunks(piece)
        .try_for_each(|piece| scene.take_in(piece))
        .is_ok()
    {
        scene.transmit(usize::MAX);
    }
    let pipe = &mut scene.end.pipe;
    pipe.abandon();
    assert!(pipe.poll_event().is_none());
    assert!(!pipe.has_control());
}

/// Three messages of ours are the first: an eager one, and two that wait for the peer's go-ahead.
pub(super) fn begin(end: &mut End) {
    end.write(&message("eager").payload(10));
    end.write(&message("one").payload(3000).payload(0));
    let two = message("two").payload(5).tensor_on(1, 2000).tensor(100);
    end.write(&two);
}

pub(super) struct Scene<'a> {
    end: End,
    now: Instant,
    script: std::slice::Iter<'a, u8>,
}

impl<'a> Scene<'a> {
    pub(super) fn new(script: &'a [u8]) -> Self {
        let now = Instant::now();
        let mut scene = Self {
            end: End::open(OURS, THEIRS, Some(SILENCE), now),
            now,
            script: script.iter(),
        };
        scene.end.lazy = true;
        begin(&mut scene.end);
        scene.transmit(usize::MAX);
        scene
    }

    /// Everything in `bytes` is taken in, and the application acts meanwhile.
    pub(super) fn take_in(&mut self, bytes: &[u8]) -> Result<(), PeerFault> {
        self.end.input.extend_from_slice(bytes);
        loop {
            let more = self.end.take_in(self.now)?;
            self.act();
            // Of the simulation's own: a script that writes much would make it long.
            self.end.record.clear();
            self.end.frames.clear();
            if !more {
                return Ok(());
            }
        }
    }

    /// One command of the application's.
    fn act(&mut self) {
        let Some(command) = self.script.next() else {
            self.read(&[]);
            return self.transmit(2000);
        };
        let number = usize::from(command >> 4);
        let end = &mut self.end;
        match command & 15 {
            0 => self.read(&[]),
            1 => self.read(&[0]),
            2 => {
                if let Some(message) = end.ready.first() {
                    end.refuse(*message, ResetCode::Refused);
                }
            }
            3 => {
                if let Some(message) = end.under_way().first() {
                    end.refuse(*message, ResetCode::Cancelled);
                }
            }
            4 => {
                if let Some(message) = end.under_way().last() {
                    end.forget(*message);
                }
            }
            // What waits is this side's own memory, here four times over: less than a peer may cost.
            5 if end.pipe.unwritten() < 8 && !end.pipe.is_closing() => {
                end.write(&message("").payload(number * 300));
            }
            6 => end.reset(number as u64),
            7 => {
                if let Some(last) = end.pipe.last_written() {
                    end.pipe.flush(last);
                }
            }
            8 => end.pipe.close(),
            9 => _ = end.pipe.go_away("bye"),
            10 => self.transmit((number + 1) * 200),
            11 => {
                self.now += SILENCE / 2;
                // A silent peer is given up; here it goes on.
                let _ = end.pipe.handle_timeout(self.now);
            }
            // Bytes go on coming.
            _ => {}
        }
        self.end.events();
    }

    fn read(&mut self, skip: &[u16]) {
        if let Some(message) = self.end.ready.first() {
            self.end.read_but(*message, skip);
        }
    }

    /// So many bytes leave, if there are as many.
    fn transmit(&mut self, bytes: usize) {
        let mut link = Link::taking(bytes);
        self.end.transmit(&mut link, self.now);
    }
}
