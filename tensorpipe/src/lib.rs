//! Messages that carry tensors, within a process, between processes, and between machines.
//!
//! A *pipe* is a two-way stream of messages between two contexts. It runs over one *transport*, which makes connections: streams of bytes.
//! The memory of tensors moves over *channels*, which may do better than a stream: lend it, or let the peer read it where it is. The two
//! ends agree on the first transport and channels, in order of preference, that reach from one to the other.
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
//! A pipe has some *credit*: bytes that its writer may send before the reader asks for them. What goes beyond waits for the reader's
//! go-ahead, so the reader decides first where it wants them. Here both ends are in one process:
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
//! | type | what |
//! |---|---|
//! | [`Context`] | a process's transports, channels, memory, limits and name; [`Context::listen`] and [`Context::connect`] make pipes |
//! | [`Pipe`] | the two-way stream of messages; [`Pipe::route`] says what was chosen, and why nothing else |
//! | [`Message`] | metadata (short, and seen before the rest is read), payloads (bytes) and tensors |
//! | [`Incoming`] | a message that has come: look at its [`Descriptor`], then read it, read it into memory of your own, skip or refuse it |
//! | [`Tensor`] | bytes on a device with an element type and a shape; a clone is a handle |
//! | [`Pool`] | warm memory; its tensors are lent to other processes of the machine without a copy |
//!
//! Calls, with `#[tensor_service]`, are the crate `tensorpipe-rpc`. A transport, channel or kind of device of your own implements the
//! traits of [`transports`], [`channels`] and [`device`].
//!
//! # How a tensor travels
//!
//! | between | transport | tensors go over |
//! |---|---|---|
//! | two ends in one process | `memory` | `xth`: the handle is handed over |
//! | processes of one user on one machine | `shm` | `lease`: memory of a [`Pool`] is lent, other memory is copied once and lent; `cma`: the reader copies once |
//! | machines | `tcp` | `basic`: the pipe's connection; `mpt`, where both ask for it: several connections |
//! | GPUs (feature `cuda`) | any | `cuda_xth`, `cuda_ipc`, `cuda_basic`; tested on a driver for tests, and on one H200 |
//! | a [`device`] of your own | any | a channel of your own; without one the write fails, and [`Tensor::to`] copies to main memory |
//!
//! A small tensor rides in its message's own frame. [`Route`] prints from which size on each channel is used;
//! [`ContextBuilder::threshold`] changes that.
//!
//! # Features
//!
//! None is on by default; each only adds.
//!
//! | feature | meaning |
//! |---|---|
//! | `serde` | [`Tensor`] and [`Payload`] implement serde's traits |
//! | `ndarray` | arrays of ndarray become tensors without a copy where their layout allows it; a [`Tensor`] is viewed as an array |
//! | `candle` | conversions from and to `candle_core::Tensor`, on the CPU: for a GPU candle needs `nvcc`, which this crate is not built with |
//! | `safetensors` | tensors borrowed from a memory-mapped `.safetensors` file |
//! | `dlpack` | tensors of PyTorch, NumPy, CuPy, JAX and others by DLPack, without a copy; on GPUs with `cuda` |
//! | `cuda` | NVIDIA GPUs, by a driver that is found at run time: module `device::cuda` |
//! | `tls` | transport `tls`: TLS 1.3 around tcp, server or mutual |
//! | `blocking` | module `blocking`: twins of [`Context`], [`Listener`] and [`Pipe`] for plain threads |
//! | `conformance` | module `conformance`, for tests: the suites that every transport, channel and device passes, for yours too |
//! | `testing` | module `testing`, for tests: a simulated network on a virtual clock, for services of your own |
//! | `fuzzing` | what the fuzz targets of this repository run; hidden, and not covered by the version's promises |
//!
//! # What can be relied on
//!
//! - Messages arrive in the order in which they were written, whole or not at all. What was written before
//!   [`Pipe::close`], or before the last handle was dropped, is delivered, for as long as [`Timeouts::linger`].
//! - Futures may be dropped at any await: no bytes are mixed up, no memory is lost, the pipe goes on. Each operation says what
//!   becomes of it then.
//! - A pipe that ends out of order gives its error to every pending and later operation.
//! - Bytes of a peer do not panic, abort or hang this process. Memory grows with the bytes that came, not with those announced.
//! - A slow reader slows its own writer, and nobody else.
//!
//! # What to know
//!
//! - **Trust.** Without a [token](ContextBuilder::token) or TLS (feature `tls`) a peer is who it says it is: listen where only friends can
//!   connect. `SECURITY.md` says what is promised.
//! - **A runtime.** Pipes live on the tokio runtime of the task that made them; without one there is [`Misuse::NoRuntime`].
//!   If nobody runs that one, as one of `current_thread` outside its `block_on`, who waits on another runtime is served several times a
//!   second only, and a warning is logged.
//! - **Do not block it.** A task that blocks its thread may keep all pipes of the runtime from being driven. A thread of the crate tells
//!   the peers that the process lives, for [`Timeouts::blocked`] (60 s). Put long computations into `spawn_blocking`.
//! - **Lent memory** stays writable for its owner: a malicious peer can change numbers under their reader. To parse a payload, take
//!   [`Payload::into_bytes`]. To borrow nothing, prefer
//!   [`LeaseChannel::lends_only`](channels::LeaseChannel::lends_only).
//! - **Forks.** A forked child makes contexts, pools, listeners and pipes of its own. A pipe over shared memory fails there; to touch a tensor
//!   that lies in shared memory ends the child with SIGSEGV. What it drops stays as it is at its parent. [`Context::global`] is new in it.
//!   It keeps its parent's connections: where it outlives a parent that was killed, peers hear of that by [`Timeouts::silence`] only.
//! - **Memory that glibc keeps.** A process whose peers come and go has holes in glibc's arenas: 200 MiB after 1000 killed peers, of which 3
//!   were in use. With `MALLOC_ARENA_MAX=1`, `MALLOC_MMAP_THRESHOLD_=65536` and `MALLOC_TRIM_THRESHOLD_=65536` it stayed at 8, with jemalloc at 45.
//! - **Linux**, little-endian, 64 bits.
//!
//! # Limits
//!
//! [`Limits`], [`Timeouts`] and [`ConnectPolicy`] of a context bound everything but waiting for an application
//! ([`Listener::accept`], [`Pipe::read_descriptor`]). Their fields say what happens at each bound. The ones that programs meet:
//!
//! | what | default | changed by |
//! |---|---|---|
//! | one message: metadata; a payload; a tensor; parts | 1 MiB; 8 GiB; 64 GiB; 4096 | [`Limits`] |
//! | messages that a slow reader has not read | 1024, 4 MiB of their frames | [`Limits::window_messages`], [`Limits::window_bytes`] |
//! | messages queued by a writer | 65536 | [`Limits::queued_writes`] |
//! | memory of messages that are being read | half of the machine's, or of the control group's | [`Limits::receive_budget`] |
//! | messages that wait for a [`Handler`](engine::Handler) that takes long | 4096, 16 MiB; then nothing more is read | fixed |
//! | pipes of a listener | 4096 | [`Limits::pipes`] |
//! | lendable memory of a pool | 4 GiB, or half of the process's; 512 segments | [`PoolOptions::lendable`]; fixed |
//! | loans of one process to another | 4096, then copies | fixed: [`LeaseChannel`](channels::LeaseChannel) |
//! | copies of ordinary memory that one reader keeps | 256 MiB, or a 32nd of the process's memory; then other channels | fixed: [`LeaseChannel`](channels::LeaseChannel) |
//! | a peer that says nothing | 10 s | [`Timeouts::silence`] |
//! | a handshake | 10 s | [`Timeouts::handshake`] |
//! | a handshake of TLS; the certificates that are shown | 32 KiB; 12 KiB | fixed |
//! | closing | 10 s | [`Timeouts::linger`] |
//! | connecting to a listener that is not there | 30 s | [`ConnectPolicy::retry_for`] |

#[cfg(not(all(
    target_os = "linux",
    target_endian = "little",
    target_pointer_width = "64"
)))]
compile_error!(
    "tensorpipe is for Linux on little-endian machines of 64 bits: tensors travel as they lie in memory"
);

mod address;
/// For `tensorpipe-rpc`; not covered by the version's promises.
#[doc(hidden)]
pub mod ambient;
mod config;
mod context;
mod descriptor;
mod error;
mod keys;
mod listener;
#[doc(hidden)]
pub mod log_limit;
mod message;
#[forbid(unsafe_code)]
mod negotiate;
#[forbid(unsafe_code)]
mod pipe;
mod process;
#[forbid(unsafe_code)]
mod proto;
mod ring;
mod stop;
mod sync;
mod sys;
#[cfg(any(test, feature = "fuzzing"))]
mod wire_md;

#[cfg(feature = "blocking")]
pub mod blocking;
#[forbid(unsafe_code)]
pub mod channels;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod device;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod route;
pub mod tensor;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg_attr(not(test), forbid(unsafe_code))]
pub mod transports;

/// What call engines build on a pipe with, and applications need not know.
///
/// [`EnginePipe`](engine::EnginePipe) has the methods of a [`Pipe`] that are for them: a handler that is given each message, messages in
/// parts, numbers of messages, credit for what is kept.
pub mod engine {
    pub use crate::pipe::engine::{Awaiting, EnginePipe, Handler, leave_handlers};
    pub use crate::pipe::polls::Polled;
    pub use crate::pipe::{Held, NoRoom, Outbound, Submitted, When};
}

/// For `tensorpipe-rpc`; not covered by the version's promises.
#[doc(hidden)]
pub mod fork {
    pub use crate::sys::fork::{Owner, PerProcess};
}

pub use address::{CertificateName, Identity, Peer, PeerAddr, Url};
pub use config::{ConnectPolicy, Limits, Timeouts};
pub use context::{Context, ContextBuilder};
pub use descriptor::{Descriptor, PayloadDescriptor, TensorDescriptor};
pub use device::{Buffer, BufferMut, Device, DeviceKind, Pool, PoolOptions};
pub use error::{DeviceError, Error, Misuse, PeerFault, ResetCode, SystemError};
pub use listener::Listener;
pub use message::{Allocation, Message, MessageTensor, Payload, Place};
pub use pipe::{
    BudgetStats, Flush, Incoming, MessageStats, PeerLimits, Pipe, PipeStats, Read, ReadError,
    ReadInto, Write,
};
pub use route::Route;
pub use tensor::{DType, Element, IntoShape, Shape, Tensor};
