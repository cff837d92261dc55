//! Descriptors of a device's own memory, for other processes that map it. A pool keeps more memory than a process may have descriptors, so a
//! descriptor is closed when nothing of its memory was lent for a while.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::fence::Watcher;
use super::foreign::{IDLE, KNOWN, full};
use crate::device::Fence;
use crate::sys::drop_thread::DropThread;
use crate::sys::segment::Segment;

/// The descriptor of one physical memory, while there is one.
#[derive(Default)]
pub(super) struct Export(Mutex<Option<Exported>>);

struct Exported {
    segment: Arc<Segment>,
    used: Instant,
    /// Reached when what was lent of it is back. Until they are asked, they keep the segment.
    loans: Vec<Weak<dyn Fence>>,
}

/// Those of one device.
pub(super) struct Exports {
    frees: Arc<DropThread>,
    known: Mutex<Vec<Weak<Export>>>,
}

impl Export {
    /// Whether there is one now. Does not wait for another thread that makes one.
    pub(super) fn is_there(&self) -> bool {
        self.0.try_lock().is_ok_and(|export| export.is_some())
    }

    /// Part of the memory is lent until this fence.
    pub(super) fn lent_until(&self, loan: &Arc<dyn Fence>) {
        let mut export = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(exported) = &mut *export {
            exported.loans.retain(|loan| loan.strong_count() > 0);
            exported.loans.push(Arc::downgrade(loan));
        }
    }

    /// The segment, if nothing of it was lent for so long; it is a new one then next time.
    fn take_idle(&self, idle: Duration) -> Option<Arc<Segment>> {
        // If the lock is taken, its holder is about to lend it.
        let mut export = self.0.try_lock().ok()?;
        let exported = export.as_mut()?;
        if exported.used.elapsed() < idle {
            return None;
        }
        exported.loans.retain(|loan| {
            let asked = loan.upgrade();
            asked.is_some_and(|loan| loan.reached().is_none())
        });
        if Arc::strong_count(&exported.segment) > 1 {
            exported.used = Instant::now();
            return None;
        }
        export.take().map(|exported| exported.segment)
    }
}

impl Exports {
    pub(super) fn new(frees: &Arc<DropThread>) -> Arc<Self> {
        Arc::new(Self {
            frees: frees.clone(),
            known: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Export>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The segment of an export, from `make` if there is none.
    ///
    /// # Errors
    /// If `make` fails, or too many are lent: the reason in words, and whether it is lasting.
    pub(super) fn of(
        self: &Arc<Self>,
        export: &Arc<Export>,
        watcher: &Watcher,
        make: impl FnOnce() -> Result<Arc<Segment>, (String, bool)>,
    ) -> Result<Arc<Segment>, (String, bool)> {
        let mut here = export.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(exported) = &mut *here {
            exported.used = Instant::now();
            return Ok(exported.segment.clone());
        }
        if self.lock().len() >= KNOWN {
            self.forget(Duration::ZERO);
        }
        if self.lock().len() >= KNOWN {
            return Err((full("of this process"), false));
        }
        let exported = Exported {
            segment: make()?,
            used: Instant::now(),
            loans: Vec::new(),
        };
        let is_first = {
            let mut known = self.lock();
            known.push(Arc::downgrade(export));
            known.len() == 1
        };
        if is_first {
            let this = self.clone();
            watcher.watch(move || this.forget(IDLE), Box::new(|| ()));
        }
        Ok(here.insert(exported).segment.clone())
    }

    /// Closes those of which nothing was lent for so long. Returns whether none is left.
    fn forget(&self, idle: Duration) -> bool {
        let all: Vec<_> = self.lock().iter().filter_map(Weak::upgrade).collect();
        let over = all.iter().filter_map(|export| export.take_idle(idle));
        let over: Vec<_> = over.collect();
        if !over.is_empty() {
            self.frees.drop_later(over);
        }
        drop(all);
        let mut known = self.lock();
        // The others are closed, or gone with their memory. While the lock is taken, one is being made.
        let is_closed =
            |export: Arc<Export>| export.0.try_lock().is_ok_and(|export| export.is_none());
        known.retain(|known| known.upgrade().is_some_and(|export| !is_closed(export)));
        known.is_empty()
    }
}
