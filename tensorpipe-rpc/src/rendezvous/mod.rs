//! A rendezvous: one part of a program sends tensors by name, and another part receives them, as in TensorFlow between devices and
//! workers.
//!
//! ```
//! use tensorpipe::Tensor;
//! use tensorpipe_rpc::Server;
//! use tensorpipe_rpc::rendezvous::Rendezvous;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // One process makes activations …
//! let front = Rendezvous::new("front")?;
//! let server = Server::builder().service(front.service()).listen("tcp://127.0.0.1:0").await?;
//! let key = front.key_to("back", "activations/0", 7)?;
//! front.send(&key, Tensor::from(vec![1f32, 2.0]))?; // does not wait for anybody
//!
//! // … another one, anywhere, uses them. It may ask before they are there.
//! let back = Rendezvous::builder("back").peer("front", server.url()).build()?;
//! let first = back.key_from("front", "activations/0", 7).await?;
//! let second = back.key_from("front", "activations/1", 7).await?;
//! let (first, second) = (back.recv(&first), back.recv(&second)); // both are on their way
//! front.send(&front.key_to("back", "activations/1", 7)?, Tensor::from(vec![3f32]))?;
//! assert_eq!(first.await?.tensor.as_slice::<f32>()?, [1.0, 2.0]);
//! assert_eq!(second.await?.tensor.as_slice::<f32>()?, [3.0]);
//!
//! // The step is over: what nobody received goes, and whoever is late hears it.
//! front.finish(7);
//! assert!(front.send(&front.key_to("back", "late", 7)?, Tensor::from(vec![0f32])).is_err());
//! # Ok(())
//! # }
//! ```
//!
//! - **A key names one value**, which is sent once and received once ([`Key`]). It has the producer and its incarnation, the
//!   consumer, the tensor and the step. A second send or receive is an error.
//! - **Sending** never waits for the consumer. Values that nobody has received are bounded ([`Limits`]). Beyond that,
//!   [`Rendezvous::send`] is an error, and [`Rendezvous::send_or_wait`] waits for room. A value that a receiver waits for is accepted
//!   beyond the bounds, too, if its consumer confirms what it got before. So a bound can delay a program, but not stop one that
//!   awaits its receives.
//! - **Receiving** is a future ([`Rendezvous::recv`]) or a callback ([`Rendezvous::recv_with`]). It takes its place when it is
//!   made, and waits no longer than its bound.
//! - **Within a process** the value is handed over without a copy. **From another process** the consumer pulls it with a call. A
//!   tensor in the context's pool ([`tensorpipe::Pool::tensor`]) is lent to a process on the same machine without a copy.
//! - **Dead values** ([`Value::dead`]) travel like any other.
//! - **The end**: [`Rendezvous::finish`] sweeps a step. [`Rendezvous::abort`] ends everything, including receives in other
//!   processes.
//!
//! A receive that waits for another process's value is a call under way there. At most
//! [`ServerLimits::calls_per_connection`](crate::ServerLimits::calls_per_connection) of them, 4096, can wait. Further ones end with
//! [`CallError::Overloaded`](crate::CallError::Overloaded).
//!
//! # When a process is gone
//!
//! A value stays with its producer, and counts there, until its consumer confirms it. It does so when it awaits the receive. So:
//!
//! - A consumer that is dropped, cancelled, late or killed while it receives takes nothing away: the next receive gets the value,
//!   for example after a restart. A consumer may die after the value came and before it confirms; the next one then gets the value
//!   again. So two incarnations of a consumer may receive one value, but never none.
//! - A broken connection loses nothing while both ends live: the consumer confirms over the next one. A producer may have at most
//!   16384 values without a confirmation; it then lends no more until some are confirmed or swept. With as many bytes as its bound
//!   not confirmed, it sends beyond the bound only to consumers that have nothing to confirm, one value at a time.
//! - A dead producer's values are gone: receives end with [`RecvError::Call`] once the pipe notices. After a restart it is another
//!   incarnation, and keys of the first one fail with [`RecvError::Restarted`] at once.
//! - Values that nobody will ask for are dropped by `finish`, which each process calls for itself.

mod bound;
mod consumers;
mod error;
mod handle;
mod key;
mod limits;
mod local;
mod peers;
mod pull;
mod receipts;
mod recv;
mod send;
mod service;
mod table;
mod value;

pub use error::{Aborted, BuildError, RecvError, SendError};
pub use handle::{Rendezvous, RendezvousBuilder};
pub use key::{Key, KeyError, MAX_NAME, Part};
pub use limits::{Limits, Stats};
pub use recv::Recv;
pub use send::PendingSend;
pub use value::Value;
