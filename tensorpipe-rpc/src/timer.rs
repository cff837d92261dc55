//! Timers that anybody may poll: a task of another runtime, or a thread without one.
//!
//! A timer of tokio's panics when it is polled after its runtime has ended. These are tasks, which end with their runtime. Perhaps nobody
//! runs that one, or something blocks it. So a sleep that another runtime polls has a second task there.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::runtime::{Handle, Id};

use crate::task::OwnedTask;

/// Sleeps on a runtime. It ends early if the runtime does. Nothing runs before the first poll.
#[derive(Debug)]
pub(crate) struct Sleep {
    runtime: Handle,
    /// `None` if beyond any clock.
    until: Option<Instant>,
    task: Option<Task>,
    /// On the runtime that polled last, if that is another one; `None` in it once it has failed there.
    elsewhere: Option<(Id, Option<Task>)>,
}

/// An error says that its runtime has ended, or has no timers.
type Task = OwnedTask<()>;

fn sleep_on(runtime: &Handle, until: Option<Instant>) -> Task {
    OwnedTask::spawn(runtime, async move {
        match until {
            Some(until) => tokio::time::sleep_until(until.into()).await,
            None => std::future::pending().await,
        }
    })
}

impl Sleep {
    pub(crate) fn new(runtime: &Handle, until: Option<Instant>) -> Self {
        Self {
            runtime: runtime.clone(),
            until,
            task: None,
            elsewhere: None,
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

impl Sleep {
    /// As `poll`, on the runtime that polls if that is another one.
    fn poll_elsewhere(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let here = Handle::try_current().ok();
        let here = here.filter(|here| here.id() != self.runtime.id());
        let (Some(here), Some(until)) = (here, self.until) else {
            return Poll::Pending;
        };
        if self
            .elsewhere
            .as_ref()
            .is_none_or(|(id, _)| *id != here.id())
        {
            let task = sleep_on(&here, Some(until));
            self.elsewhere = Some((here.id(), Some(task)));
        }
        let Some((_, task)) = &mut self.elsewhere else {
            return Poll::Pending;
        };
        match task.as_mut().map(|task| Pin::new(task).poll(cx)) {
            Some(Poll::Ready(Ok(()))) => Poll::Ready(()),
            Some(Poll::Ready(Err(_))) => {
                *task = None;
                Poll::Pending
            }
            Some(Poll::Pending) | None => Poll::Pending,
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let until = this.until;
        let spawn = || sleep_on(&this.runtime, until);
        let task = this.task.get_or_insert_with(spawn);
        if Pin::new(task).poll(cx).is_ready() {
            return Poll::Ready(());
        }
        this.poll_elsewhere(cx)
    }
}
