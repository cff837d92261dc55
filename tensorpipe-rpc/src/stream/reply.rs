//! A stream as the result: from the handler's stream to the caller's.

use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use futures_util::{Stream, StreamExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::argument::send_argument;
use super::in_turn;
use super::send::{Ended, send_items};
use crate::call::{InFlightCall, Sent, decode_references, decode_result, report_decoded};
use crate::client::ClientHandle;
use crate::codec::{Argument, DecodeError, EncodeError, Encoder, Reply};
use crate::context::CallContext;
use crate::engine::{Batch, Outcome, Received};
use crate::error::CallError;
use crate::header::{FailureCode, StreamDirection};
use crate::observe::CallStats;
use crate::schema::Method;

/// The stream that a stub returns: the call is on its way from the moment it is made. Each item is a value, or the error that ends
/// the stream: [`CallError::Service`] if it came from the method's own stream. Dropping the stream cancels the call.
///
/// If its reader stalls, it keeps at most 1024 unread items, or 4 MiB of them and one more of any size; then the handler's stream
/// waits. The call as a whole has 60 s ([`DEFAULT_DEADLINE`](crate::DEFAULT_DEADLINE)) unless the client's `with_deadline` says
/// otherwise.
#[must_use = "dropping a stream cancels its call"]
pub struct CallStream<T, E = Infallible> {
    method: &'static Method,
    state: State<E>,
    batch: Option<Batch>,
    /// Items that were given to the reader.
    items: u64,
    decode: Decode<T, E>,
}

struct Decode<T, E> {
    item: fn(&mut Batch) -> Option<Result<T, DecodeError>>,
    end: fn(&'static Method, Outcome) -> Result<(), CallError<E>>,
}

enum State<E> {
    /// The call was not sent.
    Failed(Option<CallError<E>>),
    Streaming {
        call: InFlightCall,
        /// How the call ended, once that is known. Items may still be unread.
        outcome: Option<Outcome>,
    },
    /// The stream has ended, with these figures.
    Done(Option<Box<CallStats>>),
}

impl<T, E> fmt::Debug for CallStream<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallStream")
            .field("method", &self.method.name)
            .finish_non_exhaustive()
    }
}

impl<T, E> Unpin for CallStream<T, E> {}

impl ClientHandle {
    /// Calls a method that answers with a stream of `T`s.
    pub fn stream_values<T: DeserializeOwned>(
        &self,
        method: &'static Method,
        encode: impl FnOnce(&mut Encoder) -> Result<(), EncodeError>,
    ) -> CallStream<T> {
        let state = State::of(self.call_once(method, encode));
        CallStream::new(method, state, crate::call::decode_value::<()>)
    }

    /// Calls a method that answers with a stream of `Result<T, E>`s.
    pub fn stream_results<T: DeserializeOwned, E: DeserializeOwned>(
        &self,
        method: &'static Method,
        encode: impl FnOnce(&mut Encoder) -> Result<(), EncodeError>,
    ) -> CallStream<T, E> {
        let made = self.call_once(method, encode);
        let state = State::of(made.map_err(CallError::without_service));
        CallStream::new(method, state, decode_result::<(), E>)
    }
}

impl<E> State<E> {
    fn of(made: Result<Sent, CallError<E>>) -> Self {
        match made {
            Ok((engine, slot)) => Self::Streaming {
                call: InFlightCall::new(engine, slot),
                outcome: None,
            },
            Err(error) => Self::Failed(Some(error)),
        }
    }
}

impl<T: DeserializeOwned, E> CallStream<T, E> {
    fn new(
        method: &'static Method,
        state: State<E>,
        end: fn(&'static Method, Outcome) -> Result<(), CallError<E>>,
    ) -> Self {
        Self {
            method,
            state,
            batch: None,
            items: 0,
            decode: Decode {
                item: Batch::next,
                end,
            },
        }
    }
}

impl<T, E> CallStream<T, E> {
    /// The next item; `None` when there are no more. Cancel safe.
    pub async fn next(&mut self) -> Option<Result<T, CallError<E>>> {
        poll_fn(|cx| self.poll_next_unpin(cx)).await
    }

    /// What happened so far, for calls made through the client's `with_stats`. Complete once [`CallStream::next`] has given `None`,
    /// or the error that ends the stream.
    pub fn stats(&self) -> CallStats {
        match &self.state {
            State::Streaming { call, .. } => call.stats(),
            State::Failed(_) | State::Done(None) => CallStats::default(),
            State::Done(Some(stats)) => (**stats).clone(),
        }
    }

    /// Sets the call's stream argument. For generated code.
    #[doc(hidden)]
    pub fn sending<A, S>(self, stream: S) -> Self
    where
        A: Serialize + DeserializeOwned,
        S: Stream<Item = A> + Send + 'static,
    {
        if let State::Streaming { call, .. } = &self.state
            && let Some(streams) = &call.slot.streams
        {
            send_argument(call.engine().clone(), streams.clone(), stream);
        }
        self
    }

    fn poll_item(&mut self, cx: &Context<'_>) -> Poll<Option<Result<T, CallError<E>>>> {
        if let State::Failed(error) = &mut self.state {
            return Poll::Ready(error.take().map(Err));
        }
        let mut found = self.take_ready(None);
        if found.is_none() {
            if let State::Streaming { call, .. } = &mut self.state {
                call.drive(cx);
            }
            found = self.take_ready(Some(cx.waker()));
        }
        if let Some(found) = found {
            if let State::Streaming { call, .. } = &mut self.state {
                call.pause();
            }
            return Poll::Ready(found);
        }
        if let State::Streaming { call, .. } = &mut self.state {
            call.poll_again(cx);
        }
        Poll::Pending
    }

    /// An item or the end, if it is here. Otherwise wakes `waker`, where given, when it is.
    fn take_ready(&mut self, waker: Option<&Waker>) -> Option<Option<Result<T, CallError<E>>>> {
        loop {
            let State::Streaming { call, outcome } = &mut self.state else {
                return Some(None);
            };
            let (engine, slot) = (call.engine(), &call.slot);
            let streams = slot.streams.as_ref();
            if let Some(batch) = &mut self.batch {
                if let Some(item) = (self.decode.item)(batch) {
                    let error = match item {
                        Ok(item) => {
                            self.items += 1;
                            return Some(Some(Ok(item)));
                        }
                        Err(error) => error.in_method(self.method.name),
                    };
                    return Some(Some(self.end(Err(CallError::Decode(error)))?));
                }
                if let Some(streams) = streams {
                    engine.consumed(streams, batch);
                }
                self.batch = None;
            }
            if let Some(streams) = streams
                && let Received::Items(batch) = engine.take_items(streams, waker)
            {
                self.batch = Some(batch);
                continue;
            }
            match outcome.take() {
                Some(outcome) if outcome.has_references() => {
                    let decode = || (self.decode.end)(self.method, outcome);
                    let ended = decode_references(engine, slot.id, None, decode);
                    return Some(self.end(ended));
                }
                Some(outcome) => {
                    let ended = (self.decode.end)(self.method, outcome);
                    return Some(self.end(ended));
                }
                // Items may have come just before the outcome: look for them once more.
                None => {
                    let ended = outcome.insert(slot.outcome.poll(waker)?);
                    if let Outcome::Failed(error) = ended {
                        call.tell(self.method, error);
                    }
                }
            }
        }
    }

    /// Ends the stream with `ended` as its last item, if that is an error.
    fn end(&mut self, ended: Result<(), CallError<E>>) -> Option<Result<T, CallError<E>>> {
        self.batch = None;
        if let State::Streaming { call, .. } = &self.state {
            report_decoded(call.engine(), &call.slot, self.method, &ended);
        }
        self.cancel();
        let stats = match &self.state {
            State::Streaming { call, .. } if call.slot.trace.is_some() => {
                Some(Box::new(call.stats()))
            }
            _ => None,
        };
        self.state = State::Done(stats);
        let mut error = ended.err()?;
        if let CallError::Deadline { items, .. } = &mut error {
            *items = Some(self.items);
        }
        Some(Err(error))
    }

    fn cancel(&mut self) {
        if let State::Streaming { call, outcome } = &mut self.state {
            call.engine().discard_outcome(call.slot.id, outcome.take());
            call.cancel();
        }
    }
}

impl<T, E> Stream for CallStream<T, E> {
    type Item = Result<T, CallError<E>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        in_turn(cx, |cx| self.poll_item(cx))
    }
}

impl<T, E> Drop for CallStream<T, E> {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// Sends the items of a handler's stream, then ends the call. For generated code.
pub async fn reply_values<T, S>(context: CallContext, stream: S) -> Reply
where
    T: Serialize + DeserializeOwned,
    S: Stream<Item = T>,
{
    send(&context, stream, |encoder, item| {
        item.encode(encoder).map_err(Ended::Unsendable)
    })
    .await
}

/// As [`reply_values`], for a stream of results. The first error is the last item. For generated code.
pub async fn reply_results<T, E, S>(context: CallContext, stream: S) -> Reply
where
    T: Serialize + DeserializeOwned,
    E: Serialize + DeserializeOwned,
    S: Stream<Item = Result<T, E>>,
{
    send(&context, stream, |encoder, item| match item {
        Ok(item) => item.encode(encoder).map_err(Ended::Unsendable),
        Err(error) => Err(Ended::Service(Box::new(Reply::error(error)))),
    })
    .await
}

async fn send<S: Stream>(
    context: &CallContext,
    stream: S,
    encode: impl Fn(&mut Encoder, &S::Item) -> Result<(), Ended>,
) -> Reply {
    let inner = &context.inner;
    let (Some(engine), Some(streams)) = (inner.caller.engine(), &inner.streams) else {
        // The connection is gone, so nobody reads the stream.
        return Reply::value(());
    };
    let stream = pin!(stream);
    match send_items(&engine, streams, StreamDirection::Reply, stream, encode).await {
        Ended::Finished | Ended::Closed => Reply::value(()),
        Ended::Service(reply) => *reply,
        Ended::Unsendable(error) => Reply::unsendable(error),
        Ended::NoPlace(error) => Reply::failed(FailureCode::NoPlaceForResult, error.to_string()),
        Ended::Refused(text) => Reply::failed(FailureCode::BadReply, text),
    }
}
