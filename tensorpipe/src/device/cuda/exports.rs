//! Descriptors of a device's own memory, for other processes that map it. A pool keeps more memory than a process may have descriptors, so
//! beyond some, those of which nothing is lent are closed. The others stay, since a borrower maps a new descriptor anew.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::foreign::{KNOWN, full};
use crate::device::Fence;
use crate::sys::drop_thread::DropThread;
use crate::sys::segment::Segment;

/// How many stay although nothing of them is lent. Chosen: an eighth of the descriptors that a process has by default.
const KEPT: usize = 128;

/// The descriptor of one physical memory, while there is one.
#[derive(Default)]
pub(super) struct Export(Mutex<Option<Exported>>);

struct Exported {
    segment: Arc<Segment>,
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

    /// The segment, if nothing of it is lent; it is a new one then next time.
    fn take_idle(&self) -> Option<Arc<Segment>> {
        // If the lock is taken, its holder is about to lend it.
        let mut export = self.0.try_lock().ok()?;
        let exported = export.as_mut()?;
        exported.loans.retain(|loan| {
            let asked = loan.upgrade();
            asked.is_some_and(|loan| loan.reached().is_none())
        });
        if Arc::strong_count(&exported.segment) > 1 {
            return None;
        }
        export.take().map(|exported| exported.segment)
    }
}

impl Exports {
    pub(super) fn new(frees: &Arc<DropThread>) -> Self {
        Self {
            frees: frees.clone(),
            known: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Export>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The segment of an export, from `make` if there is none.
    ///
    /// # Errors
    /// If `make` fails, or too many are lent: the reason in words, and whether it is lasting.
    pub(super) fn of(
        &self,
        export: &Arc<Export>,
        make: impl FnOnce() -> Result<Arc<Segment>, (String, bool)>,
    ) -> Result<Arc<Segment>, (String, bool)> {
        let mut here = export.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(exported) = &*here {
            return Ok(exported.segment.clone());
        }
        if self.lock().len() >= KEPT {
            self.forget(export);
        }
        if self.lock().len() >= KNOWN {
            return Err((full("of this process"), false));
        }
        let exported = Exported {
            segment: make()?,
            loans: Vec::new(),
        };
        self.lock().push(Arc::downgrade(export));
        Ok(here.insert(exported).segment.clone())
    }

    /// Closes some of which nothing is lent, until this one has its place.
    fn forget(&self, export: &Arc<Export>) {
        let mut all: Vec<_> = self.lock().iter().filter_map(Weak::upgrade).collect();
        let excess = all.len().saturating_sub(KEPT - 1);
        // Any of them: where a program lends from each in turn, the oldest is the next one that it needs.
        let any = Arc::as_ptr(export).addr() / 64;
        let len = all.len().max(1);
        all.rotate_left(any % len);
        let over = all.iter().filter_map(|export| export.take_idle());
        let over: Vec<_> = over.take(excess).collect();
        if !over.is_empty() {
            self.frees.drop_later(over);
        }
        drop(all);
        let mut known = self.lock();
        // The others are closed, or gone with their memory. While the lock is taken, one is being made.
        let is_closed =
            |export: Arc<Export>| export.0.try_lock().is_ok_and(|export| export.is_none());
        known.retain(|known| known.upgrade().is_some_and(|export| !is_closed(export)));
    }
}
