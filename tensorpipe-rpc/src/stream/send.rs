//! The sending end: turns items of a user's stream into messages.
//!
//! Small items that are ready together share a message; none waits for one that is not ready.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures_util::Stream;
use tensorpipe::ambient;
use tensorpipe::engine::EnginePipe;
use tensorpipe::{Error, PeerLimits};

use crate::codec::{EncodeError, Encoder, REPLY_HEADER, Reply, Subject};
use crate::engine::{CallStreams, Engine, SendCredit};
use crate::error::no_place;
use crate::header::{Header, Kind, StreamDirection};
use crate::observe::metrics;

/// A message of items leaves when it has this many bytes. Measured, like the next constants, by `tp-bench rpc --case stream --size
/// 4KiB --transport shm --pin`: with 16 KiB an item takes 1.07 of the time, with 256 KiB 0.8, but others wait behind so large a
/// message.
const BATCH: usize = 64 << 10;

/// An item of so many bytes leaves alone, so that others do not wait for its bytes. Measured: with 4 KiB 1.4 of the time.
const LARGE: usize = 16 << 10;

/// How long an item waits for others that are made in the meantime. Between 12 and 200 µs all measure the same.
const BATCHING: Duration = Duration::from_micros(50);

/// After so many messages in a row, other tasks have their turn. Measured: with 2 1.1 of the time, with 32 the same.
const TURN: u32 = 8;

/// With so many messages waiting in the pipe, or half of those that may, a stream adds none until its last one begins to leave.
const BACKLOG: usize = 64;

/// How a stream ended.
pub(super) enum Ended {
    /// The stream had no further items.
    Finished,
    /// Nobody reads the items.
    Closed,
    /// The stream gave an error of the service's own.
    Service(Box<Reply>),
    /// Calls cannot carry an item.
    Unsendable(EncodeError),
    /// The peer does not take an item: it is too large, or on a device that the peer cannot have.
    Refused(String),
    /// Tensors of an item cannot be on the caller's device, or not travel over its channels.
    NoPlace(Error),
}

/// Sends all items. `encode` puts one into a message, or says how it ends the stream. Cancel safe: items that were sent stay sent.
pub(super) async fn send_items<S, F>(
    engine: &Engine,
    streams: &CallStreams,
    direction: StreamDirection,
    mut stream: Pin<&mut S>,
    encode: F,
) -> Ended
where
    S: Stream,
    F: Fn(&mut Encoder, &S::Item) -> Result<(), Ended>,
{
    let mut sender = Sender {
        engine,
        streams,
        direction,
        batch: None,
        overflow: None,
        room: 0,
        last: None,
        leaving: None,
    };
    poll_fn(|cx| sender.poll(cx, stream.as_mut(), &encode)).await
}

struct Sender<'a> {
    engine: &'a Engine,
    streams: &'a CallStreams,
    direction: StreamDirection,
    batch: Option<Batch>,
    /// An item that is large, or did not fit into the message before it. It waits for credit of its own.
    overflow: Option<Batch>,
    /// How many items may be sent, those of `batch` included.
    room: u64,
    /// The message that was sent last.
    last: Option<u64>,
    /// Set while the stream waits for that message to leave.
    leaving: Option<u64>,
}

struct Batch {
    encoder: Encoder,
    items: u8,
    begun: Instant,
}

impl Batch {
    fn new() -> Self {
        let mut header = Vec::with_capacity(256);
        header.resize(REPLY_HEADER, 0);
        Self {
            encoder: Encoder::after(header).about(Subject::Item),
            items: 0,
            begun: ambient::now(),
        }
    }

    /// Whether the peer takes the batch as one message.
    fn fits(&self, limits: &PeerLimits) -> bool {
        let held = self.encoder.mark();
        let (len, parts) = (held.bytes, held.tensors + held.payloads);
        let most = usize::from(limits.parts);
        let inline = len as u64 <= u64::from(limits.metadata) && parts <= most;
        let beside = (len - REPLY_HEADER) as u64 <= limits.payload && parts < most;
        let all = self.encoder.bytes_since(Default::default());
        (inline || beside) && all as u64 <= limits.message
    }
}

impl Sender<'_> {
    fn poll<S, F>(
        &mut self,
        cx: &mut Context<'_>,
        mut stream: Pin<&mut S>,
        encode: &F,
    ) -> Poll<Ended>
    where
        S: Stream,
        F: Fn(&mut Encoder, &S::Item) -> Result<(), Ended>,
    {
        let mut messages = 0;
        loop {
            if self.batch.is_none() {
                if messages >= TURN {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                match self.begin(cx) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(ended)) => return Poll::Ready(ended),
                    Poll::Pending => return Poll::Pending,
                }
                if self.overflow.is_some() {
                    self.batch = self.overflow.take();
                    if let Err(ended) = self.flush() {
                        return Poll::Ready(ended);
                    }
                    messages += 1;
                    continue;
                }
            }
            let leaves = match stream.as_mut().poll_next(cx) {
                Poll::Pending => {
                    return match self.flush() {
                        Ok(()) => Poll::Pending,
                        Err(ended) => Poll::Ready(ended),
                    };
                }
                Poll::Ready(None) => Err(Ended::Finished),
                Poll::Ready(Some(item)) => self.put(&item, encode),
            };
            let left = match leaves {
                Ok(false) => continue,
                Ok(true) => self.flush(),
                // The items before it are still sent.
                Err(ended) => self.flush().and(Err(ended)),
            };
            if let Err(ended) = left {
                return Poll::Ready(ended);
            }
            messages += 1;
        }
    }

    /// Waits until a message of items may be sent.
    fn begin(&mut self, cx: &Context<'_>) -> Poll<Result<(), Ended>> {
        let Some(credits) = &self.streams.credits else {
            return Poll::Ready(Err(Ended::Closed));
        };
        self.room = match credits.room(cx.waker()) {
            SendCredit::Items(room) => room,
            SendCredit::None => return Poll::Pending,
            SendCredit::Closed => return Poll::Ready(Err(Ended::Closed)),
        };
        // On a slow pipe, other messages must not queue behind all that a stream has. The stream waits only for its own message,
        // because other messages may wait for readers that stall.
        let pipe = &self.engine.pipe;
        if self.leaving.is_none()
            && pipe.unwritten() >= BACKLOG.min(pipe.queued_writes().div_ceil(2))
            && let Some(last) = self.last.take()
        {
            self.leaving = Some(last);
        }
        if let Some(leaving) = self.leaving {
            // If the pipe has ended, the next send fails.
            ready!(self.engine.pipe.poll_sending(leaving, cx.waker()));
            self.leaving = None;
        }
        Poll::Ready(Ok(()))
    }

    /// Puts an item into the message. Returns whether the message leaves now.
    fn put<T>(
        &mut self,
        item: &T,
        encode: &impl Fn(&mut Encoder, &T) -> Result<(), Ended>,
    ) -> Result<bool, Ended> {
        let batch = self.batch.get_or_insert_with(Batch::new);
        let before = batch.encoder.mark();
        encode(&mut batch.encoder, item)?;
        let len = batch.encoder.bytes_since(before);
        let limits = self.engine.pipe.peer_limits();
        if batch.items > 0 && (len >= LARGE || !batch.fits(&limits)) {
            batch.encoder.truncate(before);
            let mut overflow = Batch::new();
            let encoded = encode(&mut overflow.encoder, item);
            self.flush()?;
            encoded?;
            overflow.items = 1;
            // The items before it may have used up the reader's credit.
            self.overflow = Some(overflow);
            return Ok(false);
        }
        batch.items += 1;
        // Keep one part for the body.
        let parts = batch.encoder.parts() + 1;
        Ok(len >= LARGE
            || u64::from(batch.items) >= self.room.min(u8::MAX.into())
            || batch.encoder.bytes_since(Default::default()) >= BATCH
            || parts + parts / usize::from(batch.items) >= usize::from(limits.parts)
            || ambient::since(batch.begun) >= BATCHING)
    }

    /// Whether the caller requires devices or channels for the tensors.
    fn is_asked_for(&self) -> bool {
        self.streams.placement.is_some() || self.streams.required.is_some()
    }

    /// Sends the batch, if it has items.
    fn flush(&mut self) -> Result<(), Ended> {
        let Some(Batch { encoder, items, .. }) = self.batch.take() else {
            return Ok(());
        };
        if items == 0 {
            return Ok(());
        }
        let mut encoded = encoder.finish();
        if let Some(placement) = &self.streams.placement {
            placement.name_targets(&mut encoded);
        }
        let kind = Kind::Items(self.direction, items);
        Header::put_reply(&mut encoded.metadata, kind, self.streams.call);
        match self.engine.send_items(self.streams, items, encoded) {
            Ok((sent, size)) => {
                self.last = Some(sent);
                metrics::items_sent(items.into());
                if let Some(credits) = &self.streams.credits {
                    credits.sent(items.into(), size);
                }
                Ok(())
            }
            Err(error) if self.is_asked_for() && no_place(&error).is_some() => {
                Err(Ended::NoPlace(error))
            }
            Err(Error::Misuse(misuse)) => Err(Ended::Refused(misuse.to_string())),
            Err(error) => {
                tracing::debug!(pipe = self.engine.pipe.name(), %error, "a stream has no reader left");
                Err(Ended::Closed)
            }
        }
    }
}
