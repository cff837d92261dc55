//! Control messages: a header and a few bytes that say something about a call, or that an answer found no room. They are not answered.
//!
//! None is lost while the pipe lives. When its queue is full they wait here until the queue moves.

use std::collections::VecDeque;
use std::sync::Weak;
use std::time::Duration;

use tensorpipe::engine::{EnginePipe, Outbound, When};
use tensorpipe::{Error, Misuse};

use super::Engine;
use crate::caught::ignore_panic;
use crate::codec::{Encoded, REPLY_HEADER};
use crate::header::{Header, Kind};
use crate::lock::lock;
use crate::observe::should_log;
use crate::scratch;

/// The most control messages that may wait.
const MOST: usize = 1 << 20;

/// With so many messages in the pipe's queue, deferred control messages go on waiting, so that others have room.
const AT_ONCE: usize = 1024;

/// How long until deferred messages are tried again, at most.
const RETRY: Duration = Duration::from_millis(20);

/// The body of the longest control message, which is credit: two numbers.
const BODY: usize = 16;

/// The longest control message.
const LONGEST: usize = REPLY_HEADER + BODY;

/// What is sent later.
#[derive(Default)]
pub(super) struct Deferred {
    /// Control messages for which the pipe had no room.
    messages: VecDeque<Control>,
    /// A task waits for the pipe to move.
    waiting: bool,
}

#[cfg(test)]
impl Deferred {
    pub(super) fn messages(&self) -> usize {
        self.messages.len()
    }
}

#[derive(Clone, Copy)]
struct Control {
    bytes: [u8; LONGEST],
    len: usize,
}

impl Control {
    fn new(kind: Kind, call: u64, body: &[u8]) -> Self {
        let header = Header::plain(kind, call).to_vec();
        let mut bytes = [0; LONGEST];
        let all = header.iter().chain(body);
        let len = bytes.iter_mut().zip(all).map(|(to, from)| *to = *from);
        let len = len.count();
        scratch::keep(header);
        Self { bytes, len }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Engine {
    /// Says something about a call, with at most 16 bytes.
    pub(crate) fn send_control(&self, kind: Kind, call: u64, body: &[u8]) {
        let control = Control::new(kind, call, body);
        if !self.send_control_now(control.bytes(), When::Now) {
            self.defer_control(control);
        }
    }

    /// Whether the peer can grant this end credit to send items. If not, the limit that is in the way.
    pub(super) fn check_credit(&self) -> Result<(), Misuse> {
        let ours = self.pipe.own_limits();
        let fits_beside = ours.parts > 0 && ours.payload >= BODY as u64;
        if ours.metadata as usize >= LONGEST || fits_beside {
            return Ok(());
        }
        Err(Misuse::Other(format!(
            "this end's `Limits::metadata` has no room for credit to send a stream's items; raise it to {LONGEST}"
        )))
    }

    /// Sends a control message. Returns `false` if the pipe has no room for it.
    pub(super) fn send_control_now(&self, bytes: &[u8], when: When) -> bool {
        let sent = match self.pipe.peer_limits().metadata as usize >= bytes.len() {
            true => {
                let mut outbound = Outbound::new(bytes);
                self.pipe.submit(&mut outbound, when, |_| ()).map(drop)
            }
            false => {
                let encoded = Encoded {
                    metadata: bytes.to_vec(),
                    ..Encoded::default()
                };
                self.send(encoded, REPLY_HEADER, |_| (), |_, _| ())
                    .map(drop)
            }
        };
        match sent {
            Ok(()) => true,
            Err(Error::Misuse(Misuse::TooManyWrites(_))) => false,
            Err(error) => {
                ignore_panic(|| {
                    tracing::debug!(pipe = self.pipe.name(), %error, "nobody is left to hear of a call");
                });
                true
            }
        }
    }

    fn defer_control(&self, control: Control) {
        let is_deferred = {
            let mut later = lock(&self.later);
            let has_room = later.messages.len() < MOST;
            if has_room {
                later.messages.push_back(control);
            }
            has_room
        };
        if is_deferred {
            self.send_later();
        } else if should_log(("lost", "control message", "")) {
            let pipe = self.pipe.name();
            ignore_panic(|| tracing::warn!(pipe, "too many control messages wait to be written"));
        }
    }

    /// Has a task send what waits, once the pipe has room.
    pub(super) fn send_later(&self) {
        let waiting = std::mem::replace(&mut lock(&self.later).waiting, true);
        if !waiting {
            self.pipe.runtime().spawn(send_late(self.me.clone()));
        }
    }

    /// Sends what waits, as far as there is room. Returns whether something is left.
    fn send_waiting(&self) -> bool {
        let most = AT_ONCE.min(self.pipe.queued_writes().div_ceil(2));
        loop {
            let control = {
                let mut later = lock(&self.later);
                let control = later.messages.pop_front();
                if control.is_none() && !self.releases.has_some() {
                    later.waiting = false;
                    return false;
                }
                control
            };
            let Some(control) = control else {
                match self.send_collected(When::Now) {
                    true => continue,
                    false => return true,
                }
            };
            if self.pipe.unwritten() >= most || !self.send_control_now(control.bytes(), When::Now) {
                lock(&self.later).messages.push_front(control);
                return true;
            }
        }
    }
}

/// Sends deferred messages. Holds the engine for moments only, so that they do not keep a connection open.
async fn send_late(engine: Weak<Engine>) {
    loop {
        let Some(flush) = engine.upgrade().map(|engine| engine.pipe.flush()) else {
            return;
        };
        // If a slow reader holds the flush up, the queue may still have got room.
        let flushed = tokio::time::timeout(RETRY, flush).await;
        if !engine.upgrade().is_some_and(|engine| engine.send_waiting()) {
            return;
        }
        if flushed.is_ok() {
            // The next flush may end at once, and nothing moves while this task does not wait. A peer that has read the messages in the
            // queue need not have their tensors, and one that is going away fails each flush.
            tokio::time::sleep(RETRY).await;
        }
    }
}
