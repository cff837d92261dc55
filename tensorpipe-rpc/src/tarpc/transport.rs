//! A pipe as tarpc's transport.
//!
//! The transport takes messages from the pipe as tarpc asks for them, and reads at most [`MAX_READING`] side by side. It yields a
//! message that came whole at once, others when they are complete. The sink is ready while fewer than [`MAX_WRITING`] messages wait
//! to be handed over, so a peer that does not read slows its writer down.
//!
//! Invariant: an error of one request fails only that request. The transport ends, with one error, only when the pipe ends or the
//! peer breaks the protocol; the pipe is then closed.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::stream::unfold;
use futures_util::{FutureExt, Sink, Stream};
use tensorpipe::{Error, Incoming, Message, PeerAddr, Pipe, Read, Write};

use super::error::TransportError;
use super::wire::{Arrived, EncodedMessage, TarpcMessage, What};
use crate::engine::{spill_large_body, to_body};
use crate::header::{Header, Kind, Tarpc};

/// How many messages of the peer are read at once. Further ones wait in the pipe, within its limits.
pub const MAX_READING: usize = 64;

/// How many messages may wait until the transport or channel that carries them takes them.
pub const MAX_WRITING: usize = 64;

/// Makes a pipe the transport of a tarpc client or channel. The pipe must not be used for anything else from now on.
///
/// Its use decides its side: `client::new(config, transport(pipe))` at one end, `BaseChannel::with_defaults(transport(pipe))` at
/// the other.
///
/// Closing the sink ends the peer's stream after the messages already sent; answers still arrive. Dropping the transport closes the
/// pipe in good order: sent messages are still delivered.
pub fn transport<Item, SinkItem>(pipe: Pipe) -> PipeTransport<Item, SinkItem>
where
    Item: TarpcMessage,
    SinkItem: TarpcMessage,
{
    let arriving = unfold(pipe.clone(), |pipe| async move {
        let incoming = pipe.read_descriptor().await;
        Some((incoming, pipe))
    });
    PipeTransport {
        pipe,
        arriving: Some(Box::pin(arriving)),
        end: None,
        reading: Vec::new(),
        writing: Vec::new(),
        failed: VecDeque::new(),
        items: PhantomData,
    }
}

/// A [`Pipe`] on which tarpc's messages travel: see [`transport`]. Implements tarpc's `Transport<SinkItem, Item>`.
pub struct PipeTransport<Item, SinkItem> {
    pipe: Pipe,
    /// `None` once no more messages come.
    arriving: Option<Arriving>,
    /// The pipe's error, yielded after everything before it.
    end: Option<Error>,
    reading: Vec<Reading>,
    writing: Vec<Writing>,
    /// Requests that could not be sent, and why.
    failed: VecDeque<(u64, String)>,
    items: PhantomData<fn(SinkItem) -> Item>,
}

type Arriving = Pin<Box<dyn Stream<Item = Result<Incoming, Error>> + Send + Sync>>;

/// A message on its way in.
struct Reading {
    header: Header,
    what: Tarpc,
    read: Read,
}

/// A message on its way out.
struct Writing {
    call: u64,
    write: Write,
}

impl<Item, SinkItem> fmt::Debug for PipeTransport<Item, SinkItem> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipeTransport")
            .field("pipe", &self.pipe.name())
            .field("reading", &self.reading.len())
            .field("writing", &self.writing.len())
            .finish_non_exhaustive()
    }
}

impl<Item, SinkItem> PipeTransport<Item, SinkItem> {
    /// The pipe: its name, its number among those of this process, route and counters.
    pub fn pipe(&self) -> &Pipe {
        &self.pipe
    }

    /// The peer's address, as this system knows it: for `max_channels_per_key` and the like.
    pub fn peer_addr(&self) -> PeerAddr {
        self.pipe.peer_addr()
    }
}

impl<Item: TarpcMessage, SinkItem: TarpcMessage> PipeTransport<Item, SinkItem> {
    /// Starts to read a message, if the other side of tarpc may send it.
    fn arrives(&mut self, incoming: Incoming) -> Result<(), TransportError> {
        let header = match Header::decode(incoming.metadata()) {
            Ok(header) => header,
            Err(what) => {
                incoming.refuse(what);
                return Err(self.foreign(what));
            }
        };
        let what = match header.kind {
            Kind::Tarpc(what) if Item::is(What(what)) => what,
            Kind::Tarpc(what) if what == Tarpc::Wrapped || Item::is(What(Tarpc::Wrapped)) => {
                incoming
                    .refuse("one end wraps tarpc's messages and the other does not; do it at both");
                return Err(self.foreign("a message that one end wraps and the other does not"));
            }
            Kind::Tarpc(_) => {
                incoming.refuse("this is the same side of tarpc's protocol as yours");
                return Err(self.foreign("a message that only this side sends"));
            }
            _ => {
                incoming.refuse(
                    "only tarpc here: connect with a client that tarpc generates, over `tensorpipe_rpc::tarpc::transport`",
                );
                return Err(self.foreign("a message of `#[tensor_service]`"));
            }
        };
        if let Tarpc::Cancel = what {
            let begun = self.reading.len();
            // If the request is still being read, tarpc sees neither it nor the cancellation. Dropping the read tells the peer to
            // stop.
            self.reading
                .retain(|read| read.header.call != header.call || read.what != Tarpc::Request);
            if self.reading.len() < begun {
                return Ok(());
            }
        }
        self.reading.push(Reading {
            header,
            what,
            read: incoming.read(),
        });
        Ok(())
    }

    /// Yields the next complete message.
    fn poll_reading(&mut self, cx: &mut Context<'_>) -> Option<Result<Item, TransportError>> {
        let mut i = 0;
        while let Some(reading) = self.reading.get_mut(i) {
            let Poll::Ready(result) = Pin::new(&mut reading.read).poll(cx) else {
                if reading.what == Tarpc::Wrapped {
                    // Wrapped messages keep their order: only the wrapper knows which may overtake each other.
                    return None;
                }
                i += 1;
                continue;
            };
            let Reading { header, what, .. } = self.reading.remove(i);
            match result {
                Ok(message) => return Some(self.decode(&header, what, message)),
                // The pipe's end is reported once, when no more messages come.
                Err(error) if error.ends_pipe() => {}
                // Only the wrapper knows which request this message belongs to, and what depends on it.
                Err(error) if what == Tarpc::Wrapped => return Some(Err(error.into())),
                // The peer took the message back.
                Err(Error::Reset { .. }) => {}
                Err(error) => {
                    let reason = format!("the message could not be received: {error}");
                    if let Some(item) = self.fail(header.call, reason, cx) {
                        return Some(Ok(item));
                    }
                }
            }
        }
        None
    }

    fn decode(
        &self,
        header: &Header,
        what: Tarpc,
        message: Message,
    ) -> Result<Item, TransportError> {
        let Some(body) = to_body(message, header) else {
            return Err(self.foreign("a message without its body"));
        };
        Item::decode(What(what), header.call, Arrived(body)).map_err(|error| {
            TransportError::Decode {
                pipe: self.pipe.name().to_owned(),
                error,
            }
        })
    }

    /// Fails a request whose message did not arrive: the client gets an answer with the reason.
    fn fail(&mut self, call: u64, reason: String, cx: &mut Context<'_>) -> Option<Item> {
        tracing::debug!(pipe = self.pipe.name(), call, reason, "a request failed");
        // Such answers do not wait for the sink to be ready. A client that reads none of them gets no more.
        let has_room = self.writing.len() < 2 * MAX_WRITING
            || self.poll_writing(cx).is_ok() && self.writing.len() < 2 * MAX_WRITING;
        if has_room
            && let Some(answer) = SinkItem::failure(call, reason.clone())
            && let Err(error) = self.send(answer)
        {
            tracing::debug!(pipe = self.pipe.name(), %error, "nobody is left to answer");
        }
        Item::failure(call, reason)
    }

    fn send(&mut self, item: SinkItem) -> Result<(), TransportError> {
        let call = item.call();
        let EncodedMessage {
            mut encoded,
            header_len,
        } = item.encode()?;
        spill_large_body(&mut encoded, header_len, &self.pipe.peer_limits());
        let message = Message {
            metadata: encoded.metadata.into(),
            payloads: encoded.payloads,
            tensors: encoded.tensors.into_iter().map(Into::into).collect(),
            ..Message::default()
        };
        let mut write = self.pipe.write(message);
        if write.id().is_none()
            && let Some(Err(error)) = (&mut write).now_or_never()
        {
            return Err(error.into());
        }
        self.writing.push(Writing { call, write });
        Ok(())
    }

    /// Polls the messages on their way out.
    fn poll_writing(&mut self, cx: &mut Context<'_>) -> Result<(), TransportError> {
        let mut i = 0;
        while let Some(writing) = self.writing.get_mut(i) {
            let Poll::Ready(result) = Pin::new(&mut writing.write).poll(cx) else {
                i += 1;
                continue;
            };
            let call = self.writing.remove(i).call;
            match result {
                Ok(()) => {}
                Err(error) if error.ends_pipe() || Item::is(What(Tarpc::Wrapped)) => {
                    return Err(error.into());
                }
                Err(Error::Reset { .. }) => {}
                Err(error) => {
                    self.failed.push_back((call, error.to_string()));
                    // Wake the stream, which yields the failure and may be waiting.
                    cx.waker().wake_by_ref();
                }
            }
        }
        Ok(())
    }

    fn foreign(&self, what: &'static str) -> TransportError {
        TransportError::Foreign {
            pipe: self.pipe.name().to_owned(),
            what,
        }
    }

    /// The peer broke the protocol: ignore all that it sends from now on.
    fn give_up(&mut self) {
        self.arriving = None;
        self.end = None;
        self.reading.clear();
        // The close begins at this poll, and goes on in the background.
        let _ = self.pipe.close().now_or_never();
    }
}

impl<Item: TarpcMessage, SinkItem: TarpcMessage> Stream for PipeTransport<Item, SinkItem> {
    type Item = Result<Item, TransportError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            while let Some((call, reason)) = this.failed.pop_front() {
                if let Some(answer) = Item::failure(call, reason) {
                    return Poll::Ready(Some(Ok(answer)));
                }
            }
            if let Some(read) = this.poll_reading(cx) {
                if read.is_err() {
                    this.give_up();
                }
                return Poll::Ready(Some(read));
            }
            let Some(arriving) = &mut this.arriving else {
                if !this.reading.is_empty() {
                    return Poll::Pending;
                }
                return Poll::Ready(this.end.take().map(|error| Err(error.into())));
            };
            if this.reading.len() >= MAX_READING {
                return Poll::Pending;
            }
            match ready!(arriving.as_mut().poll_next(cx)) {
                Some(Ok(incoming)) => {
                    if let Err(error) = this.arrives(incoming) {
                        this.give_up();
                        return Poll::Ready(Some(Err(error)));
                    }
                }
                Some(Err(error)) => {
                    this.arriving = None;
                    this.end = (!matches!(error, Error::Closed { .. })).then_some(error);
                }
                None => this.arriving = None,
            }
        }
    }
}

impl<Item: TarpcMessage, SinkItem: TarpcMessage> Sink<SinkItem> for PipeTransport<Item, SinkItem> {
    type Error = TransportError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.poll_writing(cx)?;
        if self.writing.len() < MAX_WRITING {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    fn start_send(mut self: Pin<&mut Self>, item: SinkItem) -> Result<(), Self::Error> {
        let this = &mut *self;
        let call = item.call();
        if item.is_cancel()
            && let Some(i) = this.writing.iter().position(|write| write.call == call)
        {
            // Cancel the request if it has not left. The cancellation follows, because the peer may have read the request.
            this.writing.remove(i).write.cancel();
        }
        match this.send(item) {
            Err(TransportError::Pipe(error)) if error.ends_pipe() => Err(error.into()),
            Err(error) => match SinkItem::failure(call, format!("no answer: {error}")) {
                Some(answer) => this.send(answer),
                None => Err(error),
            },
            Ok(()) => Ok(()),
        }
    }

    /// Ready when the pipe's transport or channel has taken everything. A large tensor moves when the peer reads it.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.poll_writing(cx)?;
        if self.writing.is_empty() {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    /// Ends the peer's stream after the messages already sent, then flushes. Answers still arrive.
    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.pipe.finish();
        self.poll_flush(cx)
    }
}
