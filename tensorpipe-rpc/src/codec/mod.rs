//! Values to bytes and back, tensors and payloads beside them.
//!
//! The bytes are postcard's: arguments one after another, no names, no types. A `Tensor` or `Payload` anywhere in
//! a value travels beside the bytes, which hold its index (see [`tensorpipe::tensor::lift`]). Bytes come from a peer:
//! depth, elements without bytes and the memory that a value takes are limited, and an index is good for one use.
//!
//! `Tensor` and `Payload` serialize as a newtype struct with a name that nobody else has. The codec recognises it and arms a thread-local
//! slot for exactly that nested call. To any other serializer they are plain data.
//!
//! Types that need a self-describing format do not survive postcard: a service with one is refused where it is served or asked for. Debug builds
//! decode what they have encoded, and name the method.

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
#[doc(hidden)]
pub(crate) use encoder::TensorNames;
pub use encoder::{Argument, Encoded, Encoder};
pub use error::{DecodeError, EncodeError, Fault, Subject};
#[doc(hidden)]
pub use reply::REPLY_HEADER;
pub use reply::Reply;
pub(crate) use reply::Returned;

/// How deep values may nest, counting every struct, sequence, option and variant on the way.
pub const MAX_DEPTH: u32 = 128;

/// How much of the stack decoding a value may take, in bytes: what [`MAX_DEPTH`] levels of a large type would be more than
/// the 2 MiB that a thread has.
pub const MAX_STACK: usize = 1 << 20;

/// How many elements of a message's sequences and maps may have no bytes, as those of a `Vec<()>`.
pub const MAX_EMPTY: u32 = 1 << 20;

/// How much memory the elements of a value's sequences and maps may take in bytes, whatever its encoding says...
pub const MEMORY_FLOOR: u64 = 256 << 20;

/// ...and how much more per encoded byte.
pub const MEMORY_FACTOR: u64 = 16;

#[cfg(test)]
mod tests;
