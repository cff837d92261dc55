//! Compatibility with tarpc: a [`Pipe`](tensorpipe::Pipe) as its transport, and generated clients as its stubs.
//!
//! Any plain `#[tarpc::service]` runs over [`transport`], with everything that tarpc builds on a transport: deadlines,
//! cancellation, throttling, request hooks, its retry and load-balancing stubs. A [`Tensor`](tensorpipe::Tensor) or
//! [`Payload`](tensorpipe::Payload) anywhere in its arguments and results travels over the pipe's channels.
//!
//! ```
//! use std::future::ready;
//!
//! use futures_util::StreamExt;
//! use tarpc::server::BaseChannel;
//! use tarpc::server::incoming::{Incoming as _, spawn_incoming};
//! use tarpc::{client, context};
//! use tensorpipe::{Context, Tensor};
//! use tensorpipe_rpc::tarpc::{incoming, transport};
//!
//! #[tarpc::service]
//! trait Scaler {
//!     async fn double(x: Tensor) -> Tensor;
//! }
//!
//! #[derive(Clone)]
//! struct Twice;
//!
//! impl Scaler for Twice {
//!     async fn double(self, _: context::Context, x: Tensor) -> Tensor {
//!         Tensor::from(x.as_slice::<f32>().unwrap().iter().map(|x| x * 2.0).collect::<Vec<_>>())
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = Context::new();
//! let listener = context.listen(["tcp://127.0.0.1:0"]).await?;
//! let url = listener.urls()[0].to_string();
//! let channels = incoming(listener)
//!     .filter_map(|transport| ready(transport.ok()))
//!     .map(BaseChannel::with_defaults)
//!     .max_channels_per_key(100, |channel| channel.get_ref().peer_addr().party());
//! tokio::spawn(spawn_incoming(channels.execute(Twice.serve())));
//!
//! let pipe = context.connect(&url).await?;
//! let client = ScalerClient::new(client::Config::default(), transport(pipe)).spawn();
//! let doubled = client.double(context::current(), Tensor::from(vec![1f32, 2.0])).await?;
//! assert_eq!(doubled.as_slice::<f32>()?, [2.0, 4.0]);
//! # Ok(())
//! # }
//! ```
//!
//! # What differs from tarpc over a byte stream
//!
//! - Requests overtake each other: one whose tensors are still on their way holds up no other.
//! - A cancelled request whose tensors are still on their way is abandoned: its handler does not begin.
//! - Tensors land where their receiver wants them. `#[tensor(device = "…")]` and device maps belong to `#[tensor_service]`; its
//!   clients have them below tarpc's stubs, too.
//! - A result that cannot be sent is an error of that request; the connection goes on.
//! - Closing a transport ends the peer's incoming messages; answers still arrive. Dropping it closes both directions.
//! - A peer's deadline is cut to [`LONGEST_DEADLINE`].
//!
//! # The other direction
//!
//! Clients that `#[tensor_service]` generates implement tarpc's [`Stub`](::tarpc::client::stub::Stub). So
//! [`Retry`](::tarpc::client::stub::retry::Retry), [`RoundRobin`](::tarpc::client::stub::load_balance::RoundRobin) and
//! [`ConsistentHash`](::tarpc::client::stub::load_balance::ConsistentHash) can wrap them. A request is a `FooClientRequest` in an
//! `Arc`, and its answer a `FooClientResponse`.

mod client;
mod error;
mod incoming;
mod transport;
mod wire;

pub use client::private;
pub use error::TransportError;
pub use incoming::{Incoming, incoming};
pub use transport::{MAX_READING, MAX_WRITING, PipeTransport, transport};
pub use wire::{LONGEST_DEADLINE, TarpcMessage};
