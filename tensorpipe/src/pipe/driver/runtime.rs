//! What the driver asks of tokio.
//!
//! A thread that ends may have lost tokio's thread local already. Entering a runtime then panics, in a destructor, which aborts the
//! process. Thread locals are destroyed in the reverse order of their first use. Ours is first used after tokio's: while ours exists, so
//! does tokio's.

use std::cell::Cell;
use std::pin::pin;
use std::task::{Context, Waker};

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::{try_id, yield_now};

use super::thread_counts::this_thread;
use super::wakers::{NO_THREAD, Wakers};
use crate::sync::{Arc, thread_local};

thread_local! {
    static AVAILABLE: Available = Available::new();

    /// The pipe whose background task this thread polls: it is within that pipe's runtime.
    static HOME: Cell<Option<u64>> = const { Cell::new(None) };

    /// Whether this thread leaves handlers to others.
    static LEAVES: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`, in which this thread calls no handler that [listens](crate::engine::Handler::listens): what comes meanwhile is left to the
/// pipe's background task. For what a program does while it may hold a lock that its handlers take.
pub fn leave_handlers<T>(work: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            LEAVES.set(self.0);
        }
    }
    let _restore = Restore(LEAVES.replace(true));
    work()
}

/// Whether this thread is to call a handler that listens: it can enter a runtime, and is not within [`leave_handlers`].
pub(in crate::pipe) fn calls_handlers() -> bool {
    !LEAVES.get() && is_available()
}

/// Whether this thread is known to be within the runtime of this pipe. To enter it once more costs more than a small message.
pub(in crate::pipe) fn is_home(pipe: u64) -> bool {
    HOME.get() == Some(pipe)
}

/// While it lives, this thread counts as within the runtime of this pipe; with `None`, of no known pipe.
pub(in crate::pipe) struct RuntimeGuard(Option<u64>);

impl RuntimeGuard {
    pub(in crate::pipe) fn of(pipe: Option<u64>) -> Self {
        Self(HOME.replace(pipe))
    }
}

impl Drop for RuntimeGuard {
    fn drop(&mut self) {
        HOME.set(self.0);
    }
}

struct Available(bool);

impl Available {
    fn new() -> Self {
        let current = Handle::try_current();
        Self(!current.is_err_and(|error| error.is_thread_local_destroyed()))
    }
}

/// Gives the thread local a destructor, so that it ends with the thread.
impl Drop for Available {
    fn drop(&mut self) {}
}

/// Whether this thread can enter a runtime.
pub(in crate::pipe) fn is_available() -> bool {
    AVAILABLE.try_with(|available| available.0).unwrap_or(false)
}

/// Whether the runtime of this thread has no other thread. It runs a task that wakes itself some sixty times before it polls sockets and
/// timers.
pub(in crate::pipe) fn is_single_threaded() -> bool {
    let runtime = Handle::try_current();
    runtime.is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::CurrentThread)
}

/// Whether the runtime of this thread runs its tasks on this thread alone, so that no other one looks at its sockets meanwhile, or takes over a
/// task that waits until it has.
pub(super) fn has_one_worker() -> bool {
    workers() == Some(1)
}

/// Whether it has several threads for its tasks.
pub(super) fn has_several_workers() -> bool {
    workers().is_some_and(|workers| workers > 1)
}

/// `None` where this thread is within no runtime.
fn workers() -> Option<usize> {
    let runtime = Handle::try_current().ok()?;
    Some(match runtime.runtime_flavor() {
        RuntimeFlavor::CurrentThread => 1,
        _ => runtime.metrics().num_workers(),
    })
}

/// Whether the caller is no task, but the future of `block_on`. A runtime of one thread polls that future only when it polls its sockets
/// and timers: at the latest after some sixty tasks.
pub(super) fn is_main_future() -> bool {
    try_id().is_none()
}

/// This thread yields a pipe: once its sockets and timers have been polled, a task is woken to go on. Until then the thread does not drive
/// the pipe, [`LEFT_ALONE`](super::tuning::LEFT_ALONE) times at most, unless somebody [drives now](super::Driver::drive_now).
pub(super) fn yield_pipe(wakers: &Arc<Wakers>) {
    wake_last(&wakers.yield_on(this_thread()));
}

/// Whether this thread has [yielded](yield_pipe) the pipe, and has not polled its sockets and timers since.
pub(super) fn has_yielded(wakers: &Wakers) -> bool {
    let thread = wakers.yielded_on();
    thread != NO_THREAD && thread == this_thread()
}

/// Wakes once sockets and timers have been polled; at once where no runtime's scheduler runs the caller, as within `block_in_place`.
pub(super) fn wake_last(waker: &Waker) {
    let _ = pin!(yield_now()).poll(&mut Context::from_waker(waker));
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::runtime::{Builder, Runtime};
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

    use super::super::tuning::LEFT_ALONE;
    use super::*;
    use crate::ambient;
    use crate::engine::{EnginePipe, Handler, Held};
    use crate::pipe::tests::{memory_pair, soon};
    use crate::sync::lock;
    use crate::{Error, Incoming, Message, MessageStats, Pipe};

    /// What the handler was told, and whether within a runtime.
    type Told = (&'static str, bool);

    struct Tells(UnboundedSender<Told>);

    impl Tells {
        fn tell(&self, what: &'static str) {
            let _ = self.0.send((what, Handle::try_current().is_ok()));
        }
    }

    impl Handler for Tells {
        fn incoming(&self, incoming: Incoming) {
            self.tell("a message");
            drop(incoming);
        }

        fn message(&self, _: u64, _: Result<Message, Error>, _: MessageStats, _: Held) {}

        fn closed(&self, _: &Error) {
            self.tell("the end");
        }
    }

    /// The second one has a handler, which tells what it hears.
    async fn pair() -> (Pipe, Pipe, UnboundedReceiver<Told>) {
        let (client, server) = memory_pair().await;
        let (tells, told) = unbounded_channel();
        server.set_handler(Arc::new(Tells(tells))).unwrap();
        (client, server, told)
    }

    /// A message of the first one's is here, and this thread has yielded the second one.
    async fn yielded() -> (Pipe, Pipe, UnboundedReceiver<Told>) {
        let (client, server, told) = pair().await;
        client.send(Message::new("here")).unwrap();
        yield_pipe(&server.core().driver.wakers);
        (client, server, told)
    }

    /// Drives its pipe when it is dropped.
    struct Drives(Pipe);

    impl Drop for Drives {
        fn drop(&mut self) {
            drop(self.0.flush());
        }
    }

    thread_local! {
        static DRIVES: RefCell<Option<Drives>> = const { RefCell::new(None) };
        static RUNTIME: RefCell<Option<Runtime>> = const { RefCell::new(None) };
    }

    async fn next(told: &mut UnboundedReceiver<Told>) -> Told {
        soon(told.recv()).await.unwrap()
    }

    #[tokio::test]
    async fn what_a_thread_has_yielded_waits_for_its_sockets_and_for_no_other_thread() {
        let (_client, server, mut told) = yielded().await;
        let core = server.core();
        core.drive();
        assert!(core.driver.is_kicked() && told.try_recv().is_err());
        let other = core.clone();
        std::thread::spawn(move || assert!(!has_yielded(&other.driver.wakers)))
            .join()
            .unwrap();
        assert_eq!(next(&mut told).await, ("a message", true));
        assert!(!has_yielded(&core.driver.wakers));
    }

    /// A task that polls again and again by itself keeps its thread from the sockets.
    #[tokio::test]
    async fn what_has_yielded_is_left_alone_only_so_often() {
        let (_client, server, mut told) = yielded().await;
        let core = server.core();
        for _ in 0..LEFT_ALONE {
            core.drive();
            assert!(told.try_recv().is_err());
        }
        core.drive();
        assert_eq!(told.try_recv().unwrap(), ("a message", true));
    }

    #[tokio::test]
    async fn what_has_yielded_is_driven_by_whoever_finds_it_forgotten() {
        let (_client, server, mut told) = yielded().await;
        let core = server.core();
        core.driver.wakers.owe_wake();
        core.driver.tick(core);
        assert_eq!(told.try_recv().unwrap(), ("a message", true));
    }

    /// The closing frames leave at once.
    #[tokio::test]
    async fn what_has_yielded_is_driven_by_whoever_closes_it() {
        let (_client, server, _told) = yielded().await;
        let core = server.core();
        core.start_closing(Duration::from_secs(1));
        assert!(!core.driver.is_kicked() && !lock(&core.shared).state.has_control());
    }

    /// The background task runs before the sockets are polled.
    #[tokio::test]
    async fn what_has_yielded_is_driven_before_a_timer_is_judged() {
        let (_client, server, mut told) = yielded().await;
        let core = server.core();
        lock(&core.shared).linger_until = Some(ambient::now());
        core.driver.wakers.wake_background();
        assert_eq!(next(&mut told).await.0, "a message");
        assert_eq!(next(&mut told).await.0, "the end");
    }

    #[tokio::test]
    async fn what_a_thread_finds_in_its_last_moments_is_delivered_by_another() {
        let (client, server, mut told) = pair().await;
        client.send(Message::new("here")).unwrap();
        let (kept, runtime) = (server.clone(), Handle::current());
        let ends = std::thread::spawn(move || {
            // First, so that it ends last.
            DRIVES.set(Some(Drives(kept)));
            drop(runtime.enter());
            assert!(is_available());
        });
        // Nobody else drives meanwhile.
        ends.join().unwrap();
        assert_eq!(next(&mut told).await, ("a message", true));
    }

    /// The same for the pipe's end. The pipe's background task cannot run while its thread waits for the one that ends.
    #[tokio::test]
    async fn a_thread_that_finds_the_end_in_its_last_moments_does_not_wait_for_another() {
        let (client, server, mut told) = pair().await;
        let lost = server.core().lost("by design");
        let (kept, runtime) = (server.clone(), Handle::current());
        let ends = std::thread::spawn(move || {
            DRIVES.set(Some(Drives(kept)));
            drop(runtime.enter());
            assert!(is_available());
            // As a driving thread finds it.
            let mut wakes = Vec::new();
            lock(&server.core().shared).end(lost, &mut wakes);
        });
        let (tell, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || tell.send(ends.join()));
        let ended = ended.recv_timeout(Duration::from_secs(10));
        ended.expect("it waits for this thread").unwrap();
        assert_eq!(next(&mut told).await, ("the end", true));
        drop(client);
    }

    #[test]
    fn a_runtime_that_ends_with_its_thread_tells_of_the_end() {
        let ends = std::thread::spawn(|| {
            RUNTIME.set(None);
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            let pipes = runtime.block_on(pair());
            RUNTIME.set(Some(runtime));
            pipes
        });
        let (_client, _server, mut told) = ends.join().unwrap();
        assert_eq!(told.try_recv(), Ok(("the end", false)));
    }
}
