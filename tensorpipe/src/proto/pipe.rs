//! The state of one open pipe.
//!
//! Methods come in four families, in the files beside this one. Commands of the application:
//! [`write`](PipeState::write), [`grant`](PipeState::grant), [`refuse`](PipeState::refuse),
//! [`reset`](PipeState::reset), [`finish`](PipeState::finish), [`flush`](PipeState::flush),
//! [`close`](PipeState::close), [`go_away`](PipeState::go_away). Commands of channels: [`stream`](PipeState::stream),
//! [`expect`](PipeState::expect), [`part_sent`](PipeState::part_sent), [`part_received`](PipeState::part_received),
//! [`channel`](PipeState::channel). Input: `handle`, `bulk_received`, `handle_timeout`. Output, to be drained after any
//! of them: `poll_event`, then `poll_transmit`, which may itself give rise to events.
//!
//! Invariant: after [`Event::Cancel`] of a part there is no other event about it.

use std::collections::VecDeque;
use std::num::NonZeroU16;

use super::flow::{Ahead, AtOnce, ReceiveWindow, SendWindow};
use super::incoming::Incoming;
use super::input::Bulk;
use super::keep_alive::KeepAlive;
use super::outgoing::Outgoing;
use super::output::Outbox;
use super::wire::frame::{Body, CHANNEL_MAX, Control, OP_LEN, Reason};
use super::wire::hello::WireLimits;

/// One transfer under way: what a channel works on. A lane need only know at which end of it it is. The [`key`](OpId::key) names the
/// transfer to the peer's lane on a connection of the channel's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId {
    /// The message's number among those of its writer.
    pub(crate) message: u64,
    /// The part's number: payloads first, then tensors.
    pub(crate) part: u16,
    /// The number of the piece, from 1 on, if the part's lane has others carry pieces; 0 is the whole part.
    pub(crate) piece: u16,
    /// Whether this side is the writer.
    pub outgoing: bool,
}

impl OpId {
    /// Length of a [`key`](Self::key), in bytes.
    pub const KEY_LEN: usize = OP_LEN;

    /// Its name among the transfers of this direction, the same at both ends.
    pub fn key(self) -> [u8; OP_LEN] {
        let mut key = [0; OP_LEN];
        key[..8].copy_from_slice(&self.message.to_le_bytes());
        key[8..10].copy_from_slice(&self.part.to_le_bytes());
        key[10..].copy_from_slice(&self.piece.to_le_bytes());
        key
    }

    /// The transfer with this key: `outgoing` if this side is the writer. A peer may name a transfer that does not exist.
    pub fn from_key(key: [u8; OP_LEN], outgoing: bool) -> Self {
        let [message @ .., a, b, c, d] = key;
        Self {
            message: u64::from_le_bytes(message),
            part: u16::from_le_bytes([a, b]),
            piece: u16::from_le_bytes([c, d]),
            outgoing,
        }
    }

    /// Piece number `piece` of it, for a lane inside the one that has the whole part.
    pub const fn piece(self, piece: NonZeroU16) -> Self {
        Self {
            piece: piece.get(),
            ..self
        }
    }

    /// Which piece it is; `None` for all of it.
    pub const fn number(self) -> Option<NonZeroU16> {
        NonZeroU16::new(self.piece)
    }

    /// All of it.
    pub const fn whole(self) -> Self {
        Self { piece: 0, ..self }
    }

    /// The upper bound of its pieces, in the order of ids: other transfers come behind it.
    pub(crate) const fn last(self) -> Self {
        Self {
            piece: u16::MAX,
            ..self
        }
    }

    pub(crate) const fn incoming(message: u64, part: u16) -> Self {
        Self {
            message,
            part,
            piece: 0,
            outgoing: false,
        }
    }

    pub(crate) const fn outgoing(message: u64, part: u16) -> Self {
        Self {
            outgoing: true,
            ..Self::incoming(message, part)
        }
    }
}

impl Control {
    /// A frame of this side's channel about `op`.
    pub(crate) fn channel(op: OpId, body: &[u8]) -> Self {
        Self::Channel {
            op: op.key(),
            yours: !op.outgoing,
            body: Body::from_slice(body),
        }
    }
}

/// What happened, for the driver to act on.
#[derive(Debug)]
pub(crate) enum Event<S, D> {
    /// The go-ahead for a part is there: give it to its channel.
    Start { op: OpId, channel: u8, source: S },
    /// All bytes of a stream are with the transport.
    StreamSent { op: OpId },
    /// All bytes of a stream have come in.
    StreamReceived { op: OpId, dest: Option<D> },
    /// A part that a channel works on is abandoned.
    Cancel { op: OpId, channel: u8 },
    /// Every byte of a message is handed over.
    Written { message: u64 },
    /// The reader does not want the message, or no more of it. It may have been handed over long ago.
    Refused(Reason),
    /// The writer abandons a message, or what it asked for with it. Not reported for a message that was refused here.
    Reset(Reason),
    /// The peer's application has called read for every message up to this one.
    Flushed { message: u64 },
    /// The peer will not take messages from `next` on.
    GoAway { next: u64, text: String },
    /// The peer sends no more messages.
    Fin,
    /// The peer has everything that was sent.
    FinAck,
    /// The peer has given up credit for bytes ahead.
    Recalled,
    /// Bytes for a channel.
    Channel { op: OpId, channel: u8, body: Body },
}

/// See the module's documentation. `S` and `D` are the driver's handles on memory to send from and to receive into.
#[derive(Debug)]
pub(crate) struct PipeState<S, D> {
    pub(super) ours: WireLimits,
    pub(super) peer: WireLimits,
    /// Number of negotiated channels.
    pub(super) channels: usize,
    pub(super) at_once: AtOnce,
    pub(super) outgoing: Outgoing<S>,
    pub(super) incoming: Incoming<D>,
    pub(super) send_window: SendWindow,
    pub(super) receive_window: ReceiveWindow,
    pub(super) outbox: Outbox<S>,
    /// Bulk bytes that come next, before the front of another frame.
    pub(super) bulk: Option<Bulk>,
    pub(super) events: VecDeque<Event<S, D>>,
    pub(super) keep_alive: KeepAlive,
    pub(super) closing: Closing,
    /// Bytes of parts that have come for nothing.
    pub(super) dropped: u64,
}

/// How far the good order of closing has come.
#[derive(Debug, Default)]
pub(super) struct Closing {
    /// The application has said that it writes no more.
    pub(super) fin_requested: bool,
    pub(super) fin_sent: bool,
    pub(super) fin_acked: bool,
    pub(super) fin_received: bool,
    /// The peer's application has called read for everything up to this message.
    pub(super) peer_read: Option<u64>,
    /// First message number that the peer will not take.
    pub(super) peer_ignores_from: Option<u64>,
    /// First message number of the peer's that this side does not take.
    pub(super) ignore_from: Option<u64>,
}

impl<S: Clone, D> PipeState<S, D> {
    pub(crate) fn new(
        ours: WireLimits,
        peer: WireLimits,
        channels: usize,
        keep_alive: KeepAlive,
    ) -> Self {
        let peer = peer.capped(&ours);
        Self {
            ours,
            peer,
            channels,
            at_once: AtOnce::default(),
            outgoing: Outgoing::default(),
            incoming: Incoming::default(),
            send_window: SendWindow::new(&peer),
            receive_window: ReceiveWindow::new(&ours),
            outbox: Outbox::default(),
            bulk: None,
            events: VecDeque::new(),
            keep_alive,
            closing: Closing::default(),
            dropped: 0,
        }
    }

    /// Says which channels need no go-ahead. Before anything is sent or received.
    pub(crate) fn set_at_once(&mut self, at_once: AtOnce) {
        self.at_once = at_once;
    }

    /// Lets go of everything that is under way: the pipe has ended.
    pub(crate) fn abandon(&mut self) {
        // Numbers stay: `last_written` must not say that there was nothing.
        self.outgoing.clear();
        self.incoming.clear();
        self.outbox = Outbox::default();
        self.events.clear();
    }

    /// What this side takes.
    pub(crate) fn limits(&self) -> &WireLimits {
        &self.ours
    }

    /// What the peer takes.
    pub(crate) fn peer_limits(&self) -> &WireLimits {
        &self.peer
    }

    /// Asks the peer to say when its application has called read for everything up to `message`.
    pub(crate) fn flush(&mut self, message: u64) {
        // One answer serves all that ask about a message, and a peer may leave questions unanswered for long.
        if self.outbox.flush_asked.replace(message) != Some(message) {
            self.outbox.flush.push_back(message);
        }
    }

    /// No more messages will be written: FIN follows the last one.
    pub(crate) fn close(&mut self) {
        self.closing.fin_requested = true;
    }

    /// Whether it was said that no more will be written.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.fin_requested
    }

    /// Tells the peer that this side takes no messages from the next one on; those that come are refused.
    pub(crate) fn go_away(&mut self, text: &str) -> u64 {
        let next = *self.closing.ignore_from.get_or_insert(self.incoming.next);
        self.outbox.control(Control::GoAway {
            next,
            text: text.to_owned(),
        });
        next
    }

    /// First message number that the peer has said it will not take.
    pub(crate) fn peer_ignores_from(&self) -> Option<u64> {
        self.closing.peer_ignores_from
    }

    /// Everything sent is with the peer, and it has said so.
    pub(crate) fn is_fin_acked(&self) -> bool {
        self.closing.fin_acked
    }

    /// The peer sends no more messages.
    pub(crate) fn is_fin_received(&self) -> bool {
        self.closing.fin_received
    }

    /// Bytes of parts that have come for nothing: on the pipe's own connection, and nobody wanted them.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// What the peer may send ahead.
    pub(crate) fn ahead(&self) -> Ahead {
        self.receive_window.ahead()
    }

    /// Announces the free credit for bytes ahead, without waiting until it is much.
    pub(crate) fn announce_ahead(&mut self) {
        self.outbox.extend(self.receive_window.announce_ahead());
    }

    /// Raises what the peer may have under way ahead to `bytes`, if that is more.
    pub(crate) fn widen_ahead(&mut self, bytes: u64) {
        self.outbox.extend(self.receive_window.widen(bytes));
    }

    /// Lowers what the peer may have under way ahead to `bytes`: [`Event::Recalled`] tells when the peer has agreed. `false`: it is no more
    /// already, or the peer has not answered an earlier request.
    pub(crate) fn narrow_ahead(&mut self, bytes: u64) -> bool {
        let recall = self.receive_window.narrow(bytes);
        let asks = recall.is_some();
        self.outbox.extend(recall);
        asks
    }

    /// Sends bytes of a channel about one of its operations: at most [`CHANNEL_MAX`].
    pub(crate) fn channel(&mut self, op: OpId, body: &[u8]) {
        debug_assert!(body.len() <= CHANNEL_MAX);
        if !op.outgoing {
            self.answered(op);
        }
        self.outbox.control(Control::channel(op, body));
    }

    pub(crate) fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    pub(crate) fn poll_event(&mut self) -> Option<Event<S, D>> {
        self.events.pop_front()
    }
}
