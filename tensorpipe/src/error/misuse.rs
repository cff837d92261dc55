//! What the caller did wrong. Nothing was sent, and each says what to do instead.

use crate::device::Device;
use crate::tensor::DType;

/// The caller asked for something that cannot be done; nothing was sent. A message that was to be read into unsuitable memory is skipped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Misuse {
    /// The URL is not of the form `transport://address`.
    #[error("`{url}` is not an address: {reason}")]
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
    /// A dimension is below zero.
    #[error(
        "dimension {index} of the shape is {found}: dimensions are 0 or more; check how it was computed"
    )]
    NegativeDim {
        /// Which, from 0.
        index: usize,
        /// What was given.
        found: i64,
    },
    /// Memory was asked for on a device that the context does not have.
    #[error(
        "this context has no memory of {device}; {reason}, or give its allocator to `ContextBuilder::allocator`"
    )]
    NoAllocator {
        /// The device.
        device: Device,
        /// The devices that it has.
        reason: String,
    },
    /// No tokio runtime is running on this thread.
    #[error(
        "no tokio runtime on this thread; call it from inside one, as `#[tokio::main]` makes it; for pipes there is `tensorpipe::blocking`, too"
    )]
    NoRuntime,
    /// No channel that the [context](crate::ContextBuilder::require) or the [message](crate::Message::require) requires carries it.
    #[error(
        "{what} cannot go over {required}, which is required, only over {instead}: {reason}; mend that, or require less"
    )]
    NotAsRequired {
        /// Which payload or tensor, from where to where.
        what: Box<str>,
        /// The channels.
        required: Box<str>,
        /// The channel that would have carried it, or `nothing`.
        instead: Box<str>,
        /// Why the required channels do not carry it.
        reason: Box<str>,
    },
    /// The bytes of a tensor live on a device that the CPU cannot read.
    #[error("this tensor lives on {0}, which the CPU cannot read; copy it to the CPU first")]
    NotOnCpu(Device),
    /// The only element was asked for, of a tensor that does not have exactly one.
    #[error(
        "`item` needs a tensor of exactly one element, this one of shape {shape:?} has {found}; use `as_slice`"
    )]
    NotOneElement {
        /// Its shape.
        shape: Vec<u64>,
        /// How many elements it has.
        found: u64,
    },
    /// The writer or the reader of a message wants a part on a device where it cannot be placed.
    #[error("{what} cannot be put on {device}: {reason}")]
    OutOfReach {
        /// Which payload or tensor.
        what: String,
        /// The device at the reader that was asked for.
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
        /// Bytes that the shape needs.
        wanted: u64,
        /// Bytes given.
        found: u64,
    },
    /// A shape whose bytes cannot be counted.
    #[error(
        "a {dtype} tensor of shape {shape:?} has more bytes than fit in 64 bits: no memory holds it; check the dimensions"
    )]
    ShapeTooLarge {
        /// Element type.
        dtype: DType,
        /// The shape given.
        shape: Vec<u64>,
    },
    /// A message exceeds a limit of the end that would receive it.
    #[error(
        "{found} {what} exceed the limit of {limit}; raise `Limits::{field}` at the receiving end"
    )]
    TooLarge {
        /// What is counted: bytes or parts, and of what.
        what: &'static str,
        /// How many there are.
        found: u64,
        /// How many there may be.
        limit: u64,
        /// The field of [`Limits`](crate::Limits).
        field: &'static str,
    },
    /// A shape has more dimensions than a tensor can have.
    #[error(
        "the shape has {found} dimensions, a tensor at most {}; merge some of them",
        crate::tensor::MAX_DIMS
    )]
    TooManyDims {
        /// How many.
        found: usize,
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
