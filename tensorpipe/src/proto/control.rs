//! What each control frame of the peer does.

use super::pipe::{Event, OpId, PipeState};
use super::read::Disposition;
use super::wire::descriptor::Carriage;
use super::wire::frame::{Body, Control, Kind};
use super::write::Stage;
use crate::error::{PeerFault, ResetCode};

impl<S: Clone, D> PipeState<S, D> {
    pub(super) fn control_frame(&mut self, frame: Control) -> Result<(), PeerFault> {
        match frame {
            Control::Grant { message, skip } => {
                self.check_sent("GRANT", message)?;
                match self.outgoing.message(message).map(|message| &message.stage) {
                    Some(Stage::Sent) => self.start_bulk(message, skip),
                    Some(_) => {
                        return Err(PeerFault::Unexpected {
                            frame: "GRANT",
                            when: "twice for one message",
                        });
                    }
                    // Abandoned here in the meantime.
                    None => {}
                }
            }
            Control::Window {
                messages,
                bytes,
                ahead,
            } => {
                self.send_window.raise(super::flow::Amount {
                    messages,
                    bytes,
                    ahead,
                });
            }
            Control::Recall { ahead } => {
                let ahead = self.send_window.recall(ahead);
                self.outbox.control(Control::Recalled { ahead });
            }
            Control::Recalled { ahead } => {
                if let Some(window) = self.receive_window.recalled(ahead)? {
                    self.outbox.control(window);
                }
                self.events.push_back(Event::Recalled);
            }
            Control::Reset {
                message,
                answer: true,
                ..
            } => self.peer_confirmed(message)?,
            Control::Reset {
                message,
                code,
                text,
                answer: false,
            } => self.peer_reset(message, code, text)?,
            Control::Refuse {
                message,
                code,
                text,
            } => {
                self.check_sent("REFUSE", message)?;
                let under_way = self.drop_outgoing(message);
                // Always answered, so that the reader knows when nothing of it can come any more.
                self.outbox.control(Control::Reset {
                    message,
                    code,
                    text: String::new(),
                    answer: true,
                });
                // To skip what is handed over is no news.
                if under_way || code != ResetCode::Skipped {
                    self.events.push_back(Event::Refused {
                        message,
                        code,
                        text,
                    });
                }
            }
            Control::Flush { message } => {
                if message >= self.incoming.next {
                    return Err(PeerFault::UnknownMessage {
                        frame: "FLUSH",
                        message,
                    });
                }
                if let Some(message) = self.incoming.flush(message) {
                    self.outbox.control(Control::Flushed { message });
                }
            }
            Control::Flushed { message } => {
                self.check_sent("FLUSHED", message)?;
                // Said again it is no news: whoever is told looks at everybody who waits.
                if self.closing.peer_read.is_none_or(|old| message > old) {
                    self.closing.peer_read = Some(message);
                    self.events.push_back(Event::Flushed { message });
                }
            }
            Control::Ping { nonce } => {
                self.keep_alive.pinged = nonce;
                self.outbox.control(Control::Pong { nonce });
            }
            Control::Pong { .. } => {}
            Control::GoAway { next, text } => {
                if next > self.outgoing.next_sent {
                    return Err(PeerFault::UnknownMessage {
                        frame: "GOAWAY",
                        message: next,
                    });
                }
                // Likewise.
                if self.closing.peer_ignores_from.is_none_or(|old| next < old) {
                    self.closing.peer_ignores_from = Some(next);
                    self.events.push_back(Event::GoAway { next, text });
                }
            }
            Control::Fin => {
                if std::mem::replace(&mut self.closing.fin_received, true) {
                    return Err(PeerFault::Unexpected {
                        frame: "FIN",
                        when: "twice",
                    });
                }
                self.outbox.control(Control::FinAck);
                self.events.push_back(Event::Fin);
            }
            Control::FinAck => {
                if !self.closing.fin_sent {
                    return Err(PeerFault::Unexpected {
                        frame: "FIN_ACK",
                        when: "without a FIN",
                    });
                }
                if std::mem::replace(&mut self.closing.fin_acked, true) {
                    return Err(PeerFault::Unexpected {
                        frame: "FIN_ACK",
                        when: "twice",
                    });
                }
                self.events.push_back(Event::FinAck);
            }
            Control::Channel { op, yours, body } => {
                self.channel_frame(OpId::from_key(op, yours), body)?;
            }
        }
        Ok(())
    }

    fn check_sent(&self, frame: &'static str, message: u64) -> Result<(), PeerFault> {
        if message < self.outgoing.next_sent {
            Ok(())
        } else {
            Err(PeerFault::UnknownMessage { frame, message })
        }
    }

    /// The writer has heard that a message is refused: nothing more comes of it.
    fn peer_confirmed(&mut self, message: u64) -> Result<(), PeerFault> {
        let refused = self.incoming.get(message);
        if refused.is_none_or(|message| message.disposition != Disposition::Refused) {
            return Err(PeerFault::Unexpected {
                frame: "RESET",
                when: "in answer to no REFUSE",
            });
        }
        self.release(message);
        Ok(())
    }

    fn peer_reset(&mut self, message: u64, code: ResetCode, text: String) -> Result<(), PeerFault> {
        if message > self.incoming.next {
            return Err(PeerFault::UnknownMessage {
                frame: "RESET",
                message,
            });
        }
        if message == self.incoming.next {
            if self.closing.fin_received {
                return Err(PeerFault::Unexpected {
                    frame: "RESET",
                    when: "of a message after its FIN",
                });
            }
            // A hole: the writer gave it up before it left.
            self.incoming.next += 1;
            self.count_read(message);
            return Ok(());
        }
        let Some(incoming) = self.incoming.get_mut(message) else {
            // Read long ago: whoever acts on it may want to stop.
            self.events.push_back(Event::Reset {
                message,
                code,
                text,
            });
            self.release(message);
            return Ok(());
        };
        if incoming.disposition == Disposition::Refused {
            // The REFUSE is still on its way to the writer, and will be answered.
            return Ok(());
        }
        for (part, channel) in incoming.abandon() {
            let op = OpId::incoming(message, part);
            self.events.push_back(Event::Cancel { op, channel });
        }
        self.events.push_back(Event::Reset {
            message,
            code,
            text,
        });
        self.release(message);
        Ok(())
    }

    /// A lane here has answered about an incoming part: if that leaves it open, the peer's lane may speak of it again.
    pub(super) fn answered(&mut self, op: OpId) {
        let message = self.incoming.get_mut(op.message);
        let part = message.and_then(|message| message.parts.get_mut(usize::from(op.part)));
        if let Some(part) = part.filter(|part| !part.expected) {
            part.told = false;
        }
    }

    fn channel_frame(&mut self, op: OpId, body: Body) -> Result<(), PeerFault> {
        let frame = Kind::Channel.name();
        let unknown = PeerFault::UnknownMessage {
            frame,
            message: op.message,
        };
        let carriage = if op.outgoing {
            self.check_sent(frame, op.message)?;
            // A message abandoned in the meantime has no channel any more.
            let Some(message) = self.outgoing.message(op.message) else {
                return Ok(());
            };
            message
                .parts
                .get(usize::from(op.part))
                .map(|part| part.carriage)
        } else {
            if op.message >= self.incoming.next {
                return Err(unknown);
            }
            let Some(message) = self.incoming.get_mut(op.message) else {
                return Ok(());
            };
            if message.disposition == Disposition::Refused {
                return Ok(());
            }
            let part = message.parts.get_mut(usize::from(op.part));
            // It may come before the application reads, and is kept: so one for each part, and one for each answer that
            // leaves it open.
            if let Some(part) = part
                && let Carriage::Bulk { channel, .. } = part.carriage
            {
                let again = std::mem::replace(&mut part.told, true) || part.done;
                if again && self.at_once.contains(channel) {
                    return Err(PeerFault::Unexpected {
                        frame,
                        when: "twice for a part that needs no go-ahead",
                    });
                }
                Some(part.carriage)
            } else {
                None
            }
        };
        match carriage {
            Some(Carriage::Bulk { channel, .. }) => {
                self.events.push_back(Event::Channel { op, channel, body });
                Ok(())
            }
            _ => Err(unknown),
        }
    }
}
