//! Threads for work that takes long: copies of large memory, a wait for another process.
//!
//! Not those of the runtime: where the system refuses it a thread, tokio's `spawn_blocking` panics, or keeps the work for a thread
//! that never comes. Here work that no thread takes is done by the runtime's own, as one of its tasks.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Condvar;
use std::time::Duration;

use tokio::runtime::Handle;

use super::fork::PerProcess;
use crate::ambient;
use crate::sync::{Mutex, lock};

/// As many as tokio has at most. More work waits.
const MOST: usize = 512;

/// A thread without work for so long ends. As tokio's.
const IDLE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Workers {
    state: Mutex<State>,
    more: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    /// Those that wait for `more`.
    idle: usize,
}

/// Those of this process.
static WORKERS: PerProcess<Workers> = PerProcess::new();

/// Does `work` on another thread, within `runtime`.
pub(crate) fn run(runtime: &Handle, work: impl FnOnce() + Send + 'static) {
    if ambient::is_simulated() {
        // The virtual clock stands still while the runtime knows that somebody works.
        runtime.spawn_blocking(work);
        return;
    }
    let inside = runtime.clone();
    let job = Box::new(move || {
        let _inside = inside.enter();
        work();
    });
    if let Err(job) = WORKERS.get(Workers::default).take(job, start) {
        runtime.spawn(async move { job() });
    }
}

fn start() -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name("tp-work".to_owned());
    thread
        .spawn(|| WORKERS.get(Workers::default).work())
        .map(drop)
}

impl Workers {
    /// Gives it back where no thread will come to it.
    fn take(&self, job: Job, start: impl FnOnce() -> std::io::Result<()>) -> Result<(), Job> {
        let mut state = lock(&self.state);
        state.jobs.push_back(job);
        if state.jobs.len() <= state.idle {
            self.more.notify_one();
            return Ok(());
        }
        if state.threads == MOST {
            return Ok(());
        }
        if start().is_ok() {
            state.threads += 1;
            return Ok(());
        }
        // One may wait for a thread that is there: others would wait behind it, for as long as that thread takes.
        match state.threads > 0 && state.jobs.len() == 1 {
            true => Ok(()),
            false => state.jobs.pop_back().map_or(Ok(()), Err),
        }
    }

    fn work(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                // It was reported; the thread serves others. What it has thrown may panic again as it drops.
                if let Err(thrown) = catch_unwind(AssertUnwindSafe(job)) {
                    std::mem::forget(thrown);
                }
                state = lock(&self.state);
                continue;
            }
            state.idle += 1;
            let waited = self.more.wait_timeout(state, IDLE);
            let over;
            (state, over) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
            state.idle -= 1;
            if over.timed_out() && state.jobs.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn work_that_no_thread_takes_comes_back_and_other_work_waits_for_a_thread() {
        let workers = Workers::default();
        let refused = || Err(std::io::Error::from_raw_os_error(libc::EAGAIN));
        let (done, seen) = mpsc::channel();
        let job = |name: &'static str| -> Job {
            let done = done.clone();
            Box::new(move || done.send(name).unwrap())
        };
        let back = workers.take(job("back"), refused).unwrap_err();
        back();
        assert_eq!(seen.recv().unwrap(), "back");
        assert!(workers.take(job("first"), || Ok(())).is_ok());
        // One waits for the thread that is there; behind it nobody does.
        workers.take(job("second"), refused).unwrap_err()();
        assert_eq!(seen.recv().unwrap(), "second");
        std::thread::scope(|scope| {
            let rests = || {
                let is_at_rest = || {
                    let state = lock(&workers.state);
                    state.idle == 1 && state.jobs.is_empty()
                };
                while !is_at_rest() {
                    std::thread::yield_now();
                }
            };
            scope.spawn(|| workers.work());
            assert_eq!(seen.recv().unwrap(), "first");
            rests();
            let panics: Job = Box::new(|| panic!("on purpose"));
            assert!(workers.take(panics, || unreachable!()).is_ok());
            rests();
            assert!(workers.take(job("third"), refused).is_ok());
            assert_eq!(seen.recv().unwrap(), "third");
            rests();
            // The one that waits takes it.
            assert!(workers.take(job("fourth"), || unreachable!()).is_ok());
            assert_eq!(seen.recv().unwrap(), "fourth");
        });
    }

    #[tokio::test]
    async fn work_is_within_its_runtime() {
        let (done, seen) = tokio::sync::oneshot::channel();
        run(&Handle::current(), move || {
            let _ = done.send((Handle::try_current().is_ok(), std::thread::current().id()));
        });
        let (inside, thread) = seen.await.unwrap();
        assert!(inside && thread != std::thread::current().id());
    }
}
