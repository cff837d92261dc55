//! Registrations of memory: before network cards and GPUs reach an allocation, they pin or export it, which takes longer than most
//! transfers. So this is done once for each allocation and domain, and kept beside the memory.
//!
//! Invariant: a registration ends before its memory does. An owner of memory declares its [`Registrations`] before the memory, or clears
//! them first. A user of a registration holds a handle on the memory ([`Buffer::registered`](crate::Buffer::registered)).

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::drop_thread;

/// The party that registers: a protection domain of a network card, or the context of a GPU. No two in a process are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Domain(u64);

impl Domain {
    /// A domain that equals no other.
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The registrations of one allocation, at most one for each [`Domain`]. Without any, this allocates nothing.
#[derive(Default)]
pub struct Registrations {
    kept: Mutex<Kept>,
}

type Kept = Vec<(Domain, Arc<dyn Any + Send + Sync>)>;

impl Registrations {
    /// The registration for `domain`, made by `register` at the first call. Concurrent callers wait for it.
    pub(crate) fn of<R: Send + Sync + 'static, E>(
        &self,
        domain: Domain,
        register: impl FnOnce() -> Result<R, E>,
    ) -> Result<Arc<R>, E> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kept.iter().find(|(of, _)| *of == domain);
        if let Some(known) = known.and_then(|(_, known)| known.clone().downcast().ok()) {
            return Ok(known);
        }
        let new = Arc::new(register()?);
        kept.retain(|(of, _)| *of != domain);
        kept.push((domain, new.clone()));
        Ok(new)
    }

    /// The registration for `domain`, if it exists. Does not wait for one that is being made.
    #[allow(dead_code, reason = "for devices that are built in")]
    pub(crate) fn get<R: Send + Sync + 'static>(&self, domain: Domain) -> Option<Arc<R>> {
        let kept = self.kept.try_lock().ok()?;
        let known = kept.iter().find(|(of, _)| *of == domain);
        known.and_then(|(_, known)| known.clone().downcast().ok())
    }

    /// Ends all of them, then drops `memory`, the `len` bytes that they cover. If there are any, a thread does both: a driver may wait for
    /// its device before it ends one.
    pub(crate) fn end_before(&mut self, len: usize, memory: impl Send + 'static) {
        let kept = self.kept.get_mut();
        let kept = std::mem::take(kept.unwrap_or_else(PoisonError::into_inner));
        if !kept.is_empty() {
            // Dropped in this order.
            drop_thread::drop_later(len, (kept, memory));
        }
    }

    /// Ends all of them: for an owner that is about to free or move the memory.
    pub fn clear(&mut self) {
        let kept = self.kept.get_mut();
        kept.unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl fmt::Debug for Registrations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registrations").finish_non_exhaustive()
    }
}

/// An allocation that can be registered, and the place of some memory in it.
#[derive(Clone, Copy, Debug)]
pub struct Registrable<'a> {
    /// The registrations that it has.
    pub registrations: &'a Registrations,
    /// Where the memory begins in the allocation, in bytes.
    pub offset: usize,
    /// The allocation's length, in bytes.
    pub len: usize,
}

impl<'a> Registrable<'a> {
    /// Memory of `len` bytes that is an allocation of its own.
    pub fn whole(registrations: &'a Registrations, len: usize) -> Self {
        Self {
            registrations,
            offset: 0,
            len,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::{Duration, Instant};

    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    /// Its drop waits until it is allowed, then reports whether its memory still exists.
    struct Late {
        let_go: Mutex<Receiver<()>>,
        memory: Weak<()>,
        ended: Sender<bool>,
    }

    impl Drop for Late {
        fn drop(&mut self) {
            let let_go = self.let_go.get_mut().unwrap().recv_timeout(LONG);
            let is_there = self.memory.upgrade().is_some();
            self.ended.send(let_go.is_ok() && is_there).unwrap();
        }
    }

    #[test]
    fn one_that_ends_late_holds_up_nobody_and_ends_before_its_memory() {
        let (go, let_go) = channel();
        let (ended, hears) = channel();
        let memory = Arc::new(());
        let is_there = Arc::downgrade(&memory);
        let late = Late {
            let_go: Mutex::new(let_go),
            memory: is_there.clone(),
            ended,
        };
        let mut registrations = Registrations::default();
        let made = registrations.of(Domain::unique(), || Ok::<_, ()>(late));
        drop(made);
        registrations.end_before(0, memory);
        assert!(is_there.upgrade().is_some(), "it is registered still");
        go.send(()).unwrap();
        assert_eq!(hears.recv_timeout(LONG), Ok(true));
        let until = Instant::now() + LONG;
        while is_there.upgrade().is_some() {
            assert!(Instant::now() < until, "its memory stays");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn memory_without_one_goes_at_once() {
        let memory = Arc::new(());
        let is_there = Arc::downgrade(&memory);
        Registrations::default().end_before(0, memory);
        assert!(is_there.upgrade().is_none());
    }
}
