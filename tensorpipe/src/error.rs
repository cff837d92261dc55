//! What can go wrong, sorted by who is to blame.
//!
//! [`Misuse`] is the caller's fault, [`PeerFault`] the peer's (never a bare string), [`SystemError`] what this machine
//! refused, and the rest says how a pipe or an operation ended. Every error is cheap to clone, because the first one
//! of a pipe is given to each operation that is pending or comes later.

use std::sync::Arc;
use std::time::Duration;

use crate::device::Device;
use crate::tensor::DType;

/// The caller asked for something that cannot be done; nothing was sent or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Misuse {
    /// The URL is not of the form `transport://address`.
    #[error("`{url}` is not an address: {reason}; write for example `tcp://127.0.0.1:5000`")]
    Address {
        /// What was given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An allocation does not fit the descriptor it answers.
    #[error(
        "the allocation does not fit the message: {reason}; build it with `Allocation::for_descriptor`"
    )]
    Allocation {
        /// Which part and how.
        reason: String,
    },
    /// Memory is not aligned for the wanted element type.
    #[error(
        "{dtype} needs an alignment of {wanted} bytes, this memory has {found}; call `to_aligned()` first"
    )]
    Alignment {
        /// The element type of the view.
        dtype: DType,
        /// The alignment it needs, in bytes.
        wanted: usize,
        /// The alignment found, in bytes.
        found: usize,
    },
    /// A configuration value is out of range.
    #[error("{what} must be {wanted}, got {found}")]
    Config {
        /// The setting.
        what: &'static str,
        /// The accepted values.
        wanted: String,
        /// The value given.
        found: String,
    },
    /// A device name is not a lower-case word of at most 15 characters, or its index is missing.
    #[error(
        "`{0}` is not a device: write a lower-case kind of at most 15 characters and an index, as in `cuda:0`"
    )]
    Device(String),
    /// The view asked for another element type than the tensor has.
    #[error("this tensor holds {found}, not {wanted}")]
    DType {
        /// The type asked for.
        wanted: DType,
        /// The type held.
        found: DType,
    },
    /// No tokio runtime is running on this thread.
    #[error(
        "no tokio runtime on this thread; call it from inside one, or use `tensorpipe::blocking`"
    )]
    NoRuntime,
    /// The bytes of a tensor live on a device that the CPU cannot read.
    #[error("this tensor lives on {0}, which the CPU cannot read; copy it to the CPU first")]
    NotOnCpu(Device),
    /// A reader wants a part of a message on a device where it cannot be put.
    #[error("{what} cannot be read to {device}: {reason}")]
    OutOfReach {
        /// Which payload or tensor.
        what: String,
        /// The device asked for.
        device: Device,
        /// Why not, and what to do.
        reason: String,
    },
    /// Rows that a tensor does not have.
    #[error(
        "rows {}..{} of a tensor that has {rows}; stay within its first dimension", .range.start, .range.end
    )]
    Rows {
        /// The rows asked for.
        range: std::ops::Range<u64>,
        /// The rows there are.
        rows: u64,
    },
    /// Shape and length disagree.
    #[error("a {dtype} tensor of shape {shape:?} takes {wanted} bytes, got {found}")]
    Shape {
        /// Element type.
        dtype: DType,
        /// The shape given.
        shape: Vec<u64>,
        /// Bytes that the shape needs; `u64::MAX` when it overflows.
        wanted: u64,
        /// Bytes given.
        found: u64,
    },
    /// A message exceeds a limit that this side or the peer has set.
    #[error("{what} of {found} exceeds the limit of {limit}; raise `Limits::{field}` on {side}")]
    TooLarge {
        /// Which part of the message.
        what: &'static str,
        /// Its size, in bytes or items.
        found: u64,
        /// The limit.
        limit: u64,
        /// The field of [`Limits`](crate::Limits).
        field: &'static str,
        /// Whose limit it is: `this side` or `the peer`.
        side: &'static str,
    },
    /// More writes are queued than allowed.
    #[error(
        "{0} writes are queued and not yet handed over; await some of them before queueing more"
    )]
    TooManyWrites(usize),
    /// A transport that the context does not have.
    #[error("this context has no transport `{name}`: {reason}")]
    UnknownTransport {
        /// The scheme of the URL.
        name: String,
        /// Why it is not there, or which there are.
        reason: String,
    },
    /// An element type that the other side of a conversion does not have.
    #[error("{library} has no {dtype} tensors; convert to {instead} first")]
    UnsupportedDType {
        /// Which library lacks it.
        library: &'static str,
        /// The element type, as the library that has it writes it.
        dtype: String,
        /// What both have.
        instead: &'static str,
    },
    /// Anything else, said in words.
    #[error("{0}")]
    Other(String),
}

/// A system call that this machine refused.
#[derive(Clone, Debug)]
pub struct SystemError {
    /// The call, e.g. `connect`.
    pub call: &'static str,
    /// What it was applied to, e.g. an address; may be empty.
    pub object: String,
    /// What the system said.
    pub source: Arc<std::io::Error>,
}

impl SystemError {
    /// Wraps what `call` on `object` returned.
    pub fn new(call: &'static str, object: impl Into<String>, source: std::io::Error) -> Self {
        Self {
            call,
            object: object.into(),
            source: Arc::new(source),
        }
    }
}

impl std::fmt::Display for SystemError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.call)?;
        if !self.object.is_empty() {
            write!(f, " {}", self.object)?;
        }
        write!(f, ": {}", self.source)?;
        match self.source.raw_os_error() {
            Some(libc::EMFILE) => write!(f, "; raise the limit of open files (`ulimit -n`)"),
            Some(libc::EADDRINUSE) => write!(
                f,
                "; another process listens there, choose another port or 0"
            ),
            Some(libc::EACCES | libc::EPERM) => write!(f, "; this user may not do that"),
            _ => Ok(()),
        }
    }
}

/// Without a `source()`, since the message holds it: reporters that walk the chain would say it twice.
impl std::error::Error for SystemError {}

/// How long a wait lasted, for messages.
pub(crate) fn seconds(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        format!("{} ms", duration.as_millis())
    } else {
        format!("{:.1} s", duration.as_secs_f64())
    }
}

/// What the peer did wrong; the pipe ends with it, this process does not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerFault {
    /// The connection does not begin with this protocol's magic bytes.
    #[error("it does not speak this protocol: its first bytes are \"{first}\"{hint}")]
    BadMagic {
        /// What came instead, with escapes where it is not text.
        first: String,
        /// What that looks like.
        hint: &'static str,
    },
    /// It needs a version that this side does not speak.
    #[error(
        "it speaks versions {low} to {high} of the protocol, this side {our_low} to {our_high}; upgrade the older one"
    )]
    Version {
        /// The lowest it speaks.
        low: u16,
        /// The highest it speaks.
        high: u16,
        /// The lowest spoken here.
        our_low: u16,
        /// The highest spoken here.
        our_high: u16,
    },
    /// A frame ends before its fields do.
    #[error("a {frame} frame is cut short")]
    Truncated {
        /// The frame.
        frame: &'static str,
    },
    /// A field has a value that means nothing.
    #[error("a {frame} frame holds {what}")]
    Malformed {
        /// The frame.
        frame: &'static str,
        /// What is wrong.
        what: &'static str,
    },
    /// A frame is longer than this side allows.
    #[error("a {frame} frame of {len} bytes exceeds the limit of {limit}")]
    FrameTooLarge {
        /// The frame.
        frame: &'static str,
        /// Its length, in bytes.
        len: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// A part of a message is larger than this side allows.
    #[error("{what} of {found} exceeds this side's limit of {limit}")]
    LimitExceeded {
        /// The part.
        what: &'static str,
        /// Bytes or items.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// A frame kind that this version does not know, not marked as optional.
    #[error("it sent a frame of the unknown kind {kind}")]
    UnknownFrame {
        /// The kind's code.
        kind: u8,
    },
    /// A known frame where it has no meaning.
    #[error("it sent a {frame} frame {when}")]
    Unexpected {
        /// The frame.
        frame: &'static str,
        /// At which point.
        when: &'static str,
    },
    /// It names a message or part that is not under way.
    #[error("a {frame} frame names message {message}, which is not under way")]
    UnknownMessage {
        /// The frame.
        frame: &'static str,
        /// The message.
        message: u64,
    },
    /// It sent more than it was given credit for.
    #[error("it sent {what} beyond its credit of {limit}")]
    CreditExceeded {
        /// What.
        what: &'static str,
        /// The cumulative limit.
        limit: u64,
    },
    /// It chose something that was not offered.
    #[error("its answer names {what}, which was not offered")]
    NotOffered {
        /// The choice.
        what: String,
    },
    /// A channel's own bytes make no sense.
    #[error("channel `{channel}`: {what}")]
    Channel {
        /// The channel.
        channel: &'static str,
        /// What is wrong.
        what: String,
    },
}

/// Why a message was abandoned or refused. Travels as one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResetCode {
    /// The application does not want it; not an error.
    Skipped,
    /// The application gave up on it.
    Cancelled,
    /// A deadline passed.
    Deadline,
    /// The application refused it, for the reason in the text.
    Refused,
    /// This end is closing.
    Closing,
    /// The channel or the memory failed.
    Failed,
    /// A code of a later version.
    Other(u8),
}

impl ResetCode {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Skipped => 0,
            Self::Cancelled => 1,
            Self::Deadline => 2,
            Self::Refused => 3,
            Self::Closing => 4,
            Self::Failed => 5,
            Self::Other(code) => code,
        }
    }

    pub(crate) fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Skipped,
            1 => Self::Cancelled,
            2 => Self::Deadline,
            3 => Self::Refused,
            4 => Self::Closing,
            5 => Self::Failed,
            other => Self::Other(other),
        }
    }
}

impl std::fmt::Display for ResetCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Skipped => f.write_str("skipped"),
            Self::Cancelled => f.write_str("cancelled"),
            Self::Deadline => f.write_str("its deadline passed"),
            Self::Refused => f.write_str("refused"),
            Self::Closing => f.write_str("the other end is closing"),
            Self::Failed => f.write_str("the transfer failed"),
            Self::Other(code) => write!(f, "reason {code}"),
        }
    }
}

/// How a pipe or one of its operations ended.
///
/// Cheap to clone: the first error of a pipe is given to every pending and later operation.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller's fault; nothing was sent.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// The peer broke the protocol; the pipe has ended.
    #[error("pipe {pipe}: the peer broke the protocol: {fault}")]
    Peer {
        /// The pipe's name.
        pipe: Arc<str>,
        /// What it did.
        fault: PeerFault,
    },
    /// This machine refused something.
    #[error(transparent)]
    System(#[from] SystemError),
    /// No pipe could be made to this address.
    #[error("no pipe to {url} after {} and {attempts} attempt{}: {source}", seconds(*.waited), if *.attempts == 1 { "" } else { "s" })]
    Connect {
        /// Where to.
        url: Arc<str>,
        /// How long it was tried.
        waited: Duration,
        /// How many times.
        attempts: u32,
        /// What the last attempt met. Raw, so that it is no `source()`: the message holds it already, and reporters that
        /// walk the chain would say everything twice.
        r#source: Box<Self>,
    },
    /// The listener does not want this pipe, or a connection that was to become one of its.
    #[error("{peer} refused the pipe: {reason}")]
    Rejected {
        /// The listener's name, or its address.
        peer: Arc<str>,
        /// In its words.
        reason: Arc<str>,
        /// Whether trying again later can help.
        transient: bool,
    },
    /// The connection broke without a goodbye: the peer's process or machine is gone, or the network is.
    #[error("pipe {pipe}: the connection to the peer was lost: {reason}")]
    Lost {
        /// The pipe's name.
        pipe: Arc<str>,
        /// What the transport said.
        reason: Arc<str>,
    },
    /// Nothing was heard from the peer for too long.
    #[error("pipe {pipe}: nothing heard from the peer for {}: it hangs, or the network is cut; raise `Timeouts::silence` if it may block that long", seconds(*.silence))]
    Silent {
        /// The pipe's name.
        pipe: Arc<str>,
        /// For how long.
        silence: Duration,
    },
    /// The pipe was closed in good order.
    #[error("pipe {pipe} was closed by {}", if *.by_peer { "the peer" } else { "this side" })]
    Closed {
        /// The pipe's name.
        pipe: Arc<str>,
        /// By the peer, or here.
        by_peer: bool,
    },
    /// The peer did not take in time what was written before closing.
    #[error("pipe {pipe}: the peer did not take within {} what was written before closing; raise `Timeouts::linger` if it may be that slow", seconds(*.linger))]
    Undelivered {
        /// The pipe's name.
        pipe: Arc<str>,
        /// The bound on closing.
        linger: Duration,
    },
    /// This side had to end the pipe: its memory, one of its channels, or its handler failed.
    #[error("pipe {pipe} was ended by this side: {reason}")]
    Ended {
        /// The pipe's name.
        pipe: Arc<str>,
        /// In words.
        reason: Arc<str>,
    },
    /// The peer takes no more messages; this one was not looked at.
    #[error(
        "pipe {pipe}: the peer takes no more messages ({reason}); this one was not processed, send it elsewhere"
    )]
    GoingAway {
        /// The pipe's name.
        pipe: Arc<str>,
        /// In the peer's words.
        reason: Arc<str>,
    },
    /// The writer abandoned this message.
    #[error("the peer abandoned the message: {code}{}{reason}", if .reason.is_empty() { "" } else { ": " })]
    Reset {
        /// Why.
        code: ResetCode,
        /// In the peer's words.
        reason: Arc<str>,
    },
    /// The reader did not want this message.
    #[error("the peer did not take the message: {code}{}{reason}", if .reason.is_empty() { "" } else { ": " })]
    Refused {
        /// Why.
        code: ResetCode,
        /// In the peer's words.
        reason: Arc<str>,
    },
    /// A bounded wait ended.
    #[error("{what} took longer than {}{}{hint}", seconds(*.after), if .hint.is_empty() { "" } else { "; " })]
    Timeout {
        /// What was waited for.
        what: Arc<str>,
        /// The bound.
        after: Duration,
        /// What to do.
        hint: &'static str,
    },
    /// A channel could not move a tensor.
    #[error("channel `{channel}`: {reason}")]
    Channel {
        /// The channel.
        channel: &'static str,
        /// In words.
        reason: Arc<str>,
    },
    /// There is not enough memory for a message.
    #[error("no memory for a message of {bytes} bytes: {reason}")]
    OutOfMemory {
        /// The size wanted.
        bytes: u64,
        /// The limit that was met, and how to raise it.
        reason: Arc<str>,
    },
}

impl Error {
    /// Whether the whole pipe has ended, not only this operation.
    pub fn ends_pipe(&self) -> bool {
        matches!(
            self,
            Self::Peer { .. }
                | Self::Lost { .. }
                | Self::Silent { .. }
                | Self::Closed { .. }
                | Self::Rejected { .. }
                | Self::Undelivered { .. }
                | Self::Ended { .. }
                | Self::System(_)
        )
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn a_message_is_whole_and_no_source_repeats_it() {
        let refused = std::io::Error::from_raw_os_error(libc::ECONNREFUSED);
        let source = Box::new(SystemError::new("connect", "host:1", refused).into());
        let error = Error::Connect {
            url: "tcp://host:1".into(),
            waited: Duration::from_secs(2),
            attempts: 3,
            source,
        };
        let said = error.to_string();
        assert!(said.starts_with("no pipe to tcp://host:1 after 2.0 s and 3 attempts: connect host:1: Connection refused"), "{said}");
        assert!(error.source().is_none());
    }
}
