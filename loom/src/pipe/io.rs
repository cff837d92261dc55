//! The model's connection: messages are numbers, and the peer wakes this side if it asks for that.

use super::core::Core;
use super::driver::Readiness;
use crate::sync::{Arc, AtomicBool, AtomicU32, Ordering, fence, lock};

/// The state that both ends share.
pub(super) struct Line {
    /// Whether the connection can be busy-polled. If not, this side always asks to be woken.
    able: bool,
    /// Number of messages that have arrived.
    arrived: AtomicU32,
    /// Whether this side asks to be woken.
    asks: AtomicBool,
}

impl Line {
    pub(super) fn new(able: bool) -> Self {
        Self {
            able,
            arrived: AtomicU32::new(0),
            asks: AtomicBool::new(false),
        }
    }

    /// The peer sends a message. Returns whether it wakes this side.
    pub(super) fn arrive(&self) -> bool {
        // Relaxed, because the hand-over under test must make this visible to a round.
        self.arrived.fetch_add(1, Ordering::Relaxed);
        if !self.able {
            return true;
        }
        fence(Ordering::SeqCst);
        self.asks.load(Ordering::Relaxed) && self.asks.swap(false, Ordering::Relaxed)
    }

    /// Asks to be woken, with the same steps as an end of the ring.
    fn ask(&self, asks: bool) {
        self.asks.swap(asks, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

/// Sends that were left to the background task.
#[derive(Default)]
pub(super) struct Sends {
    /// Whether a send was left to the background task, which was woken for it.
    owed: bool,
}

impl Sends {
    pub(super) fn is_due(&self, _: bool) -> bool {
        false
    }

    pub(super) fn is_worth_write(&self, _: u64) -> bool {
        false
    }

    pub(super) fn owe(&mut self) -> bool {
        !std::mem::replace(&mut self.owed, true)
    }
}

/// State of the one thread that drives.
pub(super) struct Io {
    line: Arc<Line>,
    read: u32,
    polled: bool,
    pub(super) sends: Sends,
    /// Bytes to send, and the number of their messages.
    frames: Vec<u8>,
    messages: u32,
    /// The message that has left in part.
    in_part: Option<u64>,
    /// How many bytes the connection takes in one write.
    takes: usize,
}

impl Io {
    pub(super) fn new(line: Arc<Line>, takes: usize) -> Self {
        Self {
            line,
            read: 0,
            polled: false,
            sends: Sends::default(),
            frames: Vec::new(),
            messages: 0,
            in_part: None,
            takes,
        }
    }

    pub(super) fn poll(&self, sends: bool) -> Readiness {
        if (sends && self.sends.owed) || self.has_come() {
            Readiness::Ready
        } else {
            Readiness::NotReady
        }
    }

    pub(super) fn is_all_written(&self) -> bool {
        self.frames.is_empty() && self.in_part.is_none()
    }

    pub(super) fn push(&mut self, message: &[u8]) {
        self.frames.extend_from_slice(message);
        self.messages += 1;
    }

    pub(super) fn push_mark(&mut self, message: u64) {
        self.in_part = Some(message);
    }

    pub(super) fn send_gathered(&mut self, core: &Core) -> bool {
        self.write(core);
        self.is_all_written()
    }

    /// One write.
    fn write(&mut self, core: &Core) {
        self.sends.owed = false;
        self.frames.drain(..self.takes.min(self.frames.len()));
        if self.frames.is_empty() {
            core.count_sent(std::mem::take(&mut self.messages));
        }
    }

    /// Sends everything, as a round does, and reports a message whose rest has left.
    pub(super) fn send(&mut self, core: &Core) {
        self.sends.owed = false;
        while !self.frames.is_empty() {
            self.write(core);
        }
        if let Some(message) = self.in_part.take() {
            lock(&core.shared).written(message);
        }
    }

    fn has_come(&self) -> bool {
        self.read < self.line.arrived.load(Ordering::Relaxed)
    }

    /// Switches busy-polling. While it is on, the connection does not ask to be woken.
    pub(super) fn set_polled(&mut self, polled: bool) {
        if polled && !self.polled {
            self.line.ask(false);
        }
        self.polled = polled;
    }

    /// Returns the next message. If there is none, the connection asks to be woken.
    pub(super) fn next(&mut self) -> Option<u32> {
        if !self.has_come() {
            if self.polled || !self.line.able {
                return None;
            }
            self.line.ask(true);
            if !self.has_come() {
                return None;
            }
            self.line.ask(false);
        }
        self.read += 1;
        Some(self.read - 1)
    }
}
