//! Timers that anybody may poll: a task of another runtime, or a thread without one.
//!
//! A timer of tokio's panics when it is polled after its runtime has ended. These are tasks, which end with their runtime.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Sleeps on a runtime. It ends early if the runtime does. Nothing runs before the first poll.
#[derive(Debug)]
pub(crate) struct Sleep {
    runtime: Handle,
    /// `None` if beyond any clock.
    until: Option<Instant>,
    task: Option<JoinHandle<()>>,
}

impl Sleep {
    pub(crate) fn new(runtime: &Handle, until: Option<Instant>) -> Self {
        Self {
            runtime: runtime.clone(),
            until,
            task: None,
        }
    }

    /// Another one, with the same end.
    pub(crate) fn again(&self) -> Self {
        Self::new(&self.runtime, self.until)
    }

    /// When it ends.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Does `work` meanwhile. `None` if the sleep ends before.
    pub(crate) async fn or<T>(self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self => None,
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self {
            runtime,
            until,
            task,
        } = &mut *self;
        let until = *until;
        let sleeping = task.get_or_insert_with(|| {
            runtime.spawn(async move {
                match until {
                    Some(until) => tokio::time::sleep_until(until.into()).await,
                    None => std::future::pending().await,
                }
            })
        });
        // An error says that the runtime has ended.
        let _ = ready!(Pin::new(sleeping).poll(cx));
        Poll::Ready(())
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}
