//! A receive.

use std::pin::Pin;
use std::task::{Context, Poll};

use super::bound::Bound;
use super::error::RecvError;
use super::key::Key;
use super::local::Placed;
use super::pull::Pull;
use super::value::Value;

/// A receive under way: it has its place from the moment it is made, and asks the producer of another process at once. It ends
/// with the value, or with why there is none. Cancel safe: dropping it gives its place up, and a value that was
/// sent, even one that has arrived, stays with its producer for the next who asks.
#[must_use = "dropping a receive gives its place up"]
#[derive(Debug)]
pub struct Recv {
    state: State,
}

#[derive(Debug)]
enum State {
    Failed(RecvError),
    /// Here, with a bound of its own.
    Here(Placed, Bound),
    /// From another process: the place here is for those who end it, the bound is the call's.
    There(Placed, Pull),
    Done(Key),
}

impl Recv {
    pub(super) fn failed(error: RecvError) -> Self {
        Self {
            state: State::Failed(error),
        }
    }

    pub(super) fn here(placed: Placed, bound: Bound) -> Self {
        Self {
            state: State::Here(placed, bound),
        }
    }

    pub(super) fn there(placed: Placed, pull: Pull) -> Self {
        Self {
            state: State::There(placed, pull),
        }
    }
}

impl State {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Value, RecvError>> {
        match self {
            Self::Failed(error) => Poll::Ready(Err(error.clone())),
            Self::Here(placed, bound) => match Pin::new(&mut *placed).poll(cx) {
                Poll::Pending if bound.poll(cx).is_ready() => {
                    let key = placed.key().clone();
                    let after = bound.after;
                    Poll::Ready(Err(RecvError::Deadline { key, after }))
                }
                polled => polled,
            },
            Self::There(placed, pull) => {
                // Nobody sends that here: only an end of the step, or of everything.
                if let Poll::Ready(ended) = Pin::new(&mut *placed).poll(cx) {
                    return Poll::Ready(ended);
                }
                let Poll::Ready(pulled) = pull.poll(placed.key(), cx) else {
                    return Poll::Pending;
                };
                Poll::Ready(pulled.and_then(|(value, loan, link)| {
                    // Not wanted any more: it stays there.
                    placed.claim()?;
                    link.confirm(placed.key().clone(), loan);
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
            && let State::Here(placed, _) | State::There(placed, _) = &self.state
        {
            self.state = State::Done(placed.key().clone());
        }
        polled
    }
}
