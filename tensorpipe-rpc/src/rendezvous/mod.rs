//! Tensors that one part of a program sends and another one receives, by name: a rendezvous, as TensorFlow has it between
//! devices and workers.
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
//! - **A key names one value**, which is sent once and received once ([`Key`]): its producer with an incarnation, its consumer,
//!   tensor and step. A second send or receive is an error.
//! - **Sending** never waits for the consumer. What nobody has received is bounded ([`Limits`]): beyond, [`Rendezvous::send`] is
//!   an error and [`Rendezvous::send_or_wait`] waits for room. A value that somebody waits for is taken whatever the bound. So a
//!   bound can delay a program, but not stop one whose receivers are at work.
//! - **Receiving** is a future ([`Rendezvous::recv`]) or a callback ([`Rendezvous::recv_with`]). It is in the queue from when it
//!   is made, and waits no longer than its bound.
//! - **In one process** the value is handed over, no byte is copied. **From another process** the consumer pulls it, over a call: a
//!   tensor of the context's pool ([`tensorpipe::Pool::tensor`]) is lent to a process of the same machine without a copy.
//! - **Dead values** ([`Value::dead`]) travel as any other.
//! - **The end**: [`Rendezvous::finish`] sweeps a step, [`Rendezvous::abort`] ends everything, and reaches those who wait in other
//!   processes.
//!
//! Receives that wait for values of another process are calls under way there. There are at most
//! [`ServerLimits::calls_per_connection`](crate::ServerLimits::calls_per_connection), 4096. Further ones end with
//! [`CallError::Overloaded`](crate::CallError::Overloaded).
//!
//! # When a process is gone
//!
//! A value stays with its producer, and counts there, until its consumer says that it has it. So
//!
//! - a consumer that is dropped, cancelled, late or killed while it receives takes nothing away: whoever asks next, the consumer started
//!   again for example, gets the value. If it died after it had the value and before it could say so, the next one gets it, too. One value
//!   may be received by two incarnations of a consumer, never by none;
//! - a connection that breaks while both ends go on loses nothing: the consumer says over the next one what it has. Of 16384 values
//!   at the most a producer does not know whether they have arrived; it lends no more until it hears of some;
//! - a producer that is gone takes its values with it: receives end with [`RecvError::Call`], once the pipe notices. One that was
//!   started again is another incarnation, to which the keys of the first one say [`RecvError::Restarted`], at once;
//! - values that nobody will ever ask for are dropped by `finish`, which each process calls for itself.

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
