//! A call under way.

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tensorpipe::engine::Awaiting;
use tensorpipe::{Device, Misuse, Tensor};

use crate::codec::{Encoder, Subject, decode_reply};
use crate::engine::{Body, CallSlot, CallStreams, Engine, Outcome};
use crate::error::{CallError, PlaceError};
use crate::observe::{Attempts, CallStats, tell_failed};
use crate::remote::{Copied, FETCH, Handle, copying, decoding};
use crate::schema::Method;

/// A call as stubs return it: it is on its way from the moment it is made, polled or not. Awaiting it gives the method's result.
/// Dropping it cancels the call, unless another call was given its result: tensors that have not moved do not move, and the handler is
/// dropped at its next await.
///
/// A call has 60 s ([`DEFAULT_DEADLINE`](crate::DEFAULT_DEADLINE)) from when it is made, unless the client says otherwise
/// (`client.with_deadline(..)`). Within a handler it has at most the time that the handler has left. When time is up it ends with
/// [`CallError::Deadline`].
///
/// Over [`Replicas`](crate::Replicas) it is sent at once if one of them is live. Waiting for a replica, and retries, happen only
/// while the call is awaited.
#[must_use = "dropping a call cancels it"]
pub struct Call<T, E = Infallible> {
    method: &'static Method,
    state: State<E>,
    decode: fn(&'static Method, Outcome) -> Result<T, CallError<E>>,
    /// The reference that the call returns, if other calls were given it.
    promised: OnceLock<Arc<Handle>>,
}

/// Rare states are boxed, because calls are moved often.
enum State<E> {
    /// The call was not sent.
    Failed(Option<Box<CallError<E>>>),
    /// The outcome was known at once, without a server: a copy, and its references.
    Answered(Box<(Outcome, Copied)>),
    Waiting(InFlightCall),
    Retrying(Retrying, Option<Arc<Attempts>>),
    Done,
}

/// A call that was started.
pub(crate) enum StartedCall {
    /// On one connection: it fails if that ends.
    Sent(InFlightCall),
    /// On replicas: it ends when one of them has answered, or none can. The attempts are recorded if the caller asked for figures.
    Retrying(Retrying, Option<Arc<Attempts>>),
}

impl StartedCall {
    #[inline]
    pub(crate) fn sent((engine, slot): Sent) -> Self {
        Self::Sent(InFlightCall::new(engine, slot))
    }
}

/// Gives the call's outcome and, if that is an answer, the attempt that it came from. Dropping it cancels the call.
pub(crate) type Retrying = Pin<Box<dyn Future<Output = (Outcome, Option<Sent>)> + Send + Sync>>;

/// A call on its connection.
pub(crate) type Sent = (Arc<Engine>, Arc<CallSlot>);

/// A call that waits for its answer. Dropping it earlier cancels the call.
pub(crate) struct InFlightCall {
    pub(crate) slot: Arc<CallSlot>,
    awaiting: Awaiting<Arc<Engine>>,
    polled: bool,
}

impl InFlightCall {
    #[inline]
    pub(crate) fn new(engine: Arc<Engine>, slot: Arc<CallSlot>) -> Self {
        Self {
            slot,
            awaiting: Awaiting::new(engine),
            polled: false,
        }
    }

    #[inline]
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        self.awaiting.holder()
    }

    /// Takes the outcome, driving the pipe for it.
    pub(crate) fn poll(&mut self, cx: &Context<'_>) -> Poll<Outcome> {
        // On the first poll no waker of this call is registered, so there is none to take back.
        let mut outcome = None;
        if self.polled || self.slot.outcome.is_done() {
            outcome = self.slot.outcome.poll(None);
        }
        if outcome.is_none() {
            self.drive(cx);
            outcome = self.slot.outcome.poll(Some(cx.waker()));
        }
        match outcome {
            Some(outcome) => {
                self.pause();
                Poll::Ready(outcome)
            }
            None => {
                self.poll_again(cx);
                Poll::Pending
            }
        }
    }

    /// Reports how the call of this method failed.
    pub(crate) fn tell(&self, method: &'static Method, error: &CallError) {
        let peer = self.engine().pipe.peer_name();
        tell_failed(self.slot.trace.as_ref(), method, peer, error);
    }

    /// Stops driving: this task may not poll for a while, so other waiting tasks must drive.
    #[inline]
    pub(crate) fn pause(&mut self) {
        self.awaiting.pause();
    }

    /// Drives the pipe, and registers a waker there. On the first poll of a call whose message leaves with others, other tasks
    /// drive.
    #[inline]
    pub(crate) fn drive(&mut self, cx: &Context<'_>) {
        self.polled = true;
        if self.slot.take_skip_first_drive() {
            self.awaiting.join_others(cx.waker());
        } else {
            self.awaiting.drive(cx.waker());
        }
    }

    /// The outcome is not here yet: drive again when polled.
    #[inline]
    pub(crate) fn poll_again(&mut self, cx: &Context<'_>) {
        self.awaiting.poll_again(cx.waker());
    }

    /// The call's figures, if its caller asked for them.
    pub(crate) fn stats(&self) -> CallStats {
        self.slot.stats(&self.engine().pipe)
    }

    /// Cancels the call.
    pub(crate) fn cancel(&self) {
        self.engine().cancel(&self.slot);
    }
}

/// A call that is cancelled when this is dropped before its answer.
pub(crate) struct CancelOnDrop(Option<InFlightCall>);

impl CancelOnDrop {
    pub(crate) fn new((engine, slot): Sent) -> Self {
        Self(Some(InFlightCall::new(engine, slot)))
    }

    /// Waits for the outcome. Also returns the call that it came from.
    pub(crate) async fn outcome(&mut self) -> (Outcome, Option<Sent>) {
        let outcome = poll_fn(|cx| match &mut self.0 {
            Some(call) => call.poll(cx),
            None => Poll::Pending,
        });
        let outcome = outcome.await;
        let call = self.0.take();
        let sent = call.map(|call| (call.engine().clone(), call.slot));
        (outcome, sent)
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(call) = &self.0 {
            call.cancel();
        }
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
    pub(crate) fn of_value(method: &'static Method, made: Result<StartedCall, CallError>) -> Self {
        Self::new(method, State::new(made), decode_value)
    }

    /// A finished call: a copy of a local value, with its tensors on this device.
    pub(crate) fn of_copy_on(value: &T, device: Option<Device>) -> Self
    where
        T: Serialize,
    {
        let mut encoder = Encoder::new().about(Subject::Reply);
        let write = || encoder.write::<T, T>(value);
        let (written, copied) = copying(Copied::default(), write);
        let encoded = encoder.finish();
        let state = match (written, is_on(&encoded.tensors, device)) {
            (Ok(()), Ok(())) => {
                let outcome = Outcome::Value(Body::here(encoded));
                State::Answered(Box::new((outcome, copied)))
            }
            (Ok(()), Err(misuse)) => State::failed(CallError::NoPlace {
                error: PlaceError::Here(misuse),
                may_have_run: false,
            }),
            (Err(error), _) => State::failed(CallError::Encode(error)),
        };
        Self::new(&FETCH, state, decode_value)
    }

    /// A call that was not sent.
    pub(crate) fn failed(error: CallError) -> Self {
        Self::new(&FETCH, State::failed(error), decode_value)
    }
}

impl<T: DeserializeOwned, E: DeserializeOwned> Call<T, E> {
    /// A call of a method that returns a `Result<T, E>`.
    pub(crate) fn of_result(method: &'static Method, made: Result<StartedCall, CallError>) -> Self {
        let state = State::new(made.map_err(CallError::without_service));
        Self::new(method, state, decode_result)
    }
}

impl<T, E> Call<T, E> {
    #[inline]
    fn new(
        method: &'static Method,
        state: State<E>,
        decode: fn(&'static Method, Outcome) -> Result<T, CallError<E>>,
    ) -> Self {
        Self {
            method,
            state,
            decode,
            promised: OnceLock::new(),
        }
    }
}

impl<T, E> Call<T, E> {
    /// The result, or why there is none, and what happened on the way. Only calls made through `with_stats` of a client are
    /// measured; [`CallStats::is_measured`] tells. Dropping the future cancels the call.
    pub async fn stats(self) -> (Result<T, CallError<E>>, CallStats) {
        let told: Box<dyn FnOnce() -> CallStats + Send + Sync> = match &self.state {
            State::Waiting(call) if call.slot.trace.is_some() => {
                let (engine, slot) = (call.engine().clone(), call.slot.clone());
                Box::new(move || slot.stats(&engine.pipe))
            }
            State::Retrying(_, Some(attempts)) => {
                let attempts = attempts.clone();
                Box::new(move || attempts.stats())
            }
            _ => Box::new(CallStats::default),
        };
        let result = self.await;
        (result, told())
    }

    /// The reference that the call will return.
    pub(crate) fn promise(&self) -> Result<Arc<Handle>, &'static str> {
        match &self.state {
            State::Waiting(call) if self.method.promises => {
                let promised = || Arc::new(Handle::promised(call.engine().clone(), call.slot.id));
                Ok(self.promised.get_or_init(promised).clone())
            }
            State::Waiting(_) | State::Retrying(..) => Err(
                "the call's result is no reference by its method's signature: write its type as `Remote<T>`",
            ),
            State::Failed(_) => Err("the call that makes it was not made"),
            State::Answered(_) | State::Done => {
                Err("the call that makes it was awaited: give what it returned")
            }
        }
    }

    /// The call's streams, unless the call was not sent.
    pub(crate) fn streams(&self) -> Option<(Arc<Engine>, Arc<CallStreams>)> {
        match &self.state {
            State::Waiting(call) => Some((call.engine().clone(), call.slot.streams.clone()?)),
            _ => None,
        }
    }
}

impl<E> State<E> {
    #[inline]
    fn new(made: Result<StartedCall, CallError<E>>) -> Self {
        match made {
            Ok(StartedCall::Sent(call)) => Self::Waiting(call),
            Ok(StartedCall::Retrying(call, attempts)) => Self::Retrying(call, attempts),
            Err(error) => Self::failed(error),
        }
    }

    fn failed(error: CallError<E>) -> Self {
        Self::Failed(Some(Box::new(error)))
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
        Outcome::Failed(error) => Err(error.in_call(method)),
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
                Some(error) => return Poll::Ready(Err(*error)),
                None => return Poll::Ready(Err(polled_again())),
            },
            State::Done => return Poll::Ready(Err(polled_again())),
            State::Answered(_) => {
                let State::Answered(answer) = std::mem::replace(&mut this.state, State::Done)
                else {
                    return Poll::Ready(Err(polled_again()));
                };
                let (outcome, copied) = *answer;
                let decode = || (this.decode)(this.method, outcome);
                return Poll::Ready(copying(copied, decode).0);
            }
            State::Waiting(call) => {
                let outcome = call.poll(cx);
                if let Poll::Ready(Outcome::Failed(error)) = &outcome {
                    call.tell(this.method, error);
                }
                outcome.map(|outcome| (outcome, None))
            }
            State::Retrying(call, _) => call.as_mut().poll(cx),
        };
        let Poll::Ready((outcome, from)) = outcome else {
            return Poll::Pending;
        };
        let state = std::mem::replace(&mut this.state, State::Done);
        let from = match &state {
            State::Waiting(call) => Some((call.engine(), &call.slot)),
            _ => from.as_ref().map(|(engine, slot)| (engine, slot)),
        };
        let Some((engine, slot)) = from else {
            return Poll::Ready((this.decode)(this.method, outcome));
        };
        let has_references = outcome.has_references();
        let decode = || (this.decode)(this.method, outcome);
        let decoded = match has_references {
            false => decode(),
            true => decode_references(engine, slot.id, this.promised.take(), decode),
        };
        report_decoded(engine, slot, this.method, &decoded);
        Poll::Ready(decoded)
    }
}

/// Reports how a call ended, now that its answer is decoded, or cannot be.
#[inline]
pub(crate) fn report_decoded<T, E>(
    engine: &Engine,
    slot: &CallSlot,
    method: &'static Method,
    decoded: &Result<T, CallError<E>>,
) {
    let trace = slot.trace.as_ref();
    match (decoded, trace) {
        (Err(CallError::Decode(error)), _) => {
            let error = CallError::Decode(error.clone());
            tell_failed(trace, method, engine.pipe.peer_name(), &error);
        }
        (_, Some(trace)) => trace.taken(),
        (_, None) => {}
    }
}

/// Decodes an outcome that holds references.
pub(crate) fn decode_references<T, E>(
    engine: &Arc<Engine>,
    call: u64,
    promised: Option<Arc<Handle>>,
    decode: impl FnOnce() -> Result<T, CallError<E>>,
) -> Result<T, CallError<E>> {
    let unread = Unread { engine, call };
    let (decoded, _) = decoding(engine.clone(), promised, decode);
    if let Ok(_) | Err(CallError::Service(_)) = decoded {
        // Whoever has the value releases them.
        std::mem::forget(unread);
    }
    decoded
}

/// The references in an outcome, all of which are released: its decoding may have stopped, or panicked, before it met all.
struct Unread<'a> {
    engine: &'a Engine,
    call: u64,
}

impl Drop for Unread<'_> {
    fn drop(&mut self) {
        self.engine.release(self.call, None);
    }
}

/// Checks that tensors of this process are on the wanted device, if there is one.
fn is_on(tensors: &[Tensor], device: Option<Device>) -> Result<(), Misuse> {
    let Some(device) = device else { return Ok(()) };
    let elsewhere = |tensor: &Tensor| tensor.device() != device;
    match tensors.iter().position(elsewhere) {
        None => Ok(()),
        Some(number) => Err(Misuse::OutOfReach {
            what: match tensors.len() {
                1 => "the value".to_owned(),
                _ => format!("tensor {number} of the value"),
            },
            device,
            reason: format!(
                "the value is in this process, on {}; copy it there with that device's own means",
                tensors[number].device()
            ),
        }),
    }
}

fn polled_again<E>() -> CallError<E> {
    CallError::Other("this call has been awaited already".into())
}

impl<T, E> Drop for Call<T, E> {
    fn drop(&mut self) {
        match &self.state {
            State::Waiting(call) if self.promised.get().is_some() => {
                call.engine().make_orphan(&call.slot);
            }
            State::Waiting(call) => call.cancel(),
            _ => {}
        }
    }
}
