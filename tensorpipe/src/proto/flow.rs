//! Credits. All counters are cumulative, so that a WINDOW frame can be lost in thought (coalesced) but never counted
//! twice. Invariant: the writer's `sent` never exceeds the reader's last announced limit.

use super::wire::frame::Control;
use super::wire::hello::WireLimits;
use crate::error::PeerFault;

/// Amounts of the three things that credit is given for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    /// MESSAGE frames.
    pub(crate) messages: u64,
    /// Bytes of their bodies.
    pub(crate) bytes: u64,
    /// Bytes of bulk parts sent without waiting for a go-ahead.
    pub(crate) ahead: u64,
}

impl Amount {
    pub(crate) fn window(limits: &WireLimits) -> Self {
        Self {
            messages: limits.window_messages,
            bytes: limits.window_bytes,
            ahead: limits.window_ahead,
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            messages: self.messages.saturating_add(other.messages),
            bytes: self.bytes.saturating_add(other.bytes),
            ahead: self.ahead.saturating_add(other.ahead),
        }
    }
}

/// The writer's side.
#[derive(Debug)]
pub(crate) struct SendWindow {
    sent: Amount,
    limit: Amount,
}

impl SendWindow {
    pub(crate) fn new(peer: &WireLimits) -> Self {
        Self {
            sent: Amount::default(),
            limit: Amount::window(peer),
        }
    }

    /// Takes credit for one message whose frame has a body of `bytes`; `false` if there is not enough.
    pub(crate) fn take(&mut self, bytes: u64) -> bool {
        let sent = Amount {
            messages: self.sent.messages + 1,
            bytes: self.sent.bytes + bytes,
            ..self.sent
        };
        let fits = sent.messages <= self.limit.messages && sent.bytes <= self.limit.bytes;
        if fits {
            self.sent = sent;
        }
        fits
    }

    /// Takes credit for bulk bytes ahead; `false` if there is not enough.
    pub(crate) fn take_ahead(&mut self, bytes: u64) -> bool {
        let fits = self.sent.ahead.saturating_add(bytes) <= self.limit.ahead;
        if fits {
            self.sent.ahead += bytes;
        }
        fits
    }

    /// The reader announced new limits. Limits never shrink: an older frame changes nothing.
    pub(crate) fn raise(&mut self, limit: Amount) {
        self.limit.messages = self.limit.messages.max(limit.messages);
        self.limit.bytes = self.limit.bytes.max(limit.bytes);
        self.limit.ahead = self.limit.ahead.max(limit.ahead);
    }
}

/// The reader's side.
#[derive(Debug)]
pub(crate) struct ReceiveWindow {
    window: Amount,
    received: Amount,
    finished: Amount,
    announced: Amount,
}

impl ReceiveWindow {
    pub(crate) fn new(ours: &WireLimits) -> Self {
        let window = Amount::window(ours);
        Self {
            window,
            received: Amount::default(),
            finished: Amount::default(),
            announced: window,
        }
    }

    /// Counts a message that came in.
    pub(crate) fn receive(&mut self, amount: Amount) -> Result<(), PeerFault> {
        self.received = self.received.plus(amount);
        let pairs = [
            ("messages", self.received.messages, self.announced.messages),
            ("message bytes", self.received.bytes, self.announced.bytes),
            ("bytes ahead", self.received.ahead, self.announced.ahead),
        ];
        match pairs
            .into_iter()
            .find(|(_, received, limit)| received > limit)
        {
            Some((what, _, limit)) => Err(PeerFault::CreditExceeded { what, limit }),
            None => Ok(()),
        }
    }

    /// Counts a message that the application is done with. Returns the WINDOW to send once half of a window is free.
    pub(crate) fn finish(&mut self, amount: Amount) -> Option<Control> {
        self.finished = self.finished.plus(amount);
        let limit = self.finished.plus(self.window);
        let due = |limit: u64, announced: u64, window: u64| {
            window > 0 && limit - announced >= window.div_ceil(2)
        };
        if due(
            limit.messages,
            self.announced.messages,
            self.window.messages,
        ) || due(limit.bytes, self.announced.bytes, self.window.bytes)
            || due(limit.ahead, self.announced.ahead, self.window.ahead)
        {
            self.announced = limit;
            return Some(Control::Window {
                messages: limit.messages,
                bytes: limit.bytes,
                ahead: limit.ahead,
            });
        }
        None
    }
}
