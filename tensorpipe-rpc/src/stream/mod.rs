//! Streams as arguments and results of calls.
//!
//! ```
//! use futures_util::{StreamExt, stream};
//! use tensorpipe_rpc::{CallError, Server, Stream, Streaming, tensor_service};
//!
//! #[tensor_service]
//! trait Numbers {
//!     /// A stream as the result: no `async`. An `Err` ends it.
//!     fn count(&self, to: u32) -> impl Stream<Item = Result<u32, String>>;
//!     /// A stream as an argument.
//!     async fn sum(&self, numbers: Streaming<u32>) -> u32;
//!     /// Both.
//!     fn double(&self, numbers: Streaming<u32>) -> impl Stream<Item = u32>;
//! }
//!
//! struct Here;
//!
//! impl Numbers for Here {
//!     fn count(&self, to: u32) -> impl Stream<Item = Result<u32, String>> {
//!         let last = (to > 3).then(|| Err("that is too far".to_owned()));
//!         stream::iter((0..to.min(3)).map(Ok).chain(last))
//!     }
//!
//!     async fn sum(&self, numbers: Streaming<u32>) -> u32 {
//!         numbers.values().fold(0, async |sum, number| sum + number).await
//!     }
//!
//!     fn double(&self, numbers: Streaming<u32>) -> impl Stream<Item = u32> {
//!         numbers.values().map(|number| 2 * number)
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::builder().service(NumbersService::new(Here)).listen("tcp://127.0.0.1:0").await?;
//! let client = NumbersClient::connect(server.url()).await?;
//!
//! let mut numbers = client.count(5);
//! assert_eq!(numbers.next().await.unwrap()?, 0);
//! let rest: Vec<_> = numbers.collect().await;
//! assert_eq!(rest.len(), 3);
//! assert!(matches!(&rest[2], Err(CallError::Service(reason)) if reason == "that is too far"));
//!
//! assert_eq!(client.sum(stream::iter(1..=4)).await?, 10);
//!
//! let mut doubled = client.double(stream::iter(1..=2));
//! assert_eq!((doubled.next().await.unwrap()?, doubled.next().await.unwrap()?), (2, 4));
//! assert!(doubled.next().await.is_none());
//! # Ok(())
//! # }
//! ```
//!
//! A [`Streaming`] gives an [`Interrupted`] error if the call ends before the caller's stream. So a task that a handler spawned
//! cannot take a part for the whole. The handler itself is dropped then, and can read the [`values`](Streaming::values) alone.
//!
//! A call is under way until its stream has ended. Until then its deadline applies: **60 s for the whole stream**, unless
//! `client.with_deadline(..)` says otherwise. So do the server's limits, and the drain of a shutdown. Dropping a [`CallStream`]
//! cancels the call.
//!
//! Over [`Replicas`](crate::Replicas) a call with a stream is sent once, to a live server. If there is none, it fails at once with
//! [`CallError::Unavailable`](crate::CallError::Unavailable), where other calls would wait.
//!
//! A reader that stalls holds up only the sender of its own stream, after 1024 items or 4 MiB (one item of any size always goes).
//! [`ServerLimits::unread_items`](crate::ServerLimits::unread_items) bounds the unread items of all streams of a connection; the bound of
//! one stream is fixed.

mod argument;
mod reply;
mod send;

use std::task::{Context, Poll, ready};

use tokio::task::coop::poll_proceed;

pub use argument::{Interrupted, Streaming};
pub use reply::{CallStream, reply_results, reply_values};

/// Polls under tokio's cooperative budget, so that items that come as fast as they are taken let other tasks run.
fn in_turn<T>(cx: &mut Context<'_>, poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
    let budget = ready!(poll_proceed(cx));
    let polled = poll(cx);
    if polled.is_ready() {
        budget.made_progress();
    }
    polled
}
