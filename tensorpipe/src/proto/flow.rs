//! Credits. All counters are cumulative, so that WINDOW frames can be coalesced, and none counts twice. Invariant: the writer's `sent`
//! never exceeds what the reader has `announced`.
//!
//! The window of bytes ahead changes. It grows with a WINDOW frame. To make it smaller the reader asks (RECALL), and goes on
//! honouring what it has announced until the writer has answered (RECALLED).

use super::wire::descriptor::{Carriage, Head};
use super::wire::frame::{Control, Kind};
use super::wire::hello::{Amount, WireLimits};
use crate::error::PeerFault;

/// Channels whose parts neither wait for a go-ahead nor take credit, since they take no memory of the reader's. Both ends agree on which
/// these are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AtOnce(u32);

impl AtOnce {
    /// For the negotiated channels in their order, at most 32.
    pub(crate) fn new(channels: impl IntoIterator<Item = bool>) -> Self {
        let bits = channels.into_iter().take(32).enumerate();
        Self(bits.fold(0, |set, (i, at_once)| set | u32::from(at_once) << i))
    }

    pub(super) fn contains(self, channel: u8) -> bool {
        self.0.checked_shr(u32::from(channel)).unwrap_or(0) & 1 == 1
    }

    /// Fails if a part on one of them says that it waits.
    pub(super) fn check(self, head: &Head) -> Result<(), PeerFault> {
        let waits = |carriage: &Carriage| match carriage {
            Carriage::Bulk { channel, ahead } => !ahead && self.contains(*channel),
            Carriage::Eager => false,
        };
        if head.carriages().iter().any(waits) {
            let what = "a part that waits on a channel that needs no go-ahead";
            return Err(Kind::Message.malformed(what));
        }
        Ok(())
    }
}

/// Credit that a part ahead takes beside its bytes: however small it is, it costs its reader memory.
pub(crate) const AHEAD_PART: u64 = 256;

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
            limit: peer.window(),
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
        let ahead = self.sent.ahead.saturating_add(bytes);
        let fits = ahead <= self.limit.ahead;
        if fits {
            self.sent.ahead = ahead;
        }
        fits
    }

    /// The reader asks for a lower limit of bytes ahead. Returns the limit from now on: not less than what is sent.
    pub(crate) fn recall(&mut self, ahead: u64) -> u64 {
        self.limit.ahead = self.limit.ahead.min(ahead.max(self.sent.ahead));
        self.limit.ahead
    }

    /// The reader announced new limits. Limits never shrink this way: an older frame changes nothing.
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
    /// How much of each must have become free before it is worth a frame.
    due: Amount,
    recall: Option<Recall>,
}

/// Bulk bytes ahead, as their reader counts them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    /// May be under way.
    pub(crate) window: u64,
    /// Have come, in all.
    pub(crate) received: u64,
    /// Of these, of messages that are not finished.
    pub(crate) unfinished: u64,
    /// Have come and are not finished, or may still come.
    pub(crate) promised: u64,
}

/// The writer has been asked for a lower limit of bytes ahead, and has not answered.
#[derive(Clone, Copy, Debug)]
struct Recall {
    asked: u64,
    /// The last limit that was announced since.
    announced: u64,
}

impl ReceiveWindow {
    pub(crate) fn new(ours: &WireLimits) -> Self {
        let window = ours.window();
        // A freed amount that is kept back for later must never be what the largest message lacks.
        let spare = (window.bytes.saturating_sub(u64::from(ours.frame_max()))).saturating_add(1);
        let due = Amount {
            messages: window.messages.div_ceil(2),
            bytes: window.bytes.div_ceil(2).min(spare),
            ahead: due_ahead(window.ahead),
        };
        Self {
            due,
            recall: None,
            window,
            received: Amount::default(),
            finished: Amount::default(),
            announced: window,
        }
    }

    /// The counts of bytes ahead.
    pub(super) fn ahead(&self) -> Ahead {
        Ahead {
            window: self.window.ahead,
            received: self.received.ahead,
            unfinished: self.received.ahead - self.finished.ahead,
            promised: self.announced.ahead - self.finished.ahead,
        }
    }

    /// Lets more bulk bytes be under way ahead.
    pub(crate) fn widen(&mut self, ahead: u64) -> Option<Control> {
        if ahead <= self.window.ahead {
            return None;
        }
        self.window.ahead = ahead;
        self.due.ahead = due_ahead(ahead);
        Some(self.announce())
    }

    /// Lets fewer bulk bytes be under way ahead, once the writer has answered.
    pub(crate) fn narrow(&mut self, ahead: u64) -> Option<Control> {
        if self.recall.is_some() || ahead >= self.window.ahead {
            return None;
        }
        self.window.ahead = ahead;
        self.due.ahead = due_ahead(ahead);
        // Bytes that became free since the last announcement were not announced.
        let asked = self.finished.ahead.saturating_add(ahead);
        let asked = asked.min(self.announced.ahead);
        self.recall = Some(Recall {
            asked,
            announced: asked,
        });
        Some(Control::Recall(asked))
    }

    /// Announces bytes ahead that are free, if there are any.
    pub(crate) fn announce_ahead(&mut self) -> Option<Control> {
        let limit = self.finished.plus(self.window);
        (limit.ahead > self.announced.ahead).then(|| self.announce())
    }

    /// The writer has answered that its limit is `ahead`. Returns the WINDOW with what has become free meanwhile.
    pub(crate) fn recalled(&mut self, ahead: u64) -> Result<Option<Control>, PeerFault> {
        let Some(Recall { asked, announced }) = self.recall.take() else {
            return Err(Kind::Recalled.unexpected("in answer to no RECALL"));
        };
        if ahead != asked.max(self.received.ahead) {
            let when = "with a limit that is neither what was asked for nor what was sent";
            return Err(Kind::Recalled.unexpected(when));
        }
        self.announced.ahead = ahead.max(announced);
        Ok(self.announce_ahead())
    }

    /// Announces all that is free. While a RECALL is not answered, what was announced before it holds as well.
    fn announce(&mut self) -> Control {
        let limit = self.finished.plus(self.window);
        if let Some(recall) = &mut self.recall {
            recall.announced = recall.announced.max(limit.ahead);
        }
        let ahead = limit.ahead.max(self.announced.ahead);
        self.announced = Amount { ahead, ..limit };
        Control::Window(limit)
    }

    /// What came in and is not finished.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn outstanding(&self) -> Amount {
        Amount {
            messages: self.received.messages - self.finished.messages,
            bytes: self.received.bytes - self.finished.bytes,
            ahead: self.received.ahead - self.finished.ahead,
        }
    }

    /// Counts a message that came in.
    pub(crate) fn receive(&mut self, amount: Amount) -> Result<(), PeerFault> {
        let received = self.received.plus(amount);
        self.received = received;
        let limit = self.announced;
        let exceeded = |what, limit| Err(PeerFault::CreditExceeded { what, limit });
        if received.messages > limit.messages {
            return exceeded("messages", limit.messages);
        }
        if received.bytes > limit.bytes {
            return exceeded("message bytes", limit.bytes);
        }
        if received.ahead > limit.ahead {
            return exceeded("bytes ahead", limit.ahead);
        }
        Ok(())
    }

    /// Counts a message that the application is done with. Returns the WINDOW to send once half of a window is free, or
    /// as much as may be missing for the largest message.
    pub(crate) fn finish(&mut self, amount: Amount) -> Option<Control> {
        self.finished = self.finished.plus(amount);
        let limit = self.finished.plus(self.window);
        let is_due = limit.messages - self.announced.messages >= self.due.messages
            || limit.bytes - self.announced.bytes >= self.due.bytes
            || limit.ahead.saturating_sub(self.announced.ahead) >= self.due.ahead;
        is_due.then(|| self.announce())
    }
}

fn due_ahead(window: u64) -> u64 {
    window.div_ceil(2).max(1)
}
