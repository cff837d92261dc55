//! The call engine of one pipe: calls made from here, and calls handled here.
//!
//! It lives in the pipe's [`Handler`]: whoever drives the pipe decodes headers, admits calls, polls a handler once and
//! completes calls, so that on the hot path nothing hops from task to task.

mod calls;
mod deadlines;
mod replying;
mod running;
mod serving;

pub(crate) use calls::{CallSlot, Outcome, Outgoing};
pub(crate) use replying::bind_request;
pub(crate) use running::FirstPoll;
pub(crate) use serving::Serving;

use std::sync::{Arc, Weak};

use tensorpipe::{Error, Handler, Incoming, Message, MessageTensor, Payload, Pipe, ResetCode};

use crate::codec::Encoded;
use crate::header::{BODY_IN_PAYLOAD, FailureCode, Header, INLINE_BODY, Kind};
use calls::Calls;

/// See the module's documentation. Dropping the last handle closes the pipe in good order.
pub(crate) struct Engine {
    pub(crate) pipe: Pipe,
    pub(crate) calls: Arc<Calls>,
    pub(crate) serving: Option<Serving>,
}

impl Engine {
    /// Puts an engine on a pipe.
    pub(crate) fn start(pipe: Pipe, serving: Option<Serving>) -> Arc<Self> {
        let engine = Arc::new(Self {
            calls: Arc::default(),
            serving,
            pipe: pipe.clone(),
        });
        pipe.set_handler(Arc::new(Receiver {
            engine: Arc::downgrade(&engine),
            serves: engine.serving.is_some(),
            pipe: pipe.name().into(),
        }));
        Calls::watch_deadlines(&engine);
        engine
    }

    /// Sends `encoded`: see [`to_message`].
    pub(crate) fn send(&self, encoded: Encoded, header_len: usize) -> Result<u64, Error> {
        self.pipe.send(to_message(encoded, header_len))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.calls.end_watch();
    }
}

/// A message of `encoded`, whose metadata begins with a header of `header_len` bytes. A large body becomes a payload.
pub(crate) fn to_message(encoded: Encoded, header_len: usize) -> Message {
    let Encoded {
        mut metadata,
        payloads,
        tensors,
    } = encoded;
    let mut message = Message::default();
    if metadata.len() - header_len > INLINE_BODY {
        // The body leaves as a payload, behind the others, so that their indices stay.
        metadata[2] |= BODY_IN_PAYLOAD;
        let mut header = Vec::with_capacity(header_len);
        header.extend_from_slice(&metadata[..header_len]);
        message.payloads = payloads;
        let body = tensorpipe::Buffer::from_vec(metadata);
        let body = body.slice(header_len..body.len());
        message.payloads.push(Payload::from(body));
        metadata = header;
    } else {
        message.payloads = payloads;
    }
    message.metadata = metadata.into();
    message.tensors = tensors.into_iter().map(MessageTensor::from).collect();
    message
}

/// The body of a message behind its header, and what travelled beside it.
pub(crate) struct Body {
    pub(crate) metadata: bytes::Bytes,
    pub(crate) payloads: Vec<Payload>,
    pub(crate) tensors: Vec<tensorpipe::Tensor>,
}

/// Takes a message apart; `None` if its flags promise a payload that is not there.
pub(crate) fn to_body(message: Message, header: &Header) -> Option<Body> {
    let Message {
        metadata,
        mut payloads,
        tensors,
        ..
    } = message;
    let metadata = if header.flags & BODY_IN_PAYLOAD != 0 {
        let body = payloads.pop()?;
        bytes::Bytes::from_owner(BodyBytes(body))
    } else {
        metadata.slice(header.len..)
    };
    Some(Body {
        metadata,
        payloads,
        tensors: tensors.into_iter().map(|part| part.tensor).collect(),
    })
}

struct BodyBytes(Payload);

impl AsRef<[u8]> for BodyBytes {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// The pipe's handler. It holds the engine weakly: the engine holds the pipe.
struct Receiver {
    engine: Weak<Engine>,
    serves: bool,
    pipe: Arc<str>,
}

impl Handler for Receiver {
    /// A client hears of nothing but its calls, which are awaited.
    fn listens(&self) -> bool {
        self.serves
    }

    fn incoming(&self, incoming: Incoming) {
        // Without an engine the pipe is closing: the message is skipped.
        let Some(engine) = self.engine.upgrade() else {
            return;
        };
        let header = match Header::decode(&incoming.descriptor().metadata) {
            Ok(header) => header,
            Err(what) => {
                tracing::warn!(pipe = %self.pipe, "refused {what}");
                return incoming.refuse(what);
            }
        };
        match header.kind {
            Kind::Call | Kind::Bind => engine.call_arrives(header, incoming),
            Kind::Value | Kind::ServiceError | Kind::Failure(_) => {
                engine.reply_arrives(header, incoming)
            }
            // An answer, since whoever sent a small message does not hear of its refusal.
            Kind::Tarpc(_) => engine.reply_failure(
                header.call,
                FailureCode::NoService,
                "no tarpc here".to_owned(),
            ),
        }
    }

    fn message(&self, id: u64, message: Result<Message, Error>) {
        let Some(engine) = self.engine.upgrade() else {
            return;
        };
        match engine.calls.take_reading(id) {
            Some((header, slot)) => engine.reply_complete(&header, &slot, message),
            None => engine.call_complete(id, message),
        }
    }

    fn reset(&self, id: u64, code: ResetCode, reason: &str) {
        if let Some(engine) = self.engine.upgrade() {
            tracing::trace!(pipe = %self.pipe, id, %code, reason, "the peer abandons a message");
            engine.call_abandoned(id);
        }
    }

    fn refused(&self, id: u64, code: ResetCode, reason: &str) {
        if let Some(engine) = self.engine.upgrade() {
            engine.calls.refused(id, code, reason);
        }
    }

    fn going_away(&self, next: u64, _: &str) {
        if let Some(engine) = self.engine.upgrade() {
            engine.calls.going_away(next);
        }
    }

    fn closed(&self, error: &Error) {
        if let Some(engine) = self.engine.upgrade() {
            engine.calls.closed(error);
            engine.abandon_all();
        }
    }
}
