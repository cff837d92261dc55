//! A call under way.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tensorpipe::Awaiting;

use crate::codec::{Outcome as ReplyOutcome, Reply, decode_reply};
use crate::engine::{Body, CallSlot, CallStreams, Engine, Outcome};
use crate::error::CallError;
use crate::observe::CallStats;
use crate::remote::{FETCH, Handle, decoding};
use crate::schema::Method;

/// What a stub returns: the call is on its way from the moment it is made, polled or not. Awaiting it gives the method's
/// result; dropping it cancels the call: what of its tensors has not moved does not move, and its handler is dropped at its
/// next await.
#[must_use = "dropping a call cancels it"]
pub struct Call<T, E = Infallible> {
    method: &'static Method,
    state: State<E>,
    decode: fn(&'static Method, Outcome) -> Result<T, CallError<E>>,
    /// The reference that it returns, if other calls were given it.
    promised: OnceLock<Arc<Handle>>,
}

enum State<E> {
    /// It was not made.
    Failed(Option<CallError<E>>),
    /// It needed nobody else.
    Answered(Outcome),
    Waiting {
        engine: Arc<Engine>,
        slot: Arc<CallSlot>,
        awaiting: Option<Awaiting>,
    },
    Done,
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
    pub(crate) fn of_value(
        method: &'static Method,
        made: Result<(Arc<Engine>, Arc<CallSlot>), CallError>,
    ) -> Self {
        Self {
            method,
            state: State::new(made),
            decode: decode_value,
            promised: OnceLock::new(),
        }
    }

    /// A copy of a value that is here.
    pub(crate) fn of_copy(value: &T) -> Self
    where
        T: Serialize,
    {
        let state = match Reply::of(value).into_outcome() {
            ReplyOutcome::Value(encoded) => State::Answered(Outcome::Value(Body::here(encoded))),
            ReplyOutcome::Unsendable(error) => State::Failed(Some(CallError::Encode(error))),
            _ => State::Failed(None),
        };
        Self {
            method: &FETCH,
            state,
            decode: decode_value,
            promised: OnceLock::new(),
        }
    }

    /// A call that was not made.
    pub(crate) fn failed(error: CallError) -> Self {
        Self {
            method: &FETCH,
            state: State::Failed(Some(error)),
            decode: decode_value,
            promised: OnceLock::new(),
        }
    }
}

impl<T: DeserializeOwned, E: DeserializeOwned> Call<T, E> {
    /// A call of a method that returns a `Result<T, E>`.
    pub(crate) fn of_result(
        method: &'static Method,
        made: Result<(Arc<Engine>, Arc<CallSlot>), CallError>,
    ) -> Self {
        Self {
            method,
            state: State::new(made.map_err(CallError::without_service)),
            decode: decode_result,
            promised: OnceLock::new(),
        }
    }
}

impl<T, E> Call<T, E> {
    /// Its result, and what happened: for calls made through `with_stats` of a client; of others nothing is known. Dropping the
    /// future cancels the call.
    pub async fn stats(self) -> (Result<T, CallError<E>>, CallStats) {
        let noted = match &self.state {
            State::Waiting { slot, .. } => slot.noted.clone(),
            _ => None,
        };
        let result = self.await;
        (result, noted.map(|noted| noted.stats()).unwrap_or_default())
    }

    /// The reference that it will return.
    pub(crate) fn promise(&self) -> Result<Arc<Handle>, &'static str> {
        match &self.state {
            State::Waiting { engine, slot, .. } if self.method.promises => {
                let promised = || Arc::new(Handle::promised(engine.clone(), slot.id));
                Ok(self.promised.get_or_init(promised).clone())
            }
            State::Waiting { .. } => Err(
                "the call's result is no reference by its method's signature: write its type as `Remote<T>`",
            ),
            State::Failed(_) => Err("the call that makes it was not made"),
            State::Answered(_) | State::Done => {
                Err("the call that makes it was awaited: give what it returned")
            }
        }
    }

    /// Its streams, unless it was not made.
    pub(crate) fn streams(&self) -> Option<(Arc<Engine>, Arc<CallStreams>)> {
        match &self.state {
            State::Waiting { engine, slot, .. } => Some((engine.clone(), slot.streams.clone()?)),
            _ => None,
        }
    }
}

impl<E> State<E> {
    fn new(made: Result<(Arc<Engine>, Arc<CallSlot>), CallError<E>>) -> Self {
        match made {
            Ok((engine, slot)) => Self::Waiting {
                engine,
                slot,
                awaiting: None,
            },
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
            State::Answered(_) => {
                let State::Answered(outcome) = std::mem::replace(&mut this.state, State::Done)
                else {
                    return Poll::Ready(Err(polled_again()));
                };
                return Poll::Ready((this.decode)(this.method, outcome));
            }
            State::Waiting {
                engine,
                slot,
                awaiting,
            } => match slot.poll(None) {
                Some(outcome) => outcome,
                None => {
                    let awaiting = awaiting.get_or_insert_with(|| engine.pipe.awaiting());
                    if slot.leaves_soon() {
                        awaiting.register(cx.waker());
                    } else {
                        awaiting.drive(cx.waker());
                    }
                    match slot.poll(Some(cx.waker())) {
                        Some(outcome) => outcome,
                        None => {
                            awaiting.look_again(cx.waker());
                            return Poll::Pending;
                        }
                    }
                }
            },
        };
        let state = std::mem::replace(&mut this.state, State::Done);
        let (State::Waiting { engine, slot, .. }, true) = (state, outcome.has_references()) else {
            return Poll::Ready((this.decode)(this.method, outcome));
        };
        let promised = this.promised.take();
        let decode = || (this.decode)(this.method, outcome);
        let (decoded, _) = decoding(engine.clone(), promised, decode);
        if decoded.is_err() {
            // Some of them may not have been looked at.
            engine.release(slot.id, None);
        }
        Poll::Ready(decoded)
    }
}

fn polled_again<E>() -> CallError<E> {
    CallError::Other("this call has been awaited already".into())
}

impl<T, E> Drop for Call<T, E> {
    fn drop(&mut self) {
        match &self.state {
            State::Waiting { slot, .. } if self.promised.get().is_some() => slot.make_orphan(),
            State::Waiting { engine, slot, .. } => engine.cancel(slot),
            _ => {}
        }
    }
}
