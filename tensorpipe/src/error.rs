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

impl std::error::Error for SystemError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.source)
    }
}

/// How long a wait lasted, for messages.
pub(crate) fn seconds(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        format!("{} ms", duration.as_millis())
    } else {
        format!("{:.1} s", duration.as_secs_f64())
    }
}
