//! Batching: calls of many clients, handled as one. `#[rpc(batch(..))]` goes on a method whose tensors have a row for each request.
//!
//! ```
//! use tensorpipe::{Misuse, Tensor};
//! use tensorpipe_rpc::{Server, tensor_service};
//!
//! #[tensor_service]
//! trait Doubler {
//!     /// Twice each row. The attribute is the server's matter: clients do not see it.
//!     #[rpc(batch(max_size = 32, max_wait = "2ms"))]
//!     async fn double(&self, rows: Tensor) -> Result<Tensor, String>;
//! }
//!
//! struct Cpu;
//!
//! impl Doubler for Cpu {
//!     /// Sees the rows of all callers behind each other.
//!     async fn double(&self, mut rows: Tensor) -> Result<Tensor, String> {
//!         let values = rows.make_mut::<f32>().map_err(|error: Misuse| error.to_string())?;
//!         values.iter_mut().for_each(|value| *value *= 2.0);
//!         Ok(rows)
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let service = DoublerService::new(Cpu);
//! let batches = service.batches();
//! let server = Server::builder().service(service).listen("tcp://127.0.0.1:0").await?;
//! let client = DoublerClient::connect(server.url()).await?;
//!
//! // Three calls, 32 rows: a full batch, which runs without waiting.
//! let [a, b] = [1f32, 2.0].map(|value| Tensor::from_vec(vec![value; 10], [10, 1]).unwrap());
//! let c = Tensor::from_vec(vec![3f32; 12], [12, 1])?;
//! let (a, b, c) = tokio::try_join!(client.double(&a), client.double(&b), client.double(&c))?;
//! assert_eq!((a.shape(), b.shape(), c.shape()), (&[10, 1][..], &[10, 1][..], &[12, 1][..]));
//! assert_eq!((b.as_slice::<f32>()?[0], c.as_slice::<f32>()?[0]), (4.0, 6.0));
//! let stats = batches.stats("double").unwrap();
//! assert_eq!((stats.calls, stats.rows), (3, 32));
//! println!("{} runs, {:.1} calls in each", stats.runs, stats.mean_calls());
//! # Ok(())
//! # }
//! ```
//!
//! # When a batch runs
//!
//! - A batch runs as soon as it has `max_size` rows (the sum of the first dimensions; a call without rows counts as one). A call
//!   that does not fit opens the next batch; one of more than `max_size` rows runs alone.
//! - Otherwise it runs when its first call has waited for `max_wait` (`"500us"`, `"2ms"`, `"1s"`; timers tick in milliseconds). A
//!   call with a deadline waits at most half of the time that its deadline leaves besides a run, as measured so far.
//! - It does not run while `concurrency` batches of the method do; calls are gathered meanwhile. The default is 1, as in Triton and Ray
//!   Serve: one batch keeps a model busy, and calls that wait make the next batch larger. So `max_wait = "0s"` never waits when the
//!   method is idle, and gathers under load.
//!
//! The figures of a call report this wait as [`ServerTimes::waiting`](crate::observe::ServerTimes::waiting).
//!
//! # What shares a batch
//!
//! - Arguments written `Tensor` are joined along their first dimension, in memory of the connection's context, with one copy of
//!   each. A batch of one call is passed on as it came.
//! - Calls share no batch if their tensors differ in device, element type or another dimension, or if another argument differs.
//! - `#[tensor(device = "cuda:0")]` on an argument joins all callers' rows on that device, after the transfers, without a waiting
//!   CPU. If the device's [`Allocator`](tensorpipe::device::Allocator) cannot copy, calls run alone.
//! - The method returns [`Rows`]: tensors with a row for each row that it was given, or an `Err`. Each caller gets its own rows,
//!   which share the memory of the whole result. Arguments and results hold no references ([`Remote`](crate::Remote)): these belong
//!   to one caller.
//!
//! # Failures and cancellation
//!
//! - A call that cannot be joined (a tensor without dimensions, unequal numbers of rows) fails with
//!   [`CallError::BadArguments`](crate::CallError::BadArguments), and is in no batch.
//! - A caller that cancels, or whose deadline passes, leaves the batch; the others do not notice. The handler is dropped when all
//!   have left.
//! - Every call of a batch shares the method's failure: its `Err`, its panic, or a result with a wrong number of rows, which is
//!   [`CallError::BadReply`](crate::CallError::BadReply).
//! - An idempotent method, `#[rpc(idempotent, batch(max_size = 32, max_wait = "2ms"))]`, instead runs once more for each call
//!   alone, so that only the faulty call fails. Its other arguments must be `Clone`. One bad row then costs a run for each call
//!   ([`BatchStats::reruns`]): validate before batching.
//! - **The handler's [`CallContext`] is the batch's.** It is cancelled when all callers have left, and has the latest of their
//!   deadlines. **Peer, connection, route, pool and trace are those of the first call.** Peers with different proven
//!   [identities](tensorpipe::Identity) share no batch, so the identity is that of all.
//! - Waiting calls count as under way: limits and the drain of a shutdown apply to them. When their server shuts down, they wait
//!   for no further calls.
//!
//! [`CallContext`]: crate::CallContext

mod batcher;
mod batches;
mod gathered;
mod key;
mod queue;
mod rows;
mod run;
mod stats;

pub use batcher::BatchFuture;
pub use batches::{BatchedMethod, Batches};
pub use gathered::Gathered;
pub use key::BatchKey;
pub use rows::{Cut, Rows};
pub use stats::BatchStats;
