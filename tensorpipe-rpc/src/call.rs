//! A call under way.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use serde::de::DeserializeOwned;
use tensorpipe::Awaiting;

use crate::codec::decode_reply;
use crate::engine::{Body, CallSlot, CallStreams, Engine, Outcome};
use crate::error::CallError;
use crate::schema::Method;

/// What a stub returns: the call is on its way from the moment it is made, polled or not. Awaiting it gives the method's
/// result; dropping it cancels the call: what of its tensors has not moved does not move, and its handler is dropped at its
/// next await.
///
/// Over [`Replicas`](crate::Replicas) it is made at once if one of them is there; what comes after that, waiting for one and
/// being made again, happens while it is awaited.
#[must_use = "dropping a call cancels it"]
pub struct Call<T, E = Infallible> {
    method: &'static Method,
    state: State<E>,
    decode: fn(&'static Method, Outcome) -> Result<T, CallError<E>>,
}

enum State<E> {
    /// It was not made.
    Failed(Option<CallError<E>>),
    Waiting(UnderWay),
    Surviving(Surviving),
    Done,
}

/// How a call came to be under way.
pub(crate) enum Made {
    /// On one connection, with which it ends.
    Sent(UnderWay),
    /// On replicas: it ends when one of them has answered, or none can.
    Surviving(Surviving),
}

/// Ends with the call's outcome. Dropping it cancels the call.
pub(crate) type Surviving = Pin<Box<dyn Future<Output = Outcome> + Send + Sync>>;

/// A call that waits for its answer. Whoever drops it before cancels it.
pub(crate) struct UnderWay {
    engine: Arc<Engine>,
    slot: Arc<CallSlot>,
    awaiting: Option<Awaiting>,
}

impl UnderWay {
    pub(crate) fn new(engine: Arc<Engine>, slot: Arc<CallSlot>) -> Self {
        Self {
            engine,
            slot,
            awaiting: None,
        }
    }

    /// Takes the outcome, driving the pipe for it.
    pub(crate) fn poll(&mut self, cx: &Context<'_>) -> Poll<Outcome> {
        let Self {
            engine,
            slot,
            awaiting,
        } = self;
        if let Some(outcome) = slot.poll(None) {
            return Poll::Ready(outcome);
        }
        let awaiting = awaiting.get_or_insert_with(|| engine.pipe.awaiting());
        if slot.leaves_soon() {
            awaiting.register(cx.waker());
        } else {
            awaiting.drive(cx.waker());
        }
        match slot.poll(Some(cx.waker())) {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                awaiting.look_again(cx.waker());
                Poll::Pending
            }
        }
    }

    /// Nobody waits any more.
    pub(crate) fn cancel(&self) {
        self.engine.cancel(&self.slot);
    }
}

impl<T, E> fmt::Debug for Call<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("method", &self.method.name)
            .finish_non_exhaustive()
    }
}

impl<T, E> Unpin for Call<T, E> {}

impl<T: DeserializeOwned> Call<T> {
    /// A call of a method that returns a `T`.
    pub(crate) fn of_value(method: &'static Method, made: Result<Made, CallError>) -> Self {
        Self {
            method,
            state: State::new(made),
            decode: decode_value,
        }
    }
}

impl<T: DeserializeOwned, E: DeserializeOwned> Call<T, E> {
    /// A call of a method that returns a `Result<T, E>`.
    pub(crate) fn of_result(method: &'static Method, made: Result<Made, CallError>) -> Self {
        Self {
            method,
            state: State::new(made.map_err(CallError::without_service)),
            decode: decode_result,
        }
    }
}

impl<T, E> Call<T, E> {
    /// Its streams, unless it was not made.
    pub(crate) fn streams(&self) -> Option<(Arc<Engine>, Arc<CallStreams>)> {
        match &self.state {
            State::Waiting(call) => Some((call.engine.clone(), call.slot.streams.clone()?)),
            _ => None,
        }
    }
}

impl<E> State<E> {
    fn new(made: Result<Made, CallError<E>>) -> Self {
        match made {
            Ok(Made::Sent(call)) => Self::Waiting(call),
            Ok(Made::Surviving(call)) => Self::Surviving(call),
            Err(error) => Self::Failed(Some(error)),
        }
    }
}

pub(crate) fn decode_value<T: DeserializeOwned>(
    method: &'static Method,
    outcome: Outcome,
) -> Result<T, CallError> {
    match outcome {
        Outcome::Value(body) => decode(method, body).map_err(CallError::Decode),
        Outcome::ServiceError(_) => Err(CallError::Other(
            "the server answered with an error of a method that has none".into(),
        )),
        Outcome::Failed(error) => Err(error),
        Outcome::NotBound(_, text) => Err(CallError::Other(text)),
    }
}

pub(crate) fn decode_result<T: DeserializeOwned, E: DeserializeOwned>(
    method: &'static Method,
    outcome: Outcome,
) -> Result<T, CallError<E>> {
    match outcome {
        Outcome::ServiceError(body) => match decode(method, body) {
            Ok(error) => Err(CallError::Service(error)),
            Err(error) => Err(CallError::Decode(error)),
        },
        other => decode_value(method, other).map_err(CallError::without_service),
    }
}

fn decode<T: DeserializeOwned>(
    method: &'static Method,
    body: Body,
) -> Result<T, crate::codec::DecodeError> {
    decode_reply(body.metadata, body.payloads, body.tensors)
        .map_err(|error| error.in_method(method.name))
}

impl<T, E> Future for Call<T, E> {
    type Output = Result<T, CallError<E>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let outcome = match &mut this.state {
            State::Failed(error) => match error.take() {
                Some(error) => return Poll::Ready(Err(error)),
                None => return Poll::Ready(Err(polled_again())),
            },
            State::Done => return Poll::Ready(Err(polled_again())),
            State::Waiting(call) => call.poll(cx),
            State::Surviving(call) => call.as_mut().poll(cx),
        };
        let Poll::Ready(outcome) = outcome else {
            return Poll::Pending;
        };
        this.state = State::Done;
        Poll::Ready((this.decode)(this.method, outcome))
    }
}

fn polled_again<E>() -> CallError<E> {
    CallError::Other("this call has been awaited already".into())
}

impl<T, E> Drop for Call<T, E> {
    fn drop(&mut self) {
        if let State::Waiting(call) = &self.state {
            call.cancel();
        }
    }
}
