//! Threads for work that takes long: copies of large memory, a wait for another process.
//!
//! The runtime's blocking threads do not serve: if the system refuses a thread, tokio's `spawn_blocking` panics, or queues the work for a
//! thread that never comes. Here, work that no thread takes runs on the runtime itself, as one of its tasks.
//!
//! Under a virtual clock, the runtime's blocking threads are used after all. That clock stands still while tokio knows that one of its
//! threads works; it would run on during work on any other thread.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Condvar;
use std::time::Duration;

use tokio::runtime::Handle;

use super::fork::PerProcess;
use crate::ambient;
use crate::sync::{Mutex, lock};

/// The most threads, as many as tokio has. More work waits.
const MOST: usize = 512;

/// A thread without work for so long ends, as tokio's do.
const IDLE: Duration = Duration::from_secs(10);

pub(crate) type Job = Box<dyn FnOnce() + Send>;

struct Workers {
    state: Mutex<State>,
    more: Condvar,
    /// A thread without work for so long ends.
    idle: Duration,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    /// Threads that wait for `more`.
    idle: usize,
}

/// Runs `work` on another thread, within the context of `runtime`.
pub(crate) fn run(runtime: &Handle, work: impl FnOnce() + Send + 'static) {
    if ambient::is_virtual(runtime) {
        runtime.spawn_blocking(work);
        return;
    }
    if let Err(job) = take(Some(runtime), work) {
        runtime.spawn(async move { job() });
    }
}

/// The same, perhaps within no runtime, but work that no thread takes comes back.
pub(crate) fn take(
    runtime: Option<&Handle>,
    work: impl FnOnce() + Send + 'static,
) -> Result<(), Job> {
    let inside = runtime.cloned();
    let job = move || {
        let _inside = inside.as_ref().map(Handle::enter);
        work();
    };
    workers().take(Box::new(job), start)
}

/// Runs `act` and returns whether it panicked, for a thread that serves others as well. Dropping a panic's payload may panic again, and so
/// on for ever.
pub(crate) fn panics(act: impl FnOnce()) -> bool {
    let Err(thrown) = catch_unwind(AssertUnwindSafe(act)) else {
        return false;
    };
    if let Err(next) = catch_unwind(AssertUnwindSafe(|| drop(thrown))) {
        std::mem::forget(next);
    }
    true
}

/// The threads of this process.
fn workers() -> &'static Workers {
    static WORKERS: PerProcess<Workers> = PerProcess::new();
    WORKERS.get(|| Workers::new(IDLE))
}

fn start() -> io::Result<()> {
    let thread = std::thread::Builder::new().name("tp-work".to_owned());
    thread.spawn(|| workers().work()).map(drop)
}

impl Workers {
    fn new(idle: Duration) -> Self {
        Self {
            state: Mutex::default(),
            more: Condvar::new(),
            idle,
        }
    }

    /// Returns the job if the system refuses a new thread: the existing threads may be busy for any length of time.
    fn take(&self, job: Job, start: impl FnOnce() -> io::Result<()>) -> Result<(), Job> {
        let mut state = lock(&self.state);
        if state.jobs.len() < state.idle {
            state.jobs.push_back(job);
            self.more.notify_one();
            return Ok(());
        }
        if state.threads < MOST {
            if start().is_err() {
                return Err(job);
            }
            state.threads += 1;
        }
        state.jobs.push_back(job);
        Ok(())
    }

    fn work(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                // The panic was reported already.
                let _ = panics(job);
                state = lock(&self.state);
                continue;
            }
            state.idle += 1;
            let waited = self.more.wait_timeout(state, self.idle);
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
    use crate::sync::Arc;

    fn refused() -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EAGAIN))
    }

    /// Makes jobs that report their names, and the channel where they do.
    fn jobs() -> (impl Fn(&'static str) -> Job, mpsc::Receiver<&'static str>) {
        let (done, said) = mpsc::channel();
        let job = move |name| -> Job {
            let done = done.clone();
            Box::new(move || done.send(name).unwrap())
        };
        (job, said)
    }

    #[test]
    fn work_that_no_thread_takes_comes_back_whatever_threads_are_there() {
        let workers = Workers::new(Duration::from_millis(1));
        let (job, said) = jobs();
        workers.take(job("no thread"), refused).unwrap_err()();
        assert_eq!(said.recv().unwrap(), "no thread");
        let (go_on, goes_on) = mpsc::channel();
        let begins = job("begun");
        let blocks: Job = Box::new(move || {
            begins();
            goes_on.recv().unwrap();
            panic!("on purpose");
        });
        assert!(workers.take(blocks, || Ok(())).is_ok());
        std::thread::scope(|scope| {
            // Dropped if an assertion fails, so that the thread does not wait then.
            let go_on = go_on;
            scope.spawn(|| workers.work());
            assert_eq!(said.recv().unwrap(), "begun");
            // No work is queued behind a thread that may be blocked for ever.
            workers.take(job("back"), refused).unwrap_err()();
            assert_eq!(said.recv().unwrap(), "back");
            // The thread takes the other one's work, survives panics, and ends when no more work comes.
            assert!(workers.take(job("next"), || Ok(())).is_ok());
            go_on.send(()).unwrap();
            assert_eq!(said.recv().unwrap(), "next");
        });
        assert_eq!(lock(&workers.state).threads, 1);
    }

    #[test]
    fn a_thread_that_waits_takes_the_next_and_no_other_is_started() {
        let workers = Arc::new(Workers::new(Duration::from_secs(3600)));
        let (job, said) = jobs();
        let at_work = workers.clone();
        let start = || {
            std::thread::spawn(move || at_work.work());
            Ok(())
        };
        assert!(workers.take(job("first"), start).is_ok());
        assert_eq!(said.recv().unwrap(), "first");
        for _ in 0..3 {
            while lock(&workers.state).idle == 0 {
                std::thread::yield_now();
            }
            assert!(workers.take(job("next"), || unreachable!()).is_ok());
            assert_eq!(said.recv().unwrap(), "next");
        }
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
