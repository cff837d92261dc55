//! What each control frame of the peer does.

use std::mem;

use super::incoming::{Disposition, InMessage};
use super::outgoing::Stage;
use super::pipe::{Event, OpId, PipeState};
use super::wire::descriptor::Carriage;
use super::wire::frame::{Body, Control, Kind, Reason};
use crate::error::{PeerFault, ResetCode};

impl<S: Clone, D> PipeState<S, D> {
    pub(super) fn control_frame(&mut self, frame: Control) -> Result<(), PeerFault> {
        match frame {
            Control::Grant { message, skip } => {
                self.check_sent(Kind::Grant, message)?;
                match self.outgoing.message(message).map(|message| &message.stage) {
                    Some(Stage::Sent) => self.start_bulk(message, skip),
                    Some(_) => return Err(Kind::Grant.unexpected("twice for one message")),
                    // Abandoned here in the meantime.
                    None => {}
                }
            }
            Control::Window(limit) => self.send_window.raise(limit),
            Control::Recall(ahead) => {
                let ahead = self.send_window.recall(ahead);
                self.outbox.control(Control::Recalled(ahead));
            }
            Control::Recalled(ahead) => {
                self.outbox.extend(self.receive_window.recalled(ahead)?);
                self.events.push_back(Event::Recalled);
            }
            Control::Reset { reason, answer } if answer => self.peer_confirmed(reason.message)?,
            Control::Reset { reason, .. } => self.peer_reset(reason)?,
            Control::Refuse(reason) => {
                let Reason { message, code, .. } = reason;
                self.check_sent(Kind::Refuse, message)?;
                let under_way = self.drop_outgoing(message);
                // Always answered, so that the reader knows when nothing of it can come any more.
                self.outbox.control(Control::Reset {
                    reason: Reason::new(message, code, ""),
                    answer: true,
                });
                // A skip of a message that is handed over is not reported.
                if under_way || code != ResetCode::Skipped {
                    self.events.push_back(Event::Refused(reason));
                }
            }
            Control::Flush(message) => {
                if message >= self.incoming.next {
                    return Err(Kind::Flush.unknown(message));
                }
                let flushed = self.incoming.flush(message).map(Control::Flushed);
                self.outbox.extend(flushed);
            }
            Control::Flushed(message) => {
                self.check_sent(Kind::Flushed, message)?;
                // A repetition is not reported: each event makes the driver go through all operations that wait.
                if self.closing.peer_read.is_none_or(|old| message > old) {
                    self.closing.peer_read = Some(message);
                    self.events.push_back(Event::Flushed { message });
                }
            }
            Control::Ping(nonce) => {
                self.keep_alive.pinged = nonce;
                self.outbox.control(Control::Pong(nonce));
            }
            Control::Pong(_) => {}
            Control::GoAway { next, text } => {
                if next > self.outgoing.next_sent {
                    return Err(Kind::GoAway.unknown(next));
                }
                // Likewise.
                if self.closing.peer_ignores_from.is_none_or(|old| next < old) {
                    self.closing.peer_ignores_from = Some(next);
                    self.events.push_back(Event::GoAway { next, text });
                }
            }
            Control::Fin => {
                if mem::replace(&mut self.closing.fin_received, true) {
                    return Err(Kind::Fin.unexpected("twice"));
                }
                self.outbox.control(Control::FinAck);
                self.events.push_back(Event::Fin);
            }
            Control::FinAck => {
                if !self.closing.fin_sent {
                    return Err(Kind::FinAck.unexpected("without a FIN"));
                }
                if mem::replace(&mut self.closing.fin_acked, true) {
                    return Err(Kind::FinAck.unexpected("twice"));
                }
                self.events.push_back(Event::FinAck);
            }
            Control::Channel { op, yours, body } => {
                self.channel_frame(OpId::from_key(op, yours), body)?;
            }
        }
        Ok(())
    }

    fn check_sent(&self, kind: Kind, message: u64) -> Result<(), PeerFault> {
        if message < self.outgoing.next_sent {
            Ok(())
        } else {
            Err(kind.unknown(message))
        }
    }

    /// The writer has heard that a message is refused: nothing more comes of it.
    fn peer_confirmed(&mut self, message: u64) -> Result<(), PeerFault> {
        let refused = self.incoming.get(message);
        if refused.is_none_or(InMessage::is_wanted) {
            return Err(Kind::Reset.unexpected("in answer to no REFUSE"));
        }
        self.release(message);
        Ok(())
    }

    fn peer_reset(&mut self, reason: Reason) -> Result<(), PeerFault> {
        let message = reason.message;
        if message > self.incoming.next {
            return Err(Kind::Reset.unknown(message));
        }
        if message == self.incoming.next {
            if self.closing.fin_received {
                return Err(Kind::Reset.unexpected("of a message after its FIN"));
            }
            // A hole: the writer gave it up before it left.
            self.incoming.next += 1;
            self.count_read(message);
            return Ok(());
        }
        // Also for a message that was read long ago: the application may want to stop acting on it.
        if let Some(incoming) = self.incoming.get_mut(message) {
            if !incoming.is_wanted() {
                // The REFUSE is still on its way to the writer, and will be answered.
                return Ok(());
            }
            incoming.abandon(message, &mut self.events);
            if incoming.disposition == Disposition::Undecided {
                self.incoming.reset_reasons.insert(message, reason.clone());
            }
        }
        self.events.push_back(Event::Reset(reason));
        self.release(message);
        Ok(())
    }

    /// A lane of this side has answered about an incoming part. If that leaves the part open, the peer's lane may send about it again.
    pub(super) fn answered(&mut self, op: OpId) {
        let part = self.incoming.part_mut(op);
        if let Some(part) = part.filter(|part| part.find(op.whole()).is_none()) {
            part.lane_frame_seen = false;
        }
    }

    fn channel_frame(&mut self, op: OpId, body: Body) -> Result<(), PeerFault> {
        let unknown = || Err(Kind::Channel.unknown(op.message));
        if op.outgoing {
            self.check_sent(Kind::Channel, op.message)?;
            // A message abandoned in the meantime has no channel any more.
            let Some(message) = self.outgoing.message(op.message) else {
                return Ok(());
            };
            let part = message.parts.get(usize::from(op.part));
            let Some(Carriage::Bulk { channel, .. }) = part.map(|part| part.carriage) else {
                return unknown();
            };
            self.events.push_back(Event::Channel { op, channel, body });
            return Ok(());
        }
        if op.message >= self.incoming.next {
            return unknown();
        }
        let message = self.incoming.get_mut(op.message);
        let Some(message) = message.filter(|message| message.is_wanted()) else {
            return Ok(());
        };
        let Some(part) = message.parts.get_mut(usize::from(op.part)) else {
            return unknown();
        };
        let Carriage::Bulk { channel, .. } = part.carriage else {
            return unknown();
        };
        // Such a frame may come before the application reads, and is kept. So there may be one for each part, and one for each answer that
        // leaves the part open.
        let again = mem::replace(&mut part.lane_frame_seen, true) || part.done;
        if again && self.at_once.contains(channel) {
            let when = "twice for a part that needs no go-ahead";
            return Err(Kind::Channel.unexpected(when));
        }
        self.events.push_back(Event::Channel { op, channel, body });
        Ok(())
    }
}
