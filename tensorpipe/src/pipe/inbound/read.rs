//! A read under way, as its reader sees it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::loan::LentAllocation;
use crate::error::{Error, Misuse, ResetCode};
use crate::message::{Allocation, Message};
use crate::pipe::core::{Core, Waiter};
use crate::pipe::driver::Interest;
use crate::pipe::driver::tuning::DRAIN_UP_TO;
use crate::pipe::shared::{Recipient, Shared};

/// A read into memory of the caller's failed; the memory is back.
///
/// `?` turns it into its [`Error`] where the memory is not needed any more.
///
/// ```
/// # use tensorpipe::{Allocation, Error, Message, Pipe, ReadError};
/// # async fn example(pipe: &Pipe, mut buffers: Allocation) -> Result<Message, Error> {
/// loop {
///     match pipe.read_descriptor().await?.read_into(buffers).await {
///         Ok(message) => return Ok(message),
///         Err(failed) if failed.error.ends_pipe() => return Err(failed.error),
///         // The next message may go into the same memory.
///         Err(ReadError { allocation, .. }) => buffers = allocation,
///     }
/// }
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct ReadError {
    /// Why it failed. It is no `source()`, which would say the same twice.
    pub error: Error,
    /// What was given to the read, in the same places. The memory may hold some of the bytes.
    pub allocation: Allocation,
}

/// For errors before the read, when no memory was given: so that `?` works there as well.
impl From<Error> for ReadError {
    fn from(error: Error) -> Self {
        Self {
            error,
            allocation: Allocation::default(),
        }
    }
}

impl From<ReadError> for Error {
    fn from(failed: ReadError) -> Self {
        failed.error
    }
}

/// A read under way into memory of the caller's. It fails only when the memory is back: a channel that is at work on it
/// finishes, or stops, first. Dropping it gives the message up. Of a message of up to 64 KiB, what is still to come is thrown
/// away; the writer of a larger one is told to stop. The memory goes with it.
#[must_use = "a dropped read gives the message up"]
pub struct ReadInto {
    waiter: Waiter,
    stage: Stage,
    loans: LentAllocation,
}

/// What a read waits for.
pub(super) enum Stage {
    /// It has not begun: for its memory, which somebody else still reads.
    AwaitsMemory(Pin<Box<dyn Future<Output = Self> + Send + Sync>>),
    /// For all of this message.
    Reading(u64),
    /// Nothing; or, where it has failed, for its memory.
    Ended(Result<Message, Error>),
    Over,
}

impl std::fmt::Debug for ReadInto {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let id = match self.stage {
            Stage::Reading(id) => Some(id),
            _ => None,
        };
        f.debug_struct("ReadInto")
            .field("id", &id)
            .finish_non_exhaustive()
    }
}

impl ReadInto {
    pub(super) fn new(core: Arc<Core>, stage: Stage, loans: LentAllocation) -> Self {
        let waiter = Waiter::new(core);
        Self {
            waiter,
            stage,
            loans,
        }
    }

    /// Begins, once its memory is free. A fence is somebody else's code: if it panics, the read is over. Not inlined: most reads begin at
    /// once.
    #[inline(never)]
    fn poll_memory_free(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Stage::AwaitsMemory(mut begins) = std::mem::replace(&mut self.stage, Stage::Over)
        else {
            return Poll::Ready(());
        };
        let begun = begins.as_mut().poll(cx);
        let (stage, polled) = match begun {
            Poll::Ready(stage) => (stage, Poll::Ready(())),
            Poll::Pending => (Stage::AwaitsMemory(begins), Poll::Pending),
        };
        self.stage = stage;
        polled
    }
}

impl Future for ReadInto {
    type Output = Result<Message, ReadError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            if let Stage::AwaitsMemory(_) = this.stage {
                ready!(this.poll_memory_free(cx));
            }
            if let Stage::Reading(id) = this.stage {
                let take = |shared: &mut Shared| shared.take_read(id);
                let result = ready!(this.waiter.poll(cx, Interest::Read(id), take));
                this.stage = Stage::Ended(result);
            }
            this.stage = match std::mem::replace(&mut this.stage, Stage::Over) {
                Stage::Ended(Ok(mut message)) => {
                    std::mem::take(&mut this.loans).settle(&mut message);
                    return Poll::Ready(Ok(message));
                }
                Stage::Ended(Err(error)) => {
                    if let Poll::Ready(allocation) = this.loans.poll_home(cx) {
                        return Poll::Ready(Err(ReadError { error, allocation }));
                    }
                    this.stage = Stage::Ended(Err(error));
                    return Poll::Pending;
                }
                waits @ (Stage::AwaitsMemory(_) | Stage::Reading(_)) => waits,
                Stage::Over => {
                    let over = "a read was polled after it had ended".to_owned();
                    Stage::Ended(Err(Misuse::Other(over).into()))
                }
            };
        }
    }
}

impl Drop for ReadInto {
    fn drop(&mut self) {
        let Stage::Reading(id) = self.stage else {
            return;
        };
        let core = self.waiter.core().clone();
        if core.is_inherited() {
            return;
        }
        core.update(|shared, wakes| {
            let Some(reading) = shared.reads.get_mut(&id) else {
                return;
            };
            let comes = !reading.is_finished();
            if comes && reading.byte_len() <= DRAIN_UP_TO {
                reading.reader = Recipient::Gone;
            } else {
                shared.reads.remove(&id);
                if comes {
                    let reason = "the read was dropped";
                    shared.state.refuse(id, ResetCode::Cancelled, reason);
                }
            }
            shared.process(wakes);
        });
        core.drive();
    }
}

/// A read under way into pooled memory. Dropping it gives the message up, as for [`ReadInto`].
#[must_use = "a dropped read gives the message up"]
#[derive(Debug)]
pub struct Read(pub(super) ReadInto);

impl Future for Read {
    type Output = Result<Message, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map_err(Error::from)
    }
}

/// Gives up a message that is being read for the handler.
pub(in crate::pipe) fn stop(core: &Arc<Core>, id: u64, code: ResetCode, reason: &str) {
    core.update(|shared, wakes| {
        if shared.reads.remove(&id).is_some() {
            shared.state.refuse(id, code, reason);
            shared.process(wakes);
        }
    });
    core.drive();
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::task::Waker;

    use super::*;
    use crate::pipe::tests::{memory_pair, soon};

    #[tokio::test]
    async fn a_read_whose_fence_has_panicked_is_over() {
        let (client, _server) = memory_pair().await;
        let fence = std::future::poll_fn(|_| -> Poll<Stage> { panic!("a fence of somebody's") });
        let held_up = Stage::AwaitsMemory(Box::pin(fence));
        let mut read = ReadInto::new(client.core().clone(), held_up, LentAllocation::default());
        let poll = || Pin::new(&mut read).poll(&mut Context::from_waker(Waker::noop()));
        assert!(catch_unwind(AssertUnwindSafe(poll)).is_err());
        let error = soon(read).await.unwrap_err().error;
        assert!(matches!(error, Error::Misuse(_)), "{error}");
    }
}
