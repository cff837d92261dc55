//! A receive.

use std::pin::Pin;
use std::task::{Context, Poll};

use super::bound::Bound;
use super::error::RecvError;
use super::key::Key;
use super::local::Reservation;
use super::pull::Pull;
use super::value::Value;

/// A receive under way. It takes its place when it is made, and asks another process's producer at once. It ends with the value, or
/// with why there is none. Cancel safe: dropping it gives its place up. A value that was sent, even one that has arrived, stays
/// with its producer for the next receive.
#[must_use = "dropping a receive gives its place up"]
#[derive(Debug)]
pub struct Recv {
    pub(super) state: State,
}

#[derive(Debug)]
pub(super) enum State {
    Failed(RecvError),
    /// The value is of this process.
    Here(Reservation, Bound),
    /// The value is of another process. The place here lets a finished step or an abort end the receive; the pull has its own
    /// bound.
    There(Reservation, Pull),
    Done(Key),
}

impl State {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Value, RecvError>> {
        match self {
            Self::Failed(error) => Poll::Ready(Err(error.clone())),
            Self::Here(reserved, bound) => match Pin::new(&mut *reserved).poll(cx) {
                Poll::Pending if bound.poll(cx).is_ready() => {
                    let key = reserved.key().clone();
                    let after = bound.after;
                    Poll::Ready(Err(RecvError::Deadline { key, after }))
                }
                polled => polled,
            },
            Self::There(reserved, pull) => {
                // No value comes to this place, only the end of the step, or an abort.
                if let Poll::Ready(ended) = Pin::new(&mut *reserved).poll(cx) {
                    return Poll::Ready(ended);
                }
                let Poll::Ready(pulled) = pull.poll(reserved.key(), cx) else {
                    return Poll::Pending;
                };
                Poll::Ready(pulled.and_then(|(value, loan, link)| {
                    // If the value is no longer wanted, it stays with its producer.
                    reserved.claim()?;
                    link.confirm(reserved.key().clone(), loan);
                    Ok(value)
                }))
            }
            Self::Done(key) => Poll::Ready(Err(RecvError::Received(key.clone()))),
        }
    }
}

impl Future for Recv {
    type Output = Result<Value, RecvError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = self.state.poll(cx);
        if polled.is_ready()
            && let State::Here(reserved, _) | State::There(reserved, _) = &self.state
        {
            self.state = State::Done(reserved.key().clone());
        }
        polled
    }
}
