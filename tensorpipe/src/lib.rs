//! A tensor-aware message pipe: two ends agree on the first transport and channels, in order of preference, that reach
//! from one to the other.
//!
//! ```text
//!      writer                                                      reader
//!
//!  Message { metadata, payloads, tensors }
//!     │ Pipe::write                            Pipe::read_descriptor │
//!     ▼                                                              ▼
//!  descriptor, small parts ────────── the pipe's connection ────▶ Incoming (what comes)
//!                                                                    │ read, read_into(Allocation)
//!     ◀────────────── go-ahead, where no credit was left ──────────── ▼
//!  large parts ════════════ a channel for each pair of devices ═══▶ Message, where the reader wants it
//!     │                                                              │
//!     ▼                                                              ▼
//!  Write ends: the bytes are handed over                          Read ends: the bytes are there
//! ```
//!
//! ```
//! use tensorpipe::{Context, Message, Tensor};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), tensorpipe::Error> {
//! let context = Context::new();
//! let listener = context.listen(["tcp://127.0.0.1:0"]).await?;
//! let (client, server) = tokio::try_join!(context.connect(listener.url()), listener.accept())?;
//!
//! let tensor = Tensor::from(vec![1.0f32, 2.0, 3.0]);
//! let written = client.write(Message::new("three numbers").tensor(tensor));
//!
//! let incoming = server.read_descriptor().await?;
//! assert_eq!(&incoming.descriptor().metadata[..], b"three numbers");
//! let message = incoming.read().await?;
//! written.await?;
//! assert_eq!(message.tensors[0].tensor.as_slice::<f32>()?, [1.0, 2.0, 3.0]);
//!
//! client.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Where to begin
//!
//! [`Context`] holds the backends, the pool, limits and timeouts; [`Context::listen`] and [`Context::connect`] make
//! [`Pipe`]s. [`Pipe::route`] says what was chosen, and why nothing else. A transport, channel or kind of device of your own implements
//! the traits of [`transports`], [`channels`] and [`device`]. Calls, with `#[tensor_service]`, are the crate `tensorpipe-rpc`.
//!
//! # Features
//!
//! None is on by default; each only adds.
//!
//! | feature | meaning |
//! |---|---|
//! | `serde` | [`Tensor`] and [`Payload`] implement serde's traits |
//! | `ndarray` | arrays of ndarray become tensors without a copy where their layout allows it; a [`Tensor`] is viewed as an array |
//! | `candle` | conversions from and to `candle_core::Tensor`, on the CPU |
//! | `safetensors` | tensors borrowed from a memory-mapped `.safetensors` file |
//! | `blocking` | module `blocking`: twins of [`Context`], [`Listener`] and [`Pipe`] for plain threads |
//! | `conformance` | module `conformance`, for tests: the suites that every transport, channel and device passes, for yours too, and devices without hardware |
//! | `fuzzing` | what the fuzz targets of this repository run; hidden, and not covered by the version's promises |
//!
//! # What can be relied on
//!
//! - Messages arrive in the order in which they were written, whole or not at all. What was written before
//!   [`Pipe::close`], or before the last handle was dropped, is delivered, for as long as [`Timeouts::linger`].
//! - Futures may be dropped at any await: no bytes are mixed up, no memory is lost, the pipe goes on. What happens to
//!   the operation is said at each one.
//! - A pipe that ends without good order gives its error to every pending and later operation.
//! - Bytes of a peer do not panic, abort or hang this process, and memory grows with the bytes that came, not with
//!   those announced. [`Limits`] and [`Timeouts`] bound everything but waiting for an application.
//! - A slow reader slows its own writer, and nobody else.
//!
//! # Limits
//!
//! - Pipes live on the tokio runtime of the task that made them; without one there is [`Misuse::NoRuntime`].
//! - Contexts, pools, listeners and pipes are not for forked children, which have neither their threads nor their
//!   shared memory: a child makes its own. A pipe over shared memory fails there; to touch a tensor that lies in
//!   shared memory ends the child with SIGSEGV. What is one for each process, as [`Context::global`], it has anew. What it
//!   drops stays as it is at its parent.
//! - A peer that says nothing for [`Timeouts::silence`] (10 s) is given up, although it was pinged. A task that blocks a
//!   thread of its runtime may keep all pipes there from being driven, even while other threads of the runtime sleep. A thread
//!   of the crate wakes those within a second or two; where none is left, it tells the peers that the process lives, for
//!   [`Timeouts::blocked`] (60 s). Nothing else moves meanwhile: put long computations into `spawn_blocking`.
//! - A peer is who it says it is. There is no encryption and no authentication yet: listen where only friends can connect.
//! - Lent memory stays writable for its owner: a malicious peer can change numbers under their reader. To parse a payload, take
//!   [`Payload::into_bytes`].
//! - Between processes of one machine tensors of a [`Pool`] are lent instead of copied, others are copied through shared memory;
//!   between machines they travel over tcp. GPUs and RDMA are not there yet.
//! - Linux, little-endian, 64 bits.

mod address;
mod config;
mod context;
mod descriptor;
mod error;
mod listener;
#[doc(hidden)]
pub mod log_limit;
mod message;
mod negotiate;
mod pipe;
mod process;
mod proto;
mod ring;
mod route;
mod stop;
mod sync;
mod sys;
#[cfg(test)]
mod wire_md;

#[cfg(feature = "blocking")]
pub mod blocking;
pub mod channels;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod device;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod tensor;
pub mod transports;

/// For `tensorpipe-rpc`; not covered by the version's promises.
#[doc(hidden)]
pub mod fork {
    pub use crate::sys::fork::{Owner, PerProcess};
}

pub use address::{Identity, PeerAddr, Url};
pub use config::{ConnectPolicy, Limits, Timeouts};
pub use context::{Context, ContextBuilder};
pub use descriptor::{Descriptor, PayloadDescriptor, TensorDescriptor};
pub use device::{
    Allocator, Buffer, BufferMut, Copying, Device, DeviceKind, DevicePool, Fence, LendableStats,
    Memory, MemoryKind, Pool, PoolOptions, PoolStats, QueuedWork,
};
pub use error::{DeviceError, Error, Misuse, PeerFault, ResetCode, SystemError};
pub use listener::Listener;
pub use message::{Allocation, Message, MessageTensor, Payload, Place};
pub use pipe::{
    Awaiting, Flush, Handler, Held, Incoming, MessageStats, Outbound, PeerLimits, Pipe, PipeStats,
    Read, ReadError, ReadInto, Write,
};
pub use route::{
    Band, Carried, Carrier, ChannelChoice, ChannelRoute, Pays, Refusal, Route, Setback, Threshold,
};
pub use tensor::{DType, Element, IntoShape, Shape, Tensor};
