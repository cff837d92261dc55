//! Operations on a message that was written: wait for it, cancel it, flush it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::Submitted;
use super::submit_message;
use crate::error::{Error, Misuse, ResetCode};
use crate::message::Message;
use crate::pipe::core::{Core, Waiter};
use crate::pipe::driver::Interest;
use crate::pipe::shared::Shared;
use crate::sync::lock;

/// A write under way. See [`Pipe::write`](crate::Pipe::write).
pub struct Write {
    waiter: Waiter,
    stage: Stage,
}

enum Stage {
    Refused(Error),
    /// Every byte has left.
    Sent(u64),
    Queued(u64),
    Over,
}

impl std::fmt::Debug for Write {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Write")
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}

impl Write {
    pub(in crate::pipe) fn start(core: Arc<Core>, message: Message) -> Self {
        let stage = match submit_message(&core, message, true) {
            Ok(Submitted {
                id, over, drive, ..
            }) => {
                // Also if the message has left: frames of channels may have found no room beside it.
                if drive {
                    core.drive();
                }
                if over {
                    Stage::Sent(id)
                } else {
                    Stage::Queued(id)
                }
            }
            Err(error) => Stage::Refused(error),
        };
        Self {
            waiter: Waiter::new(core),
            stage,
        }
    }

    /// The message's number, unless it was refused at once.
    pub fn id(&self) -> Option<u64> {
        match self.stage {
            Stage::Sent(id) | Stage::Queued(id) => Some(id),
            Stage::Refused(_) | Stage::Over => None,
        }
    }

    /// Takes the message back: what has not left does not leave, and the peer hears of it.
    pub fn cancel(self) {
        if let Some(id) = self.id() {
            let reason = "the write was cancelled";
            reset(self.waiter.core(), id, ResetCode::Cancelled, reason);
        }
    }
}

impl Future for Write {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let id = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Sent(_) => return Poll::Ready(Ok(())),
            Stage::Refused(error) => return Poll::Ready(Err(error)),
            Stage::Queued(id) => id,
            Stage::Over => {
                let over = "a write was polled after it had ended".to_owned();
                return Poll::Ready(Err(Misuse::Other(over).into()));
            }
        };
        self.stage = Stage::Queued(id);
        let result = std::task::ready!(self.waiter.poll(cx, Interest::Write(id), |shared| {
            let result = shared.writes.get_mut(&id)?.take()?;
            shared.writes.remove(&id);
            Some(result)
        }));
        self.stage = Stage::Over;
        Poll::Ready(result)
    }
}

impl Drop for Write {
    fn drop(&mut self) {
        if let Stage::Queued(id) = self.stage
            && !self.waiter.core().is_inherited()
        {
            lock(&self.waiter.core().shared).writes.remove(&id);
        }
    }
}

pub(in crate::pipe) fn reset(core: &Arc<Core>, id: u64, code: ResetCode, reason: &str) {
    core.update(|shared, wakes| {
        if shared.is_over() {
            return;
        }
        shared.state.reset(id, code, reason);
        let error = Error::Reset {
            code,
            reason: reason.into(),
        };
        shared.end_write(id, Err(error), wakes);
        shared.process(wakes);
    });
    core.drive();
}

/// Waits until the peer's application has read. See [`Pipe::flush`](crate::Pipe::flush).
pub struct Flush {
    waiter: Waiter,
    /// All messages before this number.
    until: u64,
}

impl std::fmt::Debug for Flush {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flush")
            .field("until", &self.until)
            .finish_non_exhaustive()
    }
}

impl Flush {
    pub(in crate::pipe) fn start(core: Arc<Core>) -> Self {
        let until = {
            let mut shared = lock(&core.shared);
            let last = shared.state.last_written();
            if let Some(last) = last {
                shared.state.flush(last);
            }
            last.map_or(0, |last| last + 1)
        };
        core.drive();
        Self {
            waiter: Waiter::new(core),
            until,
        }
    }
}

impl Future for Flush {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let until = self.until;
        let flushed = |shared: &mut Shared| {
            if shared.ignored_from.is_some_and(|ignored| ignored < until) {
                return Some(Err(shared.going_away()));
            }
            if shared.flushed_to >= until {
                return Some(Ok(()));
            }
            shared.ended.clone().map(Err)
        };
        self.waiter.poll(cx, Interest::Flush, flushed)
    }
}
