//! A stream as an argument: from the caller's stream to the handler's.

use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tensorpipe::engine::{Awaiting, EnginePipe};

use futures_util::{Stream, StreamExt, stream};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::in_turn;
use super::send::{Ended, send_items};
use crate::call::Call;
use crate::caught::catch_panic_poll;
use crate::codec::{Argument, DecodeError};
use crate::context::CallContext;
use crate::engine::{Batch, CallStreams, Engine, Received};
use crate::error::CallError;
use crate::header::{Kind, StreamDirection};

/// A stream that a caller gives as an argument. Methods of a service trait name it as the argument's type.
///
/// It ends where the caller's stream ends. When the caller goes away, or an item cannot be read, the handler is dropped at its next
/// await, as in any call. Another reader, such as a task that the handler spawned, gets an [`Interrupted`]. So does a task that
/// reads on after the handler has returned. Dropping the stream tells the caller that no further items are wanted; the call goes
/// on.
///
/// At most 1024 unread items, or 4 MiB of them and one more of any size, are kept here; then the caller's stream waits. The call as
/// a whole has its deadline: 60 s unless its caller says otherwise.
pub struct Streaming<T> {
    context: CallContext,
    batch: Option<Batch>,
    finished: bool,
    items: PhantomData<fn() -> T>,
}

/// Why a [`Streaming`] ended before the caller's stream did.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Interrupted {
    /// The caller gave the call up or is gone, time is up, or the handler has returned.
    #[error(
        "the call is over, and its stream was not: what has come of it is not all; give up what it was for"
    )]
    CallOver,
    /// An item does not decode as its type. The call has failed with this error.
    #[error("an item of the stream cannot be read: {0}")]
    Unreadable(#[source] DecodeError),
}

impl<T> Unpin for Streaming<T> {}

impl<T> fmt::Debug for Streaming<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streaming")
            .field("finished", &self.finished)
            .finish_non_exhaustive()
    }
}

impl<T: DeserializeOwned> Streaming<T> {
    /// The stream of the call being handled. For generated code.
    #[doc(hidden)]
    pub fn of(context: &CallContext) -> Self {
        Self {
            context: context.clone(),
            batch: None,
            finished: false,
            items: PhantomData,
        }
    }

    /// The next item; `None` when the caller has no more, and after an error. Cancel safe.
    pub async fn next(&mut self) -> Option<Result<T, Interrupted>> {
        poll_fn(|cx| self.poll_next_unpin(cx)).await
    }

    /// The items without errors, for the handler itself. If the stream is interrupted, it waits for ever, and the handler is
    /// dropped there. A task of its own would never end: it must read the stream itself.
    pub fn values(self) -> impl Stream<Item = T> + Send + Unpin + use<T> {
        let (mut items, mut interrupted) = (self, false);
        stream::poll_fn(move |cx| {
            if interrupted {
                return Poll::Pending;
            }
            match ready!(items.poll_next_unpin(cx)).transpose() {
                Ok(item) => Poll::Ready(item),
                Err(_) => {
                    interrupted = true;
                    Poll::Pending
                }
            }
        })
    }

    fn poll_item(&mut self, cx: &Context<'_>) -> Poll<Option<Result<T, Interrupted>>> {
        if self.finished {
            return Poll::Ready(None);
        }
        loop {
            if let Some(batch) = &mut self.batch {
                if let Some(item) = batch.next() {
                    return Poll::Ready(Some(item.map_err(|error| self.unreadable(error))));
                }
                if let (Some((engine, streams)), Some(batch)) = (self.ends(), &self.batch) {
                    engine.consumed(streams, batch);
                }
                self.batch = None;
            }
            let received = match self.ends() {
                Some((engine, streams)) => engine.take_items(streams, Some(cx.waker())),
                None => Received::Closed,
            };
            match received {
                Received::Items(batch) => self.batch = Some(batch),
                Received::Finished => {
                    self.finished = true;
                    return Poll::Ready(None);
                }
                Received::Closed => {
                    self.finished = true;
                    return Poll::Ready(Some(Err(Interrupted::CallOver)));
                }
                Received::Held(_) | Received::Nothing => return Poll::Pending,
            }
        }
    }

    /// Ends the call, and tells its caller why.
    fn unreadable(&mut self, error: DecodeError) -> Interrupted {
        self.finished = true;
        if let Some((engine, streams)) = self.ends() {
            engine.break_streams(streams, &error.to_string());
        }
        Interrupted::Unreadable(error)
    }

    fn ends(&self) -> Option<(Arc<Engine>, &Arc<CallStreams>)> {
        let inner = &self.context.inner;
        Some((inner.caller.engine()?, inner.streams.as_ref()?))
    }
}

impl<T: DeserializeOwned> Stream for Streaming<T> {
    type Item = Result<T, Interrupted>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        in_turn(cx, |cx| self.poll_item(cx))
    }
}

impl<T> Drop for Streaming<T> {
    fn drop(&mut self) {
        let inner = &self.context.inner;
        if self.finished || inner.cancel.is_set() {
            return;
        }
        if let (Some(engine), Some(streams)) = (inner.caller.engine(), &inner.streams)
            && !engine.is_inherited()
        {
            engine.at_once(|| {
                engine.close_inbox(streams);
                engine.send_control(Kind::Stop, streams.call, &[]);
            });
        }
    }
}

impl<T, E> Call<T, E> {
    /// Sets the call's stream argument. For generated code.
    #[doc(hidden)]
    pub fn sending<A, S>(self, stream: S) -> Self
    where
        A: Serialize + DeserializeOwned,
        S: Stream<Item = A> + Send + 'static,
    {
        if let Some((engine, streams)) = self.streams() {
            send_argument(engine, streams, stream);
        }
        self
    }
}

/// Sends the items of a call's argument, on a task of its own, for as long as the call lasts.
pub(super) fn send_argument<A, S>(engine: Arc<Engine>, streams: Arc<CallStreams>, stream: S)
where
    A: Serialize + DeserializeOwned,
    S: Stream<Item = A> + Send + 'static,
{
    let runtime = engine.pipe.runtime().clone();
    runtime.spawn(async move {
        let stream = pin!(stream);
        let encode = |encoder: &mut crate::codec::Encoder, item: &A| {
            item.encode(encoder).map_err(Ended::Unsendable)
        };
        let mut sending = pin!(send_items(
            &engine,
            &streams,
            StreamDirection::Argument,
            stream,
            encode
        ));
        let mut awaiting = Awaiting::new(engine.clone());
        // This task drives the pipe too: perhaps nobody else is there to read the server's credit.
        let ended = poll_fn(|cx| {
            if let Poll::Ready(ended) = catch_panic_poll(|| sending.as_mut().poll(cx)) {
                return Poll::Ready(ended);
            }
            awaiting.drive(cx.waker());
            let ended = catch_panic_poll(|| sending.as_mut().poll(cx));
            if ended.is_pending() {
                awaiting.poll_again(cx.waker());
            }
            ended
        });
        let error = match ended.await {
            Ok(Ended::Finished) => return engine.send_control(Kind::End, streams.call, &[]),
            Ok(Ended::Closed | Ended::Service(_)) => return,
            // Not `CallError::Encode`, after which nothing was sent: the method has the items before this one.
            Ok(Ended::Unsendable(error)) => CallError::Other(error.to_string().into()),
            Ok(Ended::NoPlace(error)) => {
                CallError::of_pipe(error, streams.placement.is_some(), true)
            }
            Ok(Ended::Refused(text)) => CallError::Other(text.into()),
            Err(panic) => CallError::Other(
                format!("the stream given as an argument panicked: {panic}").into(),
            ),
        };
        engine.fail_streaming(streams.call, error);
    });
}
