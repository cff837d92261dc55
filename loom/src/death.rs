//! Kills a thread between two of its steps.
//!
//! Every operation of [`sync`](crate::sync) is a step, and so is every call of [`step`]. A thread dies by unwinding:
//! values that the models' threads hold do nothing when they are dropped.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use loom::thread::{self, ThreadId};

thread_local! {
    /// The thread that dies, and after how many steps. loom runs all threads of a model on this system thread.
    static LIFE: Cell<Option<(ThreadId, u32)>> = const { Cell::new(None) };
}

/// When a thread is to die.
#[derive(Clone)]
pub(crate) struct Dies {
    after: u32,
    happened: Arc<AtomicBool>,
}

/// Runs `models` with a thread that dies before its first step, then before its second, and so on, until the thread survives.
pub(crate) fn at_each_step(models: impl Fn(Dies)) {
    for after in 0.. {
        let happened = Arc::new(AtomicBool::new(false));
        models(Dies {
            after,
            happened: happened.clone(),
        });
        if !happened.load(Ordering::Relaxed) {
            assert!(after > 0, "it took no step");
            return;
        }
    }
}

impl Dies {
    /// Runs `life` on this thread until it ends or dies.
    pub(crate) fn live(&self, life: impl FnOnce()) {
        LIFE.set(Some((thread::current().id(), self.after)));
        let ended = catch_unwind(AssertUnwindSafe(life));
        LIFE.set(None);
        match ended {
            Ok(()) => {}
            Err(death) if death.is::<Death>() => self.happened.store(true, Ordering::Relaxed),
            Err(panic) => resume_unwind(panic),
        }
    }
}

struct Death;

/// The calling thread is about to take a step.
pub(crate) fn step() {
    let Some((who, left)) = LIFE.get() else {
        return;
    };
    if thread::current().id() != who {
        return;
    }
    let Some(left) = left.checked_sub(1) else {
        LIFE.set(None);
        resume_unwind(Box::new(Death));
    };
    LIFE.set(Some((who, left)));
}
