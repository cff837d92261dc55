//! Values to bytes and back. Tensors and payloads travel beside the bytes.
//!
//! The bytes are postcard's: arguments one after another, without names or types. A `Tensor` or `Payload` anywhere in a value
//! travels beside the bytes, which hold its index (see [`tensorpipe::tensor::lift`]). A peer wrote the bytes, so depth, empty
//! elements and the memory of a value are limited, and each index can be used only once.
//!
//! `Tensor` and `Payload` serialize as a newtype struct with a reserved name. The codec recognises it and arms a thread-local slot
//! for exactly that nested call. To any other serializer they are plain data.
//!
//! Types that need a self-describing format cannot be read back from postcard, nor can some others, such as an enum with
//! `#[serde(skip)]` before other variants. A service with such a type is refused when it is served or bound.
//! Debug builds decode all that they encode, and name the method on a failure.

mod access;
mod arguments;
mod deserializer;
mod encoder;
mod error;
mod reply;
mod sequence;
mod serializer;

pub use arguments::Arguments;
#[doc(hidden)]
pub use arguments::decode_reply;
#[cfg(feature = "tarpc")]
pub(crate) use arguments::decode_whole;
pub use encoder::{Argument, Encoded, Encoder};
#[doc(hidden)]
pub(crate) use encoder::{TensorNames, read_fault};
pub use error::{DecodeError, EncodeError, Fault, Subject};
#[doc(hidden)]
pub use reply::REPLY_HEADER;
pub use reply::Reply;
pub(crate) use reply::Returned;

/// How deep values may nest, counting every struct, sequence, option and variant on the way.
pub const MAX_DEPTH: u32 = 128;

/// How much of the stack decoding a value may take, in bytes. [`MAX_DEPTH`] levels of a large type alone would need more than the 2
/// MiB that a thread has.
pub const MAX_STACK: usize = 1 << 20;

/// How many elements of a message's sequences and maps may take no bytes, such as those of a `Vec<()>`.
pub const MAX_EMPTY: u32 = 1 << 20;

/// The memory, in bytes, that the elements of a value's sequences and maps, and what is in a `Box`, may take, however short its
/// encoding is.
pub const MEMORY_FLOOR: u64 = 256 << 20;

/// How much more it may take per encoded byte.
pub const MEMORY_FACTOR: u64 = 32;

/// How much of that an argument may take, beside as many bytes as its encoding has, before it counts in
/// [`Limits::receive_budget`](tensorpipe::Limits::receive_budget). Items of streams and messages of tarpc do not count: a method that
/// keeps them bounds them itself.
pub const MEMORY_UNCOUNTED: u64 = 64 << 10;

#[cfg(test)]
mod tests;
