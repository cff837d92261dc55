//! The figures of one call.

use std::fmt;
use std::time::Duration;

use tensorpipe::route::Diversion;

/// Shows where a call's time went, and which of its bytes were copied, for calls made through a client's `with_stats`.
/// [`Call::stats`](crate::Call::stats) returns it with the result or the error. [`CallStream::stats`](crate::CallStream::stats)
/// returns it for a stream: so far, or as a whole after the last item.
///
/// Clocks of two machines are never compared: each end measures durations on its own.
///
/// ```
/// # use tensorpipe::{Context, Tensor};
/// # use tensorpipe_rpc::{Server, Stream, tensor_service};
/// #[tensor_service]
/// pub trait Sum {
///     async fn sum(&self, x: Tensor) -> f32;
///     fn halves(&self, x: Tensor) -> impl Stream<Item = Tensor>;
/// }
/// # struct Adds;
/// # impl Sum for Adds {
/// #     fn halves(&self, x: Tensor) -> impl Stream<Item = Tensor> {
/// #         let half = x.shape()[0] / 2;
/// #         futures_util::stream::iter([x.rows(0..half).unwrap(), x.rows(half..2 * half).unwrap()])
/// #     }
/// #     async fn sum(&self, x: Tensor) -> f32 {
/// #         x.as_slice::<f32>().unwrap().iter().sum()
/// #     }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = Server::builder().service(SumService::new(Adds)).listen("tcp://127.0.0.1:0").await?;
/// let client = SumClient::connect(server.url()).await?.with_stats();
/// let ones = Tensor::from(vec![1f32; 1 << 20]);
/// let (sum, stats) = client.sum(&ones).stats().await;
/// assert_eq!(sum?, (1 << 20) as f32);
/// // Within one process a large tensor is handed over.
/// assert_eq!(stats.bytes_copied(), Some(0));
/// assert!(stats.queue + stats.handling().unwrap() <= stats.round_trip);
/// println!("{:?} of {:?} on the way", stats.wire().unwrap(), stats.round_trip);
/// println!("{stats}"); // 3.1ms (20.0µs queued, 15.2µs waiting, 2.9ms handled, …
///
/// let mut halves = client.halves(&ones);
/// while let Some(half) = halves.next().await {
///     assert_eq!(half?.shape(), [1 << 19]);
/// }
/// let stats = halves.stats();
/// assert_eq!((stats.result.as_ref().unwrap().items, stats.bytes_copied()), (2, Some(0)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallStats {
    /// From the call's making until its message began to leave.
    pub queue: Duration,
    /// From the call's making until its result was here, or its failure known. Zero if the call was not made, or not measured. If
    /// no replica of [`Replicas`](crate::Replicas) was live, it is how long the call waited for one.
    pub round_trip: Duration,
    /// The server's measurements until it answered, with a result or a failure. `None` if it did not answer: time was up here
    /// first, the call was dropped, or the connection ended. Also `None` if the server refused the call on its header, or is too
    /// old to measure.
    pub server: Option<ServerTimes>,
    /// The call's message.
    pub request: TransferStats,
    /// The message that answered the call.
    pub reply: TransferStats,
    /// What was sent of the stream argument. `None` if the method has none.
    pub argument: Option<StreamStats>,
    /// What has come of the result stream. `None` if the method has none.
    pub result: Option<StreamStats>,
    /// Each attempt: one, or several over [`Replicas`](crate::Replicas). All figures but the total times are those of the last one.
    pub attempts: Vec<Attempt>,
}

/// The traffic of one stream of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamStats {
    /// The number of items.
    pub items: u64,
    /// All messages that carried them together. Each carries one or several items.
    pub transfer: TransferStats,
}

/// One attempt to send a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// The URL at which the server was reached. `None` if the pipe was made another way.
    pub url: Option<String>,
    /// From the attempt's sending until its answer was here, or its failure known.
    pub took: Duration,
    /// How it failed. `None` for the attempt that was answered.
    pub error: Option<String>,
}

/// A server's measurements of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerTimes {
    /// From the arrival of the call's header until its arguments were complete: while their tensors were on their way.
    pub receiving: Duration,
    /// From then until the handler was first polled. For a [batched](crate::batch) method, until its batch's handler was.
    pub waiting: Duration,
    /// From then until the handler was ready, its result encoded, and its stream at its end. This includes the handler's own waits,
    /// and waits for the reader of its stream.
    pub handling: Duration,
    /// From then until the answer began to leave: it waited behind other messages, or for its caller to read. Zero if it left at
    /// once, or the server is too old to tell. Time in the system's own buffers counts as time on the wire.
    pub sending: Duration,
}

/// How one message of a call travelled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferStats {
    /// Its metadata, payloads and tensors, in bytes, without framing.
    pub bytes: u64,
    /// Bytes of its payloads and tensors that went through a connection, in the message's own frame or after it. A connection is a
    /// socket, or a ring in shared memory: the CPU of each end copied them. `None` if unknown.
    pub streamed: Option<u64>,
    /// Bytes of its payloads and tensors that only the reader's CPU copied, from the writer's memory. `None` if unknown.
    pub copied: Option<u64>,
    /// Bytes of them that the writer's CPU copied into memory that the reader has mapped. `None` if unknown.
    pub copied_by_writer: Option<u64>,
    /// The channels that carried its tensors and payloads. Empty if all of them were in the message's own frame.
    pub channels: Vec<String>,
    /// Which tensors one of the channels sent in another channel's way, and why. Only for the call's own message, which this end
    /// writes. For other messages their writer has it in [`ChannelRoute::diverted`](tensorpipe::route::ChannelRoute::diverted).
    pub diverted: Vec<Diversion>,
}

impl CallStats {
    /// Whether anything was measured. If not, all figures are zero: the call was not made, or not through a client's `with_stats`.
    /// If a call over [`Replicas`](crate::Replicas) was sent to none of them, only [`CallStats::round_trip`] was measured.
    pub fn is_measured(&self) -> bool {
        !(self.attempts.is_empty() && self.round_trip.is_zero())
    }

    /// Bounds the queue time by the time that the server's measurements leave. The task that stamps a leaving message may be
    /// interrupted, and stamp late, while the server is already at work.
    pub(super) fn bound_queue(&mut self) {
        if self.round_trip.is_zero() {
            return;
        }
        let ServerTimes {
            receiving,
            waiting,
            handling,
            sending,
        } = self.server.unwrap_or_default();
        let rest = [receiving, waiting, handling, sending]
            .into_iter()
            .fold(self.round_trip, Duration::saturating_sub);
        self.queue = self.queue.min(rest);
    }

    /// How long the handler took. `None` as for [`CallStats::server`].
    pub fn handling(&self) -> Option<Duration> {
        self.server.map(|server| server.handling)
    }

    /// The time on the wire, both ways: the part of the round trip that is neither [`CallStats::queue`] nor the server's
    /// [waiting](ServerTimes::waiting), [handling](ServerTimes::handling) and [sending](ServerTimes::sending). Over replicas, that
    /// of the last attempt. Never negative; `None` as for [`CallStats::server`].
    pub fn wire(&self) -> Option<Duration> {
        let ServerTimes {
            waiting,
            handling,
            sending,
            ..
        } = self.server?;
        let elsewhere = [waiting, handling, sending]
            .into_iter()
            .fold(self.queue, Duration::saturating_add);
        let took = self
            .attempts
            .last()
            .map_or(self.round_trip, |last| last.took);
        Some(took.saturating_sub(elsewhere))
    }

    /// Bytes of payloads and tensors that this end's CPU copied between your memory and the other end, in both messages and all
    /// items. It copied them into or out of a connection, or out of the peer's memory. A byte counts once for each message, however
    /// often it is copied. Copies outside the library do not count: a tensor that you fill, or copy in a handler. `None` if one of
    /// the two messages, or a sent item, is not accounted for.
    pub fn bytes_copied_here(&self) -> Option<u64> {
        let (there, here) = self.ways();
        let there = there.flat_map(|way| [way.streamed, way.copied_by_writer]);
        sum(there.chain(here.flat_map(|way| [way.streamed, way.copied])))
    }

    /// As [`CallStats::bytes_copied_here`], for the server.
    pub fn bytes_copied_there(&self) -> Option<u64> {
        let (there, here) = self.ways();
        let here = here.flat_map(|way| [way.streamed, way.copied_by_writer]);
        sum(here.chain(there.flat_map(|way| [way.streamed, way.copied])))
    }

    /// The sum of both ends: `Some(0)` means that the call copied nothing.
    pub fn bytes_copied(&self) -> Option<u64> {
        sum([self.bytes_copied_here(), self.bytes_copied_there()])
    }

    /// The transfers to the server, and those from it.
    fn ways(
        &self,
    ) -> (
        impl Iterator<Item = &TransferStats>,
        impl Iterator<Item = &TransferStats>,
    ) {
        let there = self.argument.iter().map(|stream| &stream.transfer);
        let here = self.result.iter().map(|stream| &stream.transfer);
        (there.chain([&self.request]), here.chain([&self.reply]))
    }
}

/// One line: the times, the bytes of both ways, and how many of them were copied.
impl fmt::Display for CallStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_measured() {
            return f.write_str(
                "nothing was measured: the call was not made, or not through `with_stats`",
            );
        }
        match self.round_trip.is_zero() {
            true => f.write_str("under way")?,
            false => write!(f, "{:.1?}", self.round_trip)?,
        }
        if self.attempts.is_empty() {
            return f.write_str(", sent to nobody");
        }
        if let (Some(server), Some(wire)) = (self.server, self.wire()) {
            let ServerTimes {
                waiting,
                handling,
                sending,
                ..
            } = server;
            let queue = self.queue;
            write!(
                f,
                " ({queue:.1?} queued, {waiting:.1?} waiting, {handling:.1?} handled, {sending:.1?} to be sent, {wire:.1?} on the way)"
            )?;
        }
        let (there, here) = self.ways();
        let there: u64 = there.map(|way| way.bytes).sum();
        let here: u64 = here.map(|way| way.bytes).sum();
        write!(f, ", {there} bytes there, {here} bytes back")?;
        if let Some(copied) = self.bytes_copied() {
            write!(f, ", {copied} copied")?;
        }
        for diversion in &self.request.diverted {
            write!(f, ", {diversion}")?;
        }
        match self.attempts.len() {
            0 | 1 => Ok(()),
            attempts => write!(f, ", {attempts} attempts"),
        }
    }
}

fn sum(counts: impl IntoIterator<Item = Option<u64>>) -> Option<u64> {
    let mut counts = counts.into_iter();
    counts.try_fold(0u64, |sum, count| Some(sum.saturating_add(count?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_queue_ends_before_the_server_begins() {
        let times = ServerTimes {
            receiving: ms(1),
            waiting: ms(2),
            handling: ms(10),
            sending: ms(3),
        };
        let queued = |queue, round_trip, server| {
            let mut stats = CallStats {
                queue: ms(queue),
                round_trip: ms(round_trip),
                server,
                ..CallStats::default()
            };
            stats.bound_queue();
            stats.queue
        };
        assert_eq!(queued(3, 20, Some(times)), ms(3));
        assert_eq!(queued(8, 20, Some(times)), ms(4), "stamped late");
        assert_eq!(queued(8, 10, Some(times)), ms(0), "a server that lies");
        assert_eq!(queued(8, 5, None), ms(5), "stamped after its end");
        assert_eq!(queued(8, 0, None), ms(8), "not answered yet");
    }

    #[test]
    fn what_was_measured_is_a_line_and_what_was_not_says_so() {
        let nothing = CallStats::default();
        assert!(!nothing.is_measured());
        assert!(nothing.to_string().contains("`with_stats`"), "{nothing}");

        let whole = |bytes, streamed| TransferStats {
            bytes,
            streamed: Some(streamed),
            copied: Some(0),
            copied_by_writer: Some(0),
            ..TransferStats::default()
        };
        let took = Attempt {
            took: ms(20),
            ..Attempt::default()
        };
        let mut stats = CallStats {
            queue: ms(1),
            round_trip: ms(20),
            server: Some(ServerTimes {
                receiving: ms(4),
                waiting: ms(2),
                handling: ms(10),
                sending: ms(3),
            }),
            request: whole(100, 80),
            reply: whole(9, 0),
            attempts: vec![took; 2],
            ..CallStats::default()
        };
        let line = "20.0ms (1.0ms queued, 2.0ms waiting, 10.0ms handled, 3.0ms to be sent, 4.0ms on the way)";
        let bytes = "100 bytes there, 9 bytes back, 160 copied, 2 attempts";
        assert_eq!(stats.to_string(), format!("{line}, {bytes}"));
        stats.server = None;
        stats.request.streamed = None;
        stats.attempts.truncate(1);
        assert_eq!(stats.to_string(), "20.0ms, 100 bytes there, 9 bytes back");
        stats.round_trip = Duration::ZERO;
        assert!(stats.to_string().starts_with("under way, "), "{stats}");

        let waited = CallStats {
            round_trip: ms(20),
            ..CallStats::default()
        };
        assert!(waited.is_measured());
        assert_eq!(waited.to_string(), "20.0ms, sent to nobody");
    }

    #[test]
    fn time_on_the_way_is_what_is_left_and_never_negative() {
        let server = |handling| ServerTimes {
            receiving: ms(5),
            waiting: ms(2),
            handling,
            sending: ms(3),
        };
        let mut stats = CallStats {
            queue: ms(1),
            round_trip: ms(20),
            server: Some(server(ms(10))),
            ..CallStats::default()
        };
        assert_eq!(stats.wire(), Some(ms(4)));
        // A server that claims more time than the whole round trip.
        stats.server = Some(server(Duration::MAX));
        assert_eq!(stats.wire(), Some(Duration::ZERO));
        stats.server = None;
        assert_eq!(stats.wire(), None);
    }

    #[test]
    fn each_end_is_charged_for_what_its_own_cpu_copied() {
        let way = |streamed, copied| TransferStats {
            bytes: 100,
            streamed: Some(streamed),
            copied: Some(copied),
            copied_by_writer: Some(0),
            ..TransferStats::default()
        };
        let mut stats = CallStats {
            request: way(1, 10),
            reply: way(100, 1000),
            ..CallStats::default()
        };
        assert_eq!(stats.bytes_copied_here(), Some(1101));
        assert_eq!(stats.bytes_copied_there(), Some(111));
        assert_eq!(stats.bytes_copied(), Some(1212));
        stats.request.copied_by_writer = Some(5000);
        stats.reply.copied_by_writer = Some(50_000);
        assert_eq!(stats.bytes_copied_here(), Some(6101));
        assert_eq!(stats.bytes_copied_there(), Some(50_111));
        stats.request.copied_by_writer = Some(0);
        stats.reply.copied_by_writer = Some(0);
        let items = |transfer| Some(StreamStats { items: 1, transfer });
        stats.argument = items(way(10_000, 100_000));
        stats.result = items(way(0, 7));
        assert_eq!(stats.bytes_copied_here(), Some(1101 + 10_000 + 7));
        assert_eq!(stats.bytes_copied_there(), Some(111 + 110_000));
        stats.request.copied = None;
        assert_eq!(stats.bytes_copied_here(), Some(11_108));
        assert_eq!(
            (stats.bytes_copied_there(), stats.bytes_copied()),
            (None, None)
        );
    }
}
