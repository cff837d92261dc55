//! A thread that lets go of memory, for threads that others wait for: to unregister, unmap and release takes a driver long, which may
//! wait for its device first, and the owner of another library's memory runs that library's code.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

use super::fork::PerProcess;
use super::workers;

/// So many bytes of pinned main memory may wait, but for what comes last. A device that is never idle lets go of none, and programs have
/// more of it meanwhile. Chosen: more than a context keeps warm by default.
const BEHIND: u64 = 1 << 30;

/// See the module's documentation. The thread starts with the first thing to drop, and ends behind the last one.
#[derive(Default)]
pub(crate) struct DropThread(Mutex<Option<Sender<Box<dyn Any + Send>>>>);

impl DropThread {
    /// Drops it there; here where the system has no thread for that.
    pub(crate) fn drop_later(&self, what: impl Send + 'static) {
        let thread = {
            let mut thread = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            thread.get_or_insert_with(start).clone()
        };
        drop(thread.send(Box::new(what)));
    }
}

/// What waits for the thread of the whole process, where memory is of no one device.
#[derive(Default)]
struct OfAll {
    frees: DropThread,
    /// Of pinned main memory.
    bytes: AtomicU64,
}

fn of_all() -> &'static OfAll {
    static OF_ALL: PerProcess<OfAll> = PerProcess::new();
    OF_ALL.get(OfAll::default)
}

/// Drops it on the thread of the whole process. Until then it keeps so many bytes of main memory pinned.
pub(crate) fn drop_later(bytes: usize, what: impl Send + 'static) {
    let all = of_all();
    all.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    let counted = Counted(bytes as u64);
    // In this order.
    all.frees.drop_later((what, counted));
}

/// Whether so much waits there that nobody should pin more: what is not pinned is copied once more, and freed at once.
#[allow(dead_code, reason = "for devices that are built in")]
pub(crate) fn are_behind() -> bool {
    of_all().bytes.load(Ordering::Relaxed) >= BEHIND
}

/// Bytes that wait, until it is dropped.
struct Counted(u64);

impl Drop for Counted {
    fn drop(&mut self) {
        of_all().bytes.fetch_sub(self.0, Ordering::Relaxed);
    }
}

fn start() -> Sender<Box<dyn Any + Send>> {
    let (sender, all): (_, Receiver<Box<dyn Any + Send>>) = channel();
    let thread = std::thread::Builder::new().name("tp-free".to_owned());
    let started = thread.spawn(move || {
        for what in all {
            // The others are dropped, too.
            if workers::panics(|| drop(what)) {
                tracing::error!("an owner of memory has panicked as it was dropped");
            }
        }
    });
    if let Err(error) = started {
        tracing::warn!(%error, "no thread lets go of memory that devices reach");
    }
    sender
}
