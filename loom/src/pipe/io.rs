//! The model's connection: messages are numbers, and the peer wakes whoever asks for it.

use crate::sync::{Arc, AtomicBool, AtomicU32, Ordering, fence};

/// What the peer sees.
pub(super) struct Line {
    /// It can be hot; else it asks to be woken all the time.
    able: bool,
    /// Messages so far.
    arrived: AtomicU32,
    /// This side asks to be woken.
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
        // Relaxed: that a round sees it is up to what hands over.
        self.arrived.fetch_add(1, Ordering::Relaxed);
        if !self.able {
            return true;
        }
        fence(Ordering::SeqCst);
        self.asks.load(Ordering::Relaxed) && self.asks.swap(false, Ordering::Relaxed)
    }

    /// As the ring's ends.
    fn ask(&self, asks: bool) {
        self.asks.swap(asks, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

/// What whoever drives has to itself.
pub(super) struct Io {
    line: Arc<Line>,
    read: u32,
    hot: bool,
    /// Something to be sent was left to the background task, which was told.
    pub(super) owes_send: bool,
}

impl Io {
    pub(super) fn new(line: Arc<Line>) -> Self {
        Self {
            line,
            read: 0,
            hot: false,
            owes_send: false,
        }
    }

    pub(super) fn look(&self, _: bool) -> bool {
        self.owes_send || self.has_come()
    }

    fn has_come(&self) -> bool {
        self.read < self.line.arrived.load(Ordering::Relaxed)
    }

    /// While hot it does not ask to be woken.
    pub(super) fn set_hot(&mut self, hot: bool) {
        if hot && !self.hot {
            self.line.ask(false);
        }
        self.hot = hot;
    }

    /// The next message. If there is none it asks to be woken.
    pub(super) fn next(&mut self) -> Option<u32> {
        if !self.has_come() {
            if self.hot || !self.line.able {
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
