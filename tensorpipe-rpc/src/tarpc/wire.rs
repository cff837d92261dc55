//! tarpc's messages on the wire: a call header with tarpc's request id, then a body in our codec.
//!
//! The bodies are our own types, because decoding tarpc's adds the peer's deadline to the clock, and panics if that is too far
//! away. Here a deadline travels as microseconds, and is cut to [`LONGEST_DEADLINE`].

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tarpc::context::Context;
use tarpc::trace::{self, SamplingDecision};
use tarpc::{ClientMessage, Request, Response, ServerError};

use crate::caught::catch_panic;
use crate::codec::{DecodeError, EncodeError, Encoded, Encoder, Subject, decode_whole};
use crate::engine::Body;
use crate::header::{Header, Kind, Tarpc};

/// The longest deadline that a peer can ask for: one year. tarpc panics at some that are longer.
pub const LONGEST_DEADLINE: Duration = Duration::from_secs(365 * 24 * 3600);

/// The messages of a [`PipeTransport`](super::PipeTransport): tarpc's [`ClientMessage`] one way, its [`Response`] the other, or
/// your own type that wraps them (compressed, encrypted, signed). Such a type needs one line:
///
/// ```
/// use tensorpipe_rpc::tarpc::TarpcMessage;
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Compressed(Vec<u8>);
///
/// impl TarpcMessage for Compressed {}
/// ```
///
/// Wrapped messages arrive in the order in which they were sent. If one cannot be sent or received, the transport ends, because
/// only the wrapper knows which request it belongs to. Both ends must wrap.
pub trait TarpcMessage: Serialize + DeserializeOwned {
    /// The id of the request that the message belongs to.
    #[doc(hidden)]
    fn call(&self) -> u64 {
        0
    }

    /// Whether the message cancels the request.
    #[doc(hidden)]
    fn is_cancel(&self) -> bool {
        false
    }

    /// Encodes the message.
    #[doc(hidden)]
    fn encode(self) -> Result<EncodedMessage, EncodeError> {
        encode(Tarpc::Wrapped, 0, Subject::Message, &self)
    }

    /// Whether a message of this kind is of this type.
    #[doc(hidden)]
    fn is(what: What) -> bool {
        what.0 == Tarpc::Wrapped
    }

    /// Decodes a message of a kind for which [`is`](Self::is) is true.
    #[doc(hidden)]
    fn decode(_: What, _: u64, body: Arrived) -> Result<Self, DecodeError> {
        decode(Subject::Message, body)
    }

    /// An answer that fails the request, if messages of this type are answers.
    #[doc(hidden)]
    fn failure(_: u64, _: String) -> Option<Self> {
        None
    }
}

/// An encoded message.
#[expect(unnameable_types, reason = "in hidden methods")]
#[derive(Debug)]
pub struct EncodedMessage {
    pub(super) encoded: Encoded,
    pub(super) header_len: usize,
}

/// The kind of a message.
#[expect(unnameable_types, reason = "in hidden methods")]
#[derive(Clone, Copy, Debug)]
pub struct What(pub(super) Tarpc);

/// A message that came, without its header.
#[expect(unnameable_types, reason = "in hidden methods")]
pub struct Arrived(pub(super) Body);

impl std::fmt::Debug for Arrived {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Arrived").finish_non_exhaustive()
    }
}

/// The body of a request.
#[derive(Serialize, Deserialize)]
struct RequestBody<T> {
    time_left_us: u64,
    trace: Trace,
    message: T,
}

/// The body of a cancellation, and part of a request's.
#[derive(Serialize, Deserialize)]
struct Trace {
    trace: u128,
    span: u64,
    sampled: bool,
}

/// The body of a response. It is not tarpc's error, which writes its kind as an `i32` and reads a `u32`: in our codec these differ.
#[derive(Serialize, Deserialize)]
enum ResponseBody<T> {
    Answer(T),
    /// The server refused the request. The number is [`code`] of the error's kind.
    Refused(u8, String),
}

impl<T: Serialize + DeserializeOwned> TarpcMessage for ClientMessage<T> {
    fn call(&self) -> u64 {
        match self {
            Self::Request(request) => request.id,
            Self::Cancel { request_id, .. } => *request_id,
            // tarpc may add kinds; none of them reaches this version's encoder.
            _ => 0,
        }
    }

    fn is_cancel(&self) -> bool {
        matches!(self, Self::Cancel { .. })
    }

    fn encode(self) -> Result<EncodedMessage, EncodeError> {
        let call = self.call();
        match self {
            Self::Request(request) => {
                let left = request.context.deadline;
                let left = left.saturating_duration_since(Instant::now());
                let body = RequestBody {
                    time_left_us: u64::try_from(left.as_micros()).unwrap_or(u64::MAX),
                    trace: Trace::from(request.context.trace_context),
                    message: request.message,
                };
                encode(Tarpc::Request, call, Subject::Request, &body)
            }
            other => {
                let trace = match other {
                    Self::Cancel { trace_context, .. } => trace_context,
                    _ => trace::Context::default(),
                };
                encode(Tarpc::Cancel, call, Subject::Request, &Trace::from(trace))
            }
        }
    }

    fn is(what: What) -> bool {
        matches!(what.0, Tarpc::Request | Tarpc::Cancel)
    }

    fn decode(what: What, call: u64, body: Arrived) -> Result<Self, DecodeError> {
        if let Tarpc::Cancel = what.0 {
            let trace: Trace = decode(Subject::Request, body)?;
            return Ok(Self::Cancel {
                trace_context: trace.into(),
                request_id: call,
            });
        }
        let body: RequestBody<T> = decode(Subject::Request, body)?;
        let mut context = Context::current();
        let left = Duration::from_micros(body.time_left_us).min(LONGEST_DEADLINE);
        context.deadline = Instant::now() + left;
        context.trace_context = body.trace.into();
        Ok(Self::Request(Request {
            context,
            id: call,
            message: body.message,
        }))
    }
}

impl<T: Serialize + DeserializeOwned> TarpcMessage for Response<T> {
    fn call(&self) -> u64 {
        self.request_id
    }

    fn encode(self) -> Result<EncodedMessage, EncodeError> {
        let body = match self.message {
            Ok(answer) => ResponseBody::Answer(answer),
            Err(error) => ResponseBody::Refused(code(error.kind), error.detail),
        };
        encode(Tarpc::Response, self.request_id, Subject::Reply, &body)
    }

    fn is(what: What) -> bool {
        matches!(what.0, Tarpc::Response)
    }

    fn decode(_: What, call: u64, body: Arrived) -> Result<Self, DecodeError> {
        let message = match decode(Subject::Reply, body)? {
            ResponseBody::Answer(answer) => Ok(answer),
            ResponseBody::Refused(code, detail) => Err(ServerError::new(kind(code), detail)),
        };
        Ok(Self {
            request_id: call,
            message,
        })
    }

    fn failure(call: u64, reason: String) -> Option<Self> {
        Some(Self {
            request_id: call,
            message: Err(ServerError::new(ErrorKind::InvalidData, reason)),
        })
    }
}

fn encode<B: Serialize + DeserializeOwned>(
    what: Tarpc,
    call: u64,
    subject: Subject,
    body: &B,
) -> Result<EncodedMessage, EncodeError> {
    let header = Header::plain(Kind::Tarpc(what), call).to_vec();
    let header_len = header.len();
    // This runs on the task of the whole connection, so a panic would end all calls.
    let encoded = catch_panic(|| {
        let mut encoder = Encoder::after(header).about(subject);
        encoder.write::<B, B>(body)?;
        Ok(encoder.finish())
    });
    let encoded = encoded.unwrap_or_else(|panic| Err(EncodeError::panicked(subject, &panic)))?;
    Ok(EncodedMessage {
        encoded,
        header_len,
    })
}

fn decode<B: DeserializeOwned>(subject: Subject, arrived: Arrived) -> Result<B, DecodeError> {
    let Body {
        metadata,
        payloads,
        tensors,
        references: _,
    } = arrived.0;
    let decoded = catch_panic(|| decode_whole(subject, metadata, payloads, tensors));
    decoded.unwrap_or_else(|panic| Err(DecodeError::panicked(subject, &panic)))
}

impl From<trace::Context> for Trace {
    fn from(context: trace::Context) -> Self {
        Self {
            trace: context.trace_id.into(),
            span: context.span_id.into(),
            sampled: context.sampling_decision == SamplingDecision::Sampled,
        }
    }
}

impl From<Trace> for trace::Context {
    fn from(trace: Trace) -> Self {
        Self {
            trace_id: trace.trace.into(),
            span_id: trace.span.into(),
            sampling_decision: if trace.sampled {
                SamplingDecision::Sampled
            } else {
                SamplingDecision::Unsampled
            },
        }
    }
}

/// Kinds of errors, by tarpc's numbers for them on the wire.
const KINDS: [ErrorKind; 18] = [
    ErrorKind::NotFound,
    ErrorKind::PermissionDenied,
    ErrorKind::ConnectionRefused,
    ErrorKind::ConnectionReset,
    ErrorKind::ConnectionAborted,
    ErrorKind::NotConnected,
    ErrorKind::AddrInUse,
    ErrorKind::AddrNotAvailable,
    ErrorKind::BrokenPipe,
    ErrorKind::AlreadyExists,
    ErrorKind::WouldBlock,
    ErrorKind::InvalidInput,
    ErrorKind::InvalidData,
    ErrorKind::TimedOut,
    ErrorKind::WriteZero,
    ErrorKind::Interrupted,
    ErrorKind::Other,
    ErrorKind::UnexpectedEof,
];

fn code(kind: ErrorKind) -> u8 {
    let found = KINDS.iter().position(|known| *known == kind);
    found.map_or(16, |code| code as u8)
}

fn kind(code: u8) -> ErrorKind {
    KINDS
        .get(usize::from(code))
        .copied()
        .unwrap_or(ErrorKind::Other)
}
