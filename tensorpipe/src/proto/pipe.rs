//! The state of one open pipe.
//!
//! Methods come in four families. Commands of the application: [`write`](PipeState::write), [`grant`](PipeState::grant),
//! [`refuse`](PipeState::refuse), [`reset`](PipeState::reset), [`finish`](PipeState::finish), [`flush`](PipeState::flush),
//! [`close`](PipeState::close), [`go_away`](PipeState::go_away). Commands of channels: [`stream`](PipeState::stream),
//! [`expect`](PipeState::expect), [`part_sent`](PipeState::part_sent), [`part_received`](PipeState::part_received),
//! [`channel`](PipeState::channel). Input: `handle`, `bulk_received`, `handle_timeout`. Output, to be drained after any of
//! them: `poll_event`, then `poll_transmit`.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::flow::{ReceiveWindow, SendWindow};
use super::input::Parser;
use super::output::{Outbox, Stream};
use super::read::{Disposition, Incoming};
use super::wire::descriptor::Carriage;
use super::wire::frame::Control;
use super::wire::hello::WireLimits;
use super::write::{self, Outgoing, OutgoingPart, Stage};
use crate::descriptor::Descriptor;
use crate::error::{Misuse, PeerFault, ResetCode};

/// One part of one message on its way: what a channel works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId {
    /// The message's number among those of its writer.
    pub message: u64,
    /// The part's number: payloads first, then tensors.
    pub part: u16,
    /// Whether this side is the writer.
    pub outgoing: bool,
}

/// What happened, for the driver to act on.
#[derive(Debug)]
pub(crate) enum Event<S, D> {
    /// A message can be offered to the application: its descriptor and eager parts are there.
    Ready { message: u64 },
    /// Bulk parts of this message come without a go-ahead: give them memory.
    Ahead { message: u64 },
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
    /// The reader does not want the message. `started` tells whether it was still under way.
    Refused {
        message: u64,
        code: ResetCode,
        text: String,
    },
    /// The writer abandons a message, or what it asked for with it.
    Reset {
        message: u64,
        code: ResetCode,
        text: String,
    },
    /// The peer's application has called read for every message up to this one.
    Flushed { message: u64 },
    /// The peer will not look at messages from `next` on.
    GoAway { next: u64, text: String },
    /// The peer sends no more messages.
    Fin,
    /// The peer has everything that was sent.
    FinAck,
    /// Bytes for a channel.
    Channel {
        op: OpId,
        channel: u8,
        body: Vec<u8>,
    },
}

/// When a silent peer is asked, and when it is given up.
#[derive(Debug)]
pub(crate) struct KeepAlive {
    silence: Option<Duration>,
    last_heard: Instant,
    asked: Option<Instant>,
    nonce: u64,
}

impl KeepAlive {
    pub(crate) fn new(silence: Option<Duration>, now: Instant) -> Self {
        Self {
            silence,
            last_heard: now,
            asked: None,
            nonce: 0,
        }
    }
}

/// See the module's documentation. `S` and `D` are the driver's handles on memory to send from and to receive into.
#[derive(Debug)]
pub(crate) struct PipeState<S, D> {
    pub(super) ours: WireLimits,
    pub(super) peer: WireLimits,
    /// Number of negotiated channels.
    pub(super) channels: usize,
    pub(super) outgoing: Outgoing<S>,
    pub(super) incoming: Incoming<D>,
    pub(super) send_window: SendWindow,
    pub(super) receive_window: ReceiveWindow,
    pub(super) outbox: Outbox<S>,
    pub(super) parser: Parser,
    pub(super) events: VecDeque<Event<S, D>>,
    pub(super) keep_alive: KeepAlive,
    pub(super) closing: Closing,
}

/// How far the good order of closing has come.
#[derive(Debug, Default)]
pub(super) struct Closing {
    /// The application has said that it writes no more.
    pub(super) asked: bool,
    pub(super) fin_sent: bool,
    pub(super) fin_acked: bool,
    pub(super) fin_received: bool,
    /// First message number that the peer will not look at.
    pub(super) peer_ignores_from: Option<u64>,
    /// First message number of the peer's that this side does not look at.
    pub(super) ignore_from: Option<u64>,
}

impl<S: Clone, D> PipeState<S, D> {
    pub(crate) fn new(
        ours: WireLimits,
        peer: WireLimits,
        channels: usize,
        keep_alive: KeepAlive,
    ) -> Self {
        Self {
            ours,
            peer,
            channels,
            outgoing: Outgoing::default(),
            incoming: Incoming::default(),
            send_window: SendWindow::new(&peer),
            receive_window: ReceiveWindow::new(&ours),
            outbox: Outbox::default(),
            parser: Parser::default(),
            events: VecDeque::new(),
            keep_alive,
            closing: Closing::default(),
        }
    }

    // Commands of the application.

    /// Queues a message. Returns its number.
    pub(crate) fn write(
        &mut self,
        descriptor: Descriptor,
        parts: Vec<OutgoingPart<S>>,
    ) -> Result<u64, Misuse> {
        write::check(&descriptor, &self.peer)?;
        Ok(self.outgoing.push(descriptor, parts, &self.peer))
    }

    /// Messages written and not yet handed over.
    pub(crate) fn unwritten(&self) -> usize {
        self.outgoing.len()
    }

    /// Whether a written message is not yet handed over.
    pub(crate) fn is_writing(&self, message: u64) -> bool {
        self.outgoing.contains(message)
    }

    /// The number of the last message written, if there is one.
    pub(crate) fn last_written(&self) -> Option<u64> {
        self.outgoing.next_number().checked_sub(1)
    }

    /// Abandons a message, wherever it is: what has not left does not leave. A message that is already with the peer is
    /// named to it, so that it can abandon what the message asked for.
    pub(crate) fn reset(&mut self, message: u64, code: ResetCode, text: &str) {
        if message >= self.outgoing.next_sent {
            if let Some(queued) = self.outgoing.message(message) {
                queued.stage = Stage::Hole(code, text.to_owned());
                queued.parts.clear();
            }
            return;
        }
        self.drop_outgoing(message);
        self.outbox.control(Control::Reset {
            message,
            code,
            text: text.to_owned(),
        });
    }

    /// The descriptor of a message that is ready; `None` the second time.
    pub(crate) fn take_descriptor(&mut self, message: u64) -> Option<Descriptor> {
        self.incoming.messages.get_mut(&message)?.descriptor.take()
    }

    /// How a part of an incoming message travels: `None` in the frame, else the channel's number and whether it comes
    /// without a go-ahead.
    pub(crate) fn bulk_channel(&self, message: u64, part: u16) -> Option<(u8, bool)> {
        match self
            .incoming
            .messages
            .get(&message)?
            .parts
            .get(usize::from(part))?
            .carriage
        {
            Carriage::Eager => None,
            Carriage::Bulk { channel, ahead } => Some((channel, ahead)),
        }
    }

    /// The channel that carries a part of a message of this side's.
    pub(crate) fn outgoing_channel(&mut self, op: OpId) -> Option<u8> {
        match self
            .outgoing
            .message(op.message)?
            .parts
            .get(usize::from(op.part))?
            .carriage
        {
            Carriage::Eager => None,
            Carriage::Bulk { channel, .. } => Some(channel),
        }
    }

    /// Length of a part of an incoming message, in bytes.
    pub(crate) fn part_len(&self, op: OpId) -> Option<u64> {
        let message = self.incoming.messages.get(&op.message)?;
        message.parts.get(usize::from(op.part)).map(|part| part.len)
    }

    /// Bytes of an incoming message's bulk parts that are not here yet.
    pub(crate) fn bytes_to_come(&self, message: u64) -> u64 {
        let parts = self
            .incoming
            .messages
            .get(&message)
            .map(|message| message.parts.as_slice())
            .unwrap_or_default();
        parts
            .iter()
            .filter(|part| !part.done)
            .map(|part| part.len - part.got)
            .sum()
    }

    /// Lets go of everything that is under way: the pipe has ended.
    pub(crate) fn abandon(&mut self) {
        self.outgoing = Outgoing::default();
        self.incoming = Incoming::default();
        self.outbox = Outbox::default();
        self.events.clear();
    }

    /// The application reads a message, but for the bulk parts in `skip`. Returns `false` if it is not there any more.
    pub(crate) fn grant(&mut self, message: u64, skip: &[u16]) -> bool {
        let Some(incoming) = self.incoming.messages.get_mut(&message) else {
            return false;
        };
        incoming.disposition = Disposition::Reading;
        let mut waits = false;
        let mut refused = Vec::new();
        for (i, part) in incoming.parts.iter_mut().enumerate() {
            if let Carriage::Bulk { ahead: false, .. } = part.carriage {
                let skipped = skip.contains(&(i as u16));
                part.done |= skipped;
                waits |= !skipped;
                if skipped {
                    refused.push(i as u16);
                }
            }
        }
        if waits || !refused.is_empty() {
            self.outbox.control(Control::Grant {
                message,
                skip: refused,
            });
        }
        self.count_read(message);
        true
    }

    /// The application does not want a message, or no more of it.
    pub(crate) fn refuse(&mut self, message: u64, code: ResetCode, text: &str) {
        let Some(incoming) = self.incoming.messages.get_mut(&message) else {
            return;
        };
        let in_transit = incoming.in_transit();
        let bulk = incoming
            .parts
            .iter()
            .any(|part| part.carriage != Carriage::Eager && part.len > 0);
        incoming.disposition = Disposition::Refused;
        incoming.descriptor = None;
        for (i, part) in incoming.parts.iter_mut().enumerate() {
            part.dest = None;
            if let (Carriage::Bulk { channel, .. }, false) = (part.carriage, part.done) {
                let op = OpId {
                    message,
                    part: i as u16,
                    outgoing: false,
                };
                self.events.push_back(Event::Cancel { op, channel });
            }
        }
        // The writer always hears of a refusal; a skipped message without bulk is of no interest to it.
        if bulk || code != ResetCode::Skipped {
            self.outbox.control(Control::Refuse {
                message,
                code,
                text: text.to_owned(),
            });
        }
        self.count_read(message);
        if !in_transit {
            self.finish(message);
        }
    }

    /// The application is done with a message: its credit goes back to the writer.
    pub(crate) fn finish(&mut self, message: u64) {
        if let Some(incoming) = self.incoming.messages.remove(&message)
            && let Some(window) = self.receive_window.finish(incoming.credit)
        {
            self.outbox.control(window);
        }
    }

    /// Asks the peer to say when its application has called read for everything up to `message`.
    pub(crate) fn flush(&mut self, message: u64) {
        self.outbox.flush.push_back(message);
    }

    /// No more messages will be written: FIN follows the last one.
    pub(crate) fn close(&mut self) {
        self.closing.asked = true;
    }

    /// Tells the peer that messages from the next one on will not be looked at, and drops those that come.
    pub(crate) fn go_away(&mut self, text: &str) -> u64 {
        let next = *self.closing.ignore_from.get_or_insert(self.incoming.next);
        self.outbox.control(Control::GoAway {
            next,
            text: text.to_owned(),
        });
        next
    }

    /// First message number that the peer has said it will not look at.
    pub(crate) fn peer_ignores_from(&self) -> Option<u64> {
        self.closing.peer_ignores_from
    }

    /// Everything sent is with the peer, and it has said so.
    pub(crate) fn is_closed_out(&self) -> bool {
        self.closing.fin_acked
    }

    /// The peer sends no more messages.
    pub(crate) fn is_closed_in(&self) -> bool {
        self.closing.fin_received
    }

    // Commands of channels.

    /// Sends a part on the pipe's own connection, in DATA frames between which control frames pass.
    pub(crate) fn stream(&mut self, op: OpId, source: S, len: u64) {
        debug_assert!(op.outgoing);
        if !self.outgoing.contains(op.message) {
            // Abandoned between the go-ahead and now.
            return;
        }
        self.outbox.streams.push_back(Stream {
            op,
            source,
            len,
            offset: 0,
        });
    }

    /// Lets DATA frames fill `dest`. Returns `false` if the part is not wanted any more.
    pub(crate) fn expect(&mut self, op: OpId, dest: D) -> bool {
        let part = self.incoming.messages.get_mut(&op.message);
        match part.and_then(|message| message.parts.get_mut(usize::from(op.part))) {
            Some(part) if !part.done => {
                part.expected = true;
                part.dest = Some(dest);
                true
            }
            _ => false,
        }
    }

    /// A channel has handed over a part.
    pub(crate) fn part_sent(&mut self, op: OpId) {
        if let Some(part) = self
            .outgoing
            .message(op.message)
            .and_then(|m| m.parts.get_mut(usize::from(op.part)))
        {
            part.done = true;
            part.source = None;
        }
        self.check_written(op.message);
    }

    /// A part is complete at this side.
    pub(crate) fn part_received(&mut self, op: OpId) {
        if let Some(part) = self
            .incoming
            .messages
            .get_mut(&op.message)
            .and_then(|m| m.parts.get_mut(usize::from(op.part)))
        {
            part.done = true;
        }
    }

    /// Sends bytes of a channel about one of its operations.
    pub(crate) fn channel(&mut self, op: OpId, body: Vec<u8>) {
        self.outbox.control(Control::Channel {
            message: op.message,
            part: op.part,
            yours: !op.outgoing,
            body,
        });
    }

    // Output.

    pub(crate) fn poll_event(&mut self) -> Option<Event<S, D>> {
        self.events.pop_front()
    }

    /// When `handle_timeout` wants to be called.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let half = self.keep_alive.silence? / 2;
        Some(self.keep_alive.asked.unwrap_or(self.keep_alive.last_heard) + half)
    }

    /// Something came from the peer.
    pub(crate) fn heard(&mut self, now: Instant) {
        self.keep_alive.last_heard = now;
        self.keep_alive.asked = None;
    }

    /// Asks a silent peer for a sign of life. Fails with how long it has been silent once it had time to answer.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> Result<(), Duration> {
        let Some(silence) = self.keep_alive.silence else {
            return Ok(());
        };
        let quiet = now.saturating_duration_since(self.keep_alive.last_heard);
        match self.keep_alive.asked {
            // A process that was itself suspended asks first, and gives the peer half the bound to answer.
            None if quiet >= silence / 2 => {
                self.keep_alive.asked = Some(now);
                self.keep_alive.nonce += 1;
                self.outbox.control(Control::Ping {
                    nonce: self.keep_alive.nonce,
                });
                Ok(())
            }
            Some(asked) if now.saturating_duration_since(asked) >= silence / 2 => Err(quiet),
            _ => Ok(()),
        }
    }

    // Shared by the families.

    pub(super) fn count_read(&mut self, message: u64) {
        if let Some(message) = self.incoming.read(message) {
            self.outbox.control(Control::Flushed { message });
        }
    }

    /// Forgets an outgoing message; its channels hear of it.
    pub(super) fn drop_outgoing(&mut self, message: u64) -> bool {
        let Some(dropped) = self.outgoing.remove(message) else {
            return false;
        };
        self.outbox
            .streams
            .retain(|stream| stream.op.message != message);
        for (i, part) in dropped.parts.iter().enumerate() {
            if let (Carriage::Bulk { channel, .. }, None, false) =
                (part.carriage, &part.source, part.done)
            {
                let op = OpId {
                    message,
                    part: i as u16,
                    outgoing: true,
                };
                self.events.push_back(Event::Cancel { op, channel });
            }
        }
        true
    }

    pub(super) fn check_written(&mut self, message: u64) {
        if self
            .outgoing
            .message(message)
            .is_some_and(|message| message.is_done())
        {
            self.outgoing.remove(message);
            self.events.push_back(Event::Written { message });
        }
    }

    /// Starts the bulk parts of an outgoing message but for `skip`.
    pub(super) fn start_bulk(&mut self, message: u64, skip: &[u16]) -> Result<(), PeerFault> {
        let Some(outgoing) = self.outgoing.message(message) else {
            return Ok(());
        };
        outgoing.stage = Stage::Granted;
        for (i, part) in outgoing.parts.iter_mut().enumerate() {
            let Carriage::Bulk { channel, .. } = part.carriage else {
                continue;
            };
            let Some(source) = part.source.take() else {
                continue;
            };
            if skip.contains(&(i as u16)) {
                part.done = true;
            } else {
                let op = OpId {
                    message,
                    part: i as u16,
                    outgoing: true,
                };
                self.events.push_back(Event::Start {
                    op,
                    channel,
                    source,
                });
            }
        }
        self.check_written(message);
        Ok(())
    }
}
