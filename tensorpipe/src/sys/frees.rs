//! A thread that lets go of memory, for threads that others wait for: to unregister, unmap and release takes a driver long, which may
//! wait for its device first, and the owner of another library's memory runs that library's code.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

/// See the module's documentation. The thread starts with the first thing to drop, and ends behind the last one.
#[derive(Default)]
pub(crate) struct Frees(Mutex<Option<Sender<Box<dyn Any + Send>>>>);

impl Frees {
    /// Drops it there; here where the system has no thread for that.
    pub(crate) fn elsewhere(&self, what: impl Send + 'static) {
        let thread = {
            let mut thread = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            thread.get_or_insert_with(start).clone()
        };
        drop(thread.send(Box::new(what)));
    }
}

fn start() -> Sender<Box<dyn Any + Send>> {
    let (sender, all): (_, Receiver<Box<dyn Any + Send>>) = channel();
    let thread = std::thread::Builder::new().name("tp-free".to_owned());
    let started = thread.spawn(move || {
        for what in all {
            // The others are dropped, too.
            if let Err(thrown) = catch_unwind(AssertUnwindSafe(|| drop(what))) {
                std::mem::forget(thrown);
                tracing::error!("an owner of memory has panicked as it was dropped");
            }
        }
    });
    if let Err(error) = started {
        tracing::warn!(%error, "no thread lets go of memory that devices reach");
    }
    sender
}
