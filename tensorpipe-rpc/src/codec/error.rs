//! Why a value could not be encoded or decoded.
//!
//! A [`Fault`] says what is wrong. [`EncodeError`] and [`DecodeError`] add the value and the method.

use std::fmt;
use std::sync::Arc;

use serde::{de, ser};
use tensorpipe::Device;

use super::{MAX_DEPTH, MAX_EMPTY, MAX_STACK};

/// A value that this end could not encode: calls cannot carry its type, or it is too large.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodeError {
    pub(super) method: Option<&'static str>,
    pub(super) subject: Subject,
    pub(super) fault: Fault,
    /// The value was encoded, but its own encoding does not decode.
    pub(super) fails_read_back: bool,
}

impl EncodeError {
    /// Adds the method's name.
    #[must_use]
    pub fn in_method(mut self, method: &'static str) -> Self {
        self.method = Some(method);
        self
    }

    /// The value's `Serialize` panicked.
    #[cfg(feature = "tarpc")]
    pub(crate) fn panicked(subject: Subject, panic: &str) -> Self {
        Self {
            method: None,
            subject,
            fault: Fault::custom(&format_args!("its `Serialize` panicked: {panic}")),
            fails_read_back: false,
        }
    }

    /// The value that could not be encoded.
    pub fn subject(&self) -> Subject {
        self.subject
    }

    /// What is wrong with it.
    pub fn fault(&self) -> &Fault {
        &self.fault
    }
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subject, fault, .. } = self;
        match self.method {
            Some(method) => write!(f, "{subject} of `{method}` ")?,
            None => write!(f, "{subject} ")?,
        }
        if self.fails_read_back {
            write!(f, "cannot be read back from its own encoding: {fault}")?;
            if !fault.names_the_cause() {
                f.write_str(
                    "; look for `skip_serializing_if`, `skip_serializing`, `untagged`, `tag` or `flatten` in its type, \
                     or a `Serialize` that does not match its `Deserialize`",
                )?;
            }
            Ok(())
        } else {
            write!(f, "cannot be encoded: {fault}")
        }
    }
}

impl std::error::Error for EncodeError {}

/// Bytes from the peer that do not decode to the value that this end expects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeError {
    pub(super) method: Option<&'static str>,
    pub(super) subject: Subject,
    pub(super) fault: Fault,
}

impl DecodeError {
    pub(super) fn new(subject: Subject, fault: Fault) -> Self {
        Self {
            method: None,
            subject,
            fault,
        }
    }

    /// Adds the method's name.
    #[must_use]
    pub fn in_method(mut self, method: &'static str) -> Self {
        self.method = Some(method);
        self
    }

    /// The value's `Deserialize` panicked.
    #[cfg(feature = "tarpc")]
    pub(crate) fn panicked(subject: Subject, panic: &str) -> Self {
        let fault = Fault::custom(&format_args!("its `Deserialize` panicked: {panic}"));
        Self::new(subject, fault)
    }

    /// The value that could not be decoded.
    pub fn subject(&self) -> Subject {
        self.subject
    }

    /// What is wrong with it.
    pub fn fault(&self) -> &Fault {
        &self.fault
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subject, fault, .. } = self;
        match self.method {
            Some(method) => write!(f, "{subject} of `{method}` cannot be decoded: {fault}")?,
            None => write!(f, "{subject} cannot be decoded: {fault}")?,
        }
        if !fault.names_the_cause() {
            f.write_str("; check that both ends were built from the same definition of its type")?;
        }
        Ok(())
    }
}

impl std::error::Error for DecodeError {}

/// The value that an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Subject {
    /// The argument of this name.
    Argument(&'static str),
    /// All arguments together.
    Arguments,
    /// A request of tarpc's.
    Request,
    /// A message of tarpc's within a type of the application's.
    Message,
    /// What the method returned.
    Reply,
    /// The error that the method returned.
    Error,
    /// An item of a stream.
    Item,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Argument(name) => write!(f, "argument `{name}`"),
            Self::Arguments => f.write_str("the list of arguments"),
            Self::Request => f.write_str("the request"),
            Self::Message => f.write_str("the message"),
            Self::Reply => f.write_str("the reply"),
            Self::Error => f.write_str("the error"),
            Self::Item => f.write_str("an item of the stream"),
        }
    }
}

/// What is wrong with a value or its bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// An error of the type's own `Serialize` or `Deserialize`.
    #[error("{0}")]
    Custom(Box<str>),
    /// More than [`MAX_DEPTH`] levels.
    #[error(
        "it nests deeper than {MAX_DEPTH} levels; keep the nodes of a recursive type in a `Vec` and refer to them by index"
    )]
    TooDeep,
    /// More than [`MAX_STACK`] bytes of the stack.
    #[error(
        "its nested values take more than {MAX_STACK} bytes of the stack; box the large parts of a recursive type"
    )]
    TooMuchStack,
    /// More than [`MAX_EMPTY`] elements that take no bytes.
    #[error("more than {MAX_EMPTY} of its elements take no bytes; send their number instead")]
    TooManyEmpty,
    /// It takes far more memory than its bytes.
    #[error(
        "its elements take far more memory than its bytes; box what is large and mostly absent"
    )]
    TooMuchMemory,
    /// The receive budget has no room for the elements' memory.
    #[error("{reason}")]
    OutOfMemory {
        /// Others have a part of what is missing: later there may be room.
        others: bool,
        /// In words.
        reason: Arc<str>,
    },
    /// More than `u32::MAX` tensors or payloads.
    #[error(
        "it holds more than {} tensors or payloads; send several calls",
        u32::MAX
    )]
    TooManyParts,
    /// A map that does not know its length when it begins.
    #[error(
        "a map of unknown length cannot be sent, and `#[serde(flatten)]` makes one; make the flattened struct a plain field"
    )]
    Flattened,
    /// A field was left out, which the reader cannot notice.
    #[error(
        "field `{0}` was left out, which the other end cannot see; remove `#[serde(skip_serializing_if)]` from it"
    )]
    SkippedField(&'static str),
    /// A sequence or map did not hold what it announced.
    #[error("its `Serialize` announced {announced} elements and wrote {written}")]
    WrongLength {
        /// The length at the beginning.
        announced: usize,
        /// The number of elements.
        written: usize,
    },
    /// The type asks the format what comes next.
    #[error(
        "its `Deserialize` asks the format what comes next ({0}), as `#[serde(untagged)]`, `#[serde(tag = ..)]`, \
         `#[serde(flatten)]` and `serde_json::Value` do; use a plain enum or struct"
    )]
    SelfDescribing(&'static str),
    /// A newtype struct has a name that is reserved.
    #[error("the name `{0}` belongs to tensorpipe; rename this newtype struct")]
    ReservedName(&'static str),
    /// Batches compare the value's bytes, but it holds parts beside them.
    #[error(
        "it holds a tensor, payload or reference, and calls are batched by its value; make each tensor an argument of its own"
    )]
    PartInBatchKey,
    /// A tensor is on another device than its method requires.
    #[error(
        "a tensor was sent to {found}, and the trait says `#[tensor(device = \"{wanted}\")]`: name that device as its target"
    )]
    WrongDevice {
        /// Where it is.
        found: Device,
        /// Where it must be.
        wanted: Device,
    },
    /// Fewer bytes than the type needs.
    #[error("the bytes end early")]
    Truncated,
    /// Bytes that are no value of the type.
    #[error("{0}")]
    Malformed(&'static str),
    /// An index outside the message.
    #[error("it refers to {kind} {index}, the message has {count}")]
    NoSuchPart {
        /// `tensor` or `payload`.
        kind: &'static str,
        /// The index.
        index: u32,
        /// How many the message has.
        count: usize,
    },
    /// An index that was used before.
    #[error("it refers to {kind} {index}, which was taken before")]
    PartTaken {
        /// `tensor` or `payload`.
        kind: &'static str,
        /// The index.
        index: u32,
    },
    /// The message has more than the types hold.
    #[error("{bytes} bytes, {tensors} tensors and {payloads} payloads are left over")]
    LeftOver {
        /// Bytes that nobody read.
        bytes: usize,
        /// Tensors that nobody took.
        tensors: usize,
        /// Payloads that nobody took.
        payloads: usize,
    },
}

impl Fault {
    /// Whether the fault's text already says what to change.
    fn names_the_cause(&self) -> bool {
        !matches!(
            self,
            Self::Custom(_)
                | Self::Truncated
                | Self::Malformed(_)
                | Self::NoSuchPart { .. }
                | Self::PartTaken { .. }
                | Self::LeftOver { .. }
        )
    }

    #[cold]
    fn custom(message: &dyn fmt::Display) -> Self {
        Self::Custom(message.to_string().into_boxed_str())
    }
}

impl ser::Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::custom(&message)
    }
}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::custom(&message)
    }
}

impl From<postcard::Error> for Fault {
    #[cold]
    fn from(error: postcard::Error) -> Self {
        use postcard::Error;
        match error {
            Error::DeserializeUnexpectedEnd => Self::Truncated,
            Error::DeserializeBadVarint => Self::Malformed("a number is too long for its type"),
            Error::DeserializeBadBool => Self::Malformed("a bool is neither 0 nor 1"),
            Error::DeserializeBadChar => Self::Malformed("a char is no character"),
            Error::DeserializeBadUtf8 => Self::Malformed("a string is not UTF-8"),
            other => Self::custom(&other),
        }
    }
}
