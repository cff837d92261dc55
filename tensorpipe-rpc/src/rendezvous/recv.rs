//! A receive.

use std::pin::Pin;
use std::task::{Context, Poll};

use super::bound::Bound;
use super::error::RecvError;
use super::key::Key;
use super::local::Reservation;
use super::pull::Pull;
use super::value::Value;

/// A receive under way: it has its place from the moment it is made, and asks the producer of another process at once. It ends
/// with the value, or with why there is none. Cancel safe: dropping it gives its place up, and a value that was
/// sent, even one that has arrived, stays with its producer for the next who asks.
#[must_use = "dropping a receive gives its place up"]
#[derive(Debug)]
pub struct Recv {
    pub(super) state: State,
}

#[derive(Debug)]
pub(super) enum State {
    Failed(RecvError),
    /// Here, with a bound of its own.
    Here(Reservation, Bound),
    /// From another process: the place here is for those who end it, the bound is the call's.
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
                // Nobody sends that here: only an end of the step, or of everything.
                if let Poll::Ready(ended) = Pin::new(&mut *reserved).poll(cx) {
                    return Poll::Ready(ended);
                }
                let Poll::Ready(pulled) = pull.poll(reserved.key(), cx) else {
                    return Poll::Pending;
                };
                Poll::Ready(pulled.and_then(|(value, loan, link)| {
                    // Not wanted any more: it stays there.
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
