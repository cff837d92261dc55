//! A send that waits for room.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::bound::Bound;
use super::error::SendError;
use super::key::Key;
use super::local::Local;
use super::value::Value;

/// A send under way. It is in the queue from when it is made, and completes when the value is kept for its receiver. Dropping it
/// earlier takes the value back: nothing was sent.
#[must_use = "dropping a send that waits takes its value back"]
#[derive(Debug)]
pub struct PendingSend {
    local: Arc<Local>,
    state: State,
    bound: Bound,
    bytes: u64,
}

#[derive(Debug)]
enum State {
    /// It waits, under this number.
    Blocked(u64),
    Done(Result<(), SendError>),
}

impl PendingSend {
    pub(super) fn new(local: Arc<Local>, key: &Key, value: Value, bound: Bound) -> Self {
        let bytes = value.byte_len();
        let parked = local.send(key, |table| table.send_or_block(key, value));
        let state = match parked {
            Ok(Some(number)) => State::Blocked(number),
            Ok(None) => State::Done(Ok(())),
            Err(error) => State::Done(Err(error)),
        };
        Self {
            local,
            state,
            bound,
            bytes,
        }
    }
}

impl Future for PendingSend {
    type Output = Result<(), SendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let number = match &this.state {
            State::Done(how) => return Poll::Ready(how.clone()),
            State::Blocked(number) => *number,
        };
        // Cloned here, because a waker is somebody else's code: not under the lock.
        let mut wake = Some(cx.waker().clone());
        let polled = this
            .local
            .with(|table| table.poll_blocked(number, &mut wake));
        let how = match polled {
            Poll::Ready(how) => how,
            Poll::Pending if this.bound.poll(cx).is_ready() => this.local.with(|table| {
                let ended = table.cancel_blocked(number);
                ended.unwrap_or_else(|| Err(table.full(this.bytes)))
            }),
            Poll::Pending => return Poll::Pending,
        };
        this.state = State::Done(how.clone());
        Poll::Ready(how)
    }
}

impl Drop for PendingSend {
    fn drop(&mut self) {
        if let State::Blocked(number) = self.state {
            self.local.with(|table| table.cancel_blocked(number));
        }
    }
}
