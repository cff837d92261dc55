//! Threads that drop things on behalf of threads that must not wait. A driver takes long to unregister, unmap and release memory, and may wait
//! for its device first. Dropping another library's memory runs that library's code. Closing a Unix socket closes the descriptors that its
//! peer has sent through it: that of a file system of the peer's own, or of a socket that lingers, keeps the thread for as long as the peer
//! likes.

use std::any::Any;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::fork::{Owner, PerProcess};
use super::workers;

/// How many bytes of pinned main memory may wait, not counting the last item. A device that is never idle releases none, while programs
/// allocate more. Chosen: more than a context keeps warm by default.
const BEHIND: u64 = 1 << 30;

/// See the module's documentation. The thread starts with the first item, and ends after the last one.
#[derive(Debug, Default)]
pub(crate) struct DropThread {
    owner: Owner,
    /// `None` while there is no thread.
    queue: Mutex<Option<Queue>>,
    /// It has logged once that the system refuses a thread.
    has_warned: AtomicBool,
}

type Queue = Sender<Box<dyn Any + Send>>;

impl DropThread {
    /// Drops `what` on the thread, or here if the system refuses a thread, or if this is a forked child, which does not have it.
    pub(crate) fn drop_later(&self, what: impl Send + 'static) {
        if self.owner.is_other_process() {
            return drop(what);
        }
        self.drop_on(start, what);
    }

    /// `start` starts a thread if there is none.
    fn drop_on(&self, start: impl FnOnce() -> io::Result<Queue>, what: impl Send + 'static) {
        let queue = || self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let thread = match &mut *queue() {
            Some(thread) => Ok(thread.clone()),
            none => start().map(|thread| none.insert(thread).clone()),
        };
        match thread {
            Ok(thread) => {
                if let Err(unsent) = thread.send(Box::new(what)) {
                    // What logs has panicked and ended it. The next item gets another one.
                    *queue() = None;
                    drop(unsent);
                }
            }
            Err(error) => {
                if !self.has_warned.swap(true, Ordering::Relaxed) {
                    // What logs may panic, and the caller may serve others.
                    workers::panics(
                        || tracing::warn!(%error, "no thread lets go of what may take long"),
                    );
                }
                drop(what);
            }
        }
    }
}

/// So many sockets of other users' may wait to be closed while the thread is kept from it, and twice as many while it goes on: each keeps a
/// descriptor.
const UNCLOSED: u64 = 256;

/// A thread that closes none for so long is kept from it. Chosen: longer than a busy system lets a thread wait for a core.
const STUCK: Duration = Duration::from_millis(20);

/// The thread that closes sockets of other users', and how many wait there.
fn of_strangers() -> &'static OfAll {
    static OF_STRANGERS: PerProcess<OfAll> = PerProcess::new();
    OF_STRANGERS.get(OfAll::default)
}

/// Closes another user's socket, on a thread that does nothing else.
pub(crate) fn close_later(socket: impl Send + 'static) {
    let all = of_strangers();
    if all.waiting.fetch_add(1, Ordering::Relaxed) == 0 {
        all.goes_on();
    }
    all.drops
        .drop_later((socket, GoesOn, Counted(&all.waiting, 1)));
}

/// Whether the thread is kept from closing, and so many wait for it that no further connection should be accepted that may be another
/// user's.
pub(crate) fn is_kept_from_closing() -> bool {
    let all = of_strangers();
    let waiting = all.waiting.load(Ordering::Relaxed);
    waiting >= 2 * UNCLOSED || waiting >= UNCLOSED && all.stands_still() > STUCK
}

/// Notes that a socket is closed.
struct GoesOn;

impl Drop for GoesOn {
    fn drop(&mut self) {
        of_strangers().goes_on();
    }
}

/// The thread of the whole process, for memory that belongs to no single device, and what waits there.
#[derive(Default)]
struct OfAll {
    drops: DropThread,
    /// Bytes of pinned main memory that wait, or how many sockets.
    waiting: AtomicU64,
    /// When it last closed a socket, or was given the first: microseconds since `begun`.
    progress: AtomicU64,
    begun: Begun,
}

struct Begun(Instant);

impl Default for Begun {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl OfAll {
    fn goes_on(&self) {
        let now = self.begun.0.elapsed().as_micros() as u64;
        self.progress.fetch_max(now, Ordering::Relaxed);
    }

    fn stands_still(&self) -> Duration {
        let since = Duration::from_micros(self.progress.load(Ordering::Relaxed));
        self.begun.0.elapsed().saturating_sub(since)
    }
}

fn of_all() -> &'static OfAll {
    static OF_ALL: PerProcess<OfAll> = PerProcess::new();
    OF_ALL.get(OfAll::default)
}

/// Drops `what` on the thread of the whole process. Until then, it keeps so many bytes of main memory pinned.
pub(crate) fn drop_later(bytes: usize, what: impl Send + 'static) {
    let all = of_all();
    all.waiting.fetch_add(bytes as u64, Ordering::Relaxed);
    let counted = Counted(&all.waiting, bytes as u64);
    // Dropped in this order.
    all.drops.drop_later((what, counted));
}

/// Whether so much waits that nobody should pin more. Memory that is not pinned costs one more copy, but is freed at once.
#[allow(dead_code, reason = "for devices that are built in")]
pub(crate) fn is_backlogged() -> bool {
    of_all().waiting.load(Ordering::Relaxed) >= BEHIND
}

/// Counted there until this is dropped.
struct Counted(&'static AtomicU64, u64);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

fn start() -> io::Result<Queue> {
    let (queue, all): (_, Receiver<Box<dyn Any + Send>>) = channel();
    let thread = std::thread::Builder::new().name("tp-free".to_owned());
    let started = thread.spawn(move || {
        for what in all {
            // A panic in one drop must not keep the others.
            if workers::panics(|| drop(what)) {
                tracing::error!("an owner of memory has panicked as it was dropped");
            }
        }
    });
    started.map(|_| queue)
}

#[cfg(test)]
mod tests {
    use std::thread::{ThreadId, current};

    use super::*;

    /// Says which thread drops it.
    struct Item(Sender<ThreadId>);

    impl Drop for Item {
        fn drop(&mut self) {
            self.0.send(current().id()).unwrap();
        }
    }

    /// A process at its limit of threads may be there for a moment only.
    #[test]
    fn a_thread_that_was_refused_is_asked_for_again() {
        let (frees, (says, said)) = (DropThread::default(), channel());
        let refused = || Err(io::Error::from_raw_os_error(libc::EAGAIN));
        frees.drop_on(refused, Item(says.clone()));
        let here = current().id();
        assert_eq!(said.recv().unwrap(), here);
        frees.drop_on(start, Item(says.clone()));
        let other = said.recv().unwrap();
        assert_ne!(other, here);
        frees.drop_on(|| unreachable!(), Item(says));
        assert_eq!(said.recv().unwrap(), other);
    }
}
