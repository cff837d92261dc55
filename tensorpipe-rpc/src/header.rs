//! The call header: the front of the metadata of every message of the call engine.
//!
//! ```text
//! offset  size
//!      0     1  kind
//!      1     1  length of the header, so that a later version's fields can be skipped
//!      2     1  flags: 1 the body is the last payload instead of the rest of the metadata
//!                      2 a trace follows
//!                      4 the body holds references
//!                      8 numbers of calls that this one waits for stand behind the body
//!                     16 figures are asked for (kind call), or follow (kinds value, service error and failure)
//!                     32 the caller's places for the result stand behind the header (kinds call and fetch)
//!      3     1  failure code (kind failure), items in the message (kinds of items), which stream (kind credit), else 0
//!      4     8  call id, chosen by the caller, never used twice on a connection
//!     12     4  service id, from the answer to the bind      (kind call)
//!     16     4  method id: FNV-1a of the method's name       (kind call)
//!     20     8  time left in microseconds, 0 without bound   (kind call)
//!     28    24  trace id and span id                         (kind call, flag 2)
//! ```
//! Integers are little-endian. A new field goes to the end, behind the trace if there is one, under a flag of its own. The server
//! admits or refuses a call on its header alone, before tensors that need a go-ahead move.

use crate::codec::REPLY_HEADER;
use crate::scratch;

/// Flag: the body is the last payload.
pub(crate) const BODY_IN_PAYLOAD: u8 = 1;
pub(crate) const TRACE: u8 = 2;
/// Flag: the body holds references.
pub(crate) const REFERENCES: u8 = 4;
/// Flag: the numbers of calls that this one waits for stand behind the body.
pub(crate) const WAITS: u8 = 8;
/// Flag: the caller wants figures. They stand at the end of the reply's header, whose length includes them.
pub(crate) const STATS: u8 = 16;

/// Flag: the caller's places for the result follow the header: a length of two bytes, and so many bytes.
pub(crate) const PLACES: u8 = 32;

const CALL_LEN: usize = 28;

/// Bodies up to this size stay in the metadata, in bytes.
pub(crate) const INLINE_BODY: usize = 32 << 10;

/// The kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Calls a method.
    Call,
    /// The method's result.
    Value,
    /// The method's own error.
    ServiceError,
    /// The reason why the call has no result.
    Failure(FailureCode),
    /// Asks for a service; the body is the client's description of it.
    Bind,
    /// A message of tarpc's, on a pipe that carries nothing else.
    Tarpc(Tarpc),
    /// Items of a stream, and how many.
    Items(StreamDirection, u8),
    /// The stream argument has ended.
    End,
    /// How many items and bytes of a stream the peer may send in all.
    Credit(StreamDirection),
    /// The stream argument is no longer read.
    Stop,
    /// Calls made from now on are not handled. Those under way end first.
    Draining,
    /// Asks for a copy of a reference's value.
    Fetch,
    /// Releases references that replies to calls gave away.
    Release,
    /// Asks for a token with which a third process can claim a reference.
    Share,
    /// Claims a reference that somebody else has shared.
    Claim,
}

/// Which of a call's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamDirection {
    /// From the caller.
    Argument,
    /// To the caller.
    Reply,
}

/// The messages of tarpc's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tarpc {
    Request,
    Cancel,
    Response,
    /// Any of these, wrapped in a type of the application's.
    Wrapped,
}

/// Why a call has no result. Travels as one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FailureCode {
    Panicked = 1,
    /// The server has no room for the call. The method has not run.
    Overloaded = 2,
    /// The service has no such method.
    Unimplemented = 3,
    /// The arguments cannot be decoded, or do not suit the method. It has not run.
    BadArguments = 4,
    Deadline = 5,
    ShuttingDown = 6,
    /// The server cannot send the method's result, or the caller does not take it.
    BadReply = 7,
    Mismatch = 8,
    NoService = 9,
    Unresolved = 10,
    BadItem = 11,
    /// A tensor of the arguments cannot be where the caller asked for it.
    NoPlace = 12,
    /// A tensor of the result cannot be where the caller asked for it. The method has run.
    NoPlaceForResult = 13,
    /// The caller may not call this method.
    Denied = 14,
    /// A code of a newer peer.
    Other,
}

/// The trace that a call belongs to. Calls pass it on to the calls that they cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// Shared by all calls that one outermost call caused; 0 for none.
    pub trace_id: u128,
    /// The calling span.
    pub span_id: u64,
}

/// A decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    pub(crate) call: u64,
    pub(crate) service: u32,
    pub(crate) method: u32,
    pub(crate) time_left_us: u64,
    pub(crate) trace: TraceContext,
    /// Where the body begins: after the header, and after the caller's places.
    pub(crate) body_at: usize,
    /// How many bytes in front of the body say where the caller wants tensors of the result.
    pub(crate) places_len: u16,
}

impl FailureCode {
    fn from_code(code: u8) -> Self {
        match code {
            1 => Self::Panicked,
            2 => Self::Overloaded,
            3 => Self::Unimplemented,
            4 => Self::BadArguments,
            5 => Self::Deadline,
            6 => Self::ShuttingDown,
            7 => Self::BadReply,
            8 => Self::Mismatch,
            9 => Self::NoService,
            10 => Self::Unresolved,
            11 => Self::BadItem,
            12 => Self::NoPlace,
            13 => Self::NoPlaceForResult,
            14 => Self::Denied,
            _ => Self::Other,
        }
    }
}

impl Kind {
    fn code(self) -> (u8, u8) {
        match self {
            Self::Call => (1, 0),
            Self::Value => (2, 0),
            Self::ServiceError => (3, 0),
            Self::Failure(code) => (4, code as u8),
            Self::Bind => (5, 0),
            Self::Tarpc(Tarpc::Request) => (6, 0),
            Self::Tarpc(Tarpc::Cancel) => (7, 0),
            Self::Tarpc(Tarpc::Response) => (8, 0),
            Self::Items(StreamDirection::Argument, count) => (9, count),
            Self::Items(StreamDirection::Reply, count) => (10, count),
            Self::End => (11, 0),
            Self::Credit(StreamDirection::Argument) => (12, 0),
            Self::Credit(StreamDirection::Reply) => (12, 1),
            Self::Stop => (13, 0),
            Self::Draining => (14, 0),
            Self::Fetch => (15, 0),
            Self::Release => (16, 0),
            Self::Share => (17, 0),
            Self::Claim => (18, 0),
            Self::Tarpc(Tarpc::Wrapped) => (19, 0),
        }
    }
}

impl Header {
    /// The header of a call.
    pub(crate) fn call(
        call: u64,
        service: u32,
        method: u32,
        time_left_us: u64,
        trace: TraceContext,
    ) -> Self {
        Self {
            service,
            method,
            time_left_us,
            trace,
            ..Self::plain(Kind::Call, call)
        }
    }

    /// Sets whether the caller wants figures.
    pub(crate) fn with_stats(mut self, wants_stats: bool) -> Self {
        if wants_stats {
            self.flags |= STATS;
        }
        self
    }

    /// The header of a message other than a call.
    pub(crate) fn plain(kind: Kind, call: u64) -> Self {
        Self {
            kind,
            flags: 0,
            call,
            service: 0,
            method: 0,
            time_left_us: 0,
            trace: TraceContext::default(),
            body_at: 0,
            places_len: 0,
        }
    }

    /// A vector that begins with the header, with room for a small body.
    pub(crate) fn to_vec(self) -> Vec<u8> {
        let mut out = scratch::take();
        let (kind, code) = self.kind.code();
        let is_call = self.kind == Kind::Call;
        let traced = is_call && self.trace.trace_id != 0;
        let flags = self.flags & !TRACE | if traced { TRACE } else { 0 };
        out.extend_from_slice(&[kind, 0, flags, code]);
        out.extend_from_slice(&self.call.to_le_bytes());
        if is_call {
            out.extend_from_slice(&self.service.to_le_bytes());
            out.extend_from_slice(&self.method.to_le_bytes());
            out.extend_from_slice(&self.time_left_us.to_le_bytes());
        }
        // Fields with a flag, in the order of their flags.
        if traced {
            out.extend_from_slice(&self.trace.trace_id.to_le_bytes());
            out.extend_from_slice(&self.trace.span_id.to_le_bytes());
        }
        out[1] = out.len() as u8;
        out
    }

    /// Writes the header of a reply over the space that [`Reply`](crate::codec::Reply) left for it.
    pub(crate) fn put_reply(metadata: &mut [u8], kind: Kind, call: u64) {
        let (kind, code) = kind.code();
        metadata[..4].copy_from_slice(&[kind, REPLY_HEADER as u8, 0, code]);
        metadata[4..REPLY_HEADER].copy_from_slice(&call.to_le_bytes());
    }

    /// Decodes the header at the front of `metadata`. The error says what is wrong with it.
    pub(crate) fn decode(metadata: &[u8]) -> Result<Self, &'static str> {
        const SHORT: &str = "a message whose call header is cut short";
        let Some(([kind, len, flags, code], _)) = metadata.split_first_chunk::<4>() else {
            return Err(SHORT);
        };
        let (len, flags) = (usize::from(*len), *flags);
        let header = metadata.get(..len).ok_or(SHORT)?;
        let kind = match kind {
            1 => Kind::Call,
            2 => Kind::Value,
            3 => Kind::ServiceError,
            4 => Kind::Failure(FailureCode::from_code(*code)),
            5 => Kind::Bind,
            6 => Kind::Tarpc(Tarpc::Request),
            7 => Kind::Tarpc(Tarpc::Cancel),
            8 => Kind::Tarpc(Tarpc::Response),
            9 => Kind::Items(StreamDirection::Argument, *code),
            10 => Kind::Items(StreamDirection::Reply, *code),
            11 => Kind::End,
            12 if *code == 0 => Kind::Credit(StreamDirection::Argument),
            12 => Kind::Credit(StreamDirection::Reply),
            13 => Kind::Stop,
            14 => Kind::Draining,
            15 => Kind::Fetch,
            16 => Kind::Release,
            17 => Kind::Share,
            18 => Kind::Claim,
            19 => Kind::Tarpc(Tarpc::Wrapped),
            _ => return Err("a message of an unknown kind"),
        };
        let call = u64_at(header, 4).ok_or(SHORT)?;
        let mut places = 0;
        let mut body = len;
        if flags & PLACES != 0 && matches!(kind, Kind::Call | Kind::Fetch) {
            let told = metadata[len..].first_chunk().ok_or(SHORT)?;
            places = u16::from_le_bytes(*told);
            body = len + 2 + usize::from(places);
            metadata.get(..body).ok_or(SHORT)?;
        }
        let mut decoded = Self {
            flags,
            body_at: body,
            places_len: places,
            ..Self::plain(kind, call)
        };
        if kind == Kind::Call {
            decoded.service = u32_at(header, 12).ok_or(SHORT)?;
            decoded.method = u32_at(header, 16).ok_or(SHORT)?;
            decoded.time_left_us = u64_at(header, 20).ok_or(SHORT)?;
            // Fields with a flag: each begins where the one before it ends.
            let flagged = header.get(CALL_LEN..).ok_or(SHORT)?;
            if flags & TRACE != 0 {
                let (trace_id, rest) = flagged.split_first_chunk().ok_or(SHORT)?;
                let span_id = rest.first_chunk().ok_or(SHORT)?;
                decoded.trace = TraceContext {
                    trace_id: u128::from_le_bytes(*trace_id),
                    span_id: u64::from_le_bytes(*span_id),
                };
            }
        }
        Ok(decoded)
    }
}

impl Header {
    /// The bytes of `metadata` in which the caller says where it wants results.
    pub(crate) fn places<'a>(&self, metadata: &'a [u8]) -> &'a [u8] {
        let begin = self.body_at - usize::from(self.places_len);
        metadata.get(begin..self.body_at).unwrap_or_default()
    }
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|bytes| u64::from_le_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|bytes| u32::from_le_bytes(*bytes))
}

/// Reads the examples of WIRE.md.
#[cfg(test)]
#[path = "../../tensorpipe/src/wire_md.rs"]
pub(crate) mod examples;
#[cfg(test)]
mod wire_md;

#[cfg(test)]
mod tests;
