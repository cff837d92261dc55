//! Tells, without a system call, whether this process is still the one that made something, and not a forked child.
//!
//! The kernel wipes one page at a fork: a child finds 0 there, and takes a number that no ancestor had.
//!
//! A child may inherit a static that is locked by a thread of its parent, and so locked for ever. A [`PerProcess`] is made anew in the
//! child, and a [`OnceBox`] has no lock.

#![allow(
    unsafe_code,
    reason = "the page is mapped by a system call and seen as an atomic number"
)]

use std::num::NonZeroUsize;
use std::ptr;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous};

use crate::error::SystemError;
use crate::sync::{AtomicPtr, AtomicU64, Ordering};

/// The process in which something was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin(u64);

impl Origin {
    /// This process. Fails where the kernel cannot wipe pages (before Linux 4.14).
    pub(crate) fn here() -> Result<Self, SystemError> {
        page().cloned().map(current).map(Self)
    }

    /// Whether this is that process, and not a forked child of it. Called many times for each message: two loads.
    #[inline]
    pub(crate) fn is_here(self) -> bool {
        // SAFETY: null, or the page, which is never unmapped.
        let page = unsafe { NUMBER.load(Ordering::Relaxed).as_ref() };
        // Made here or by an ancestor: whoever has an origin has seen the page.
        page.is_some_and(|page| page.load(Ordering::Relaxed) == self.0)
    }
}

/// An `Origin` for values with a destructor. In a forked child, their drop must touch no lock, which a missing thread may hold, and
/// nothing shared with the parent, such as sockets. If the kernel cannot tell, no process counts as a child.
#[derive(Clone, Copy, Debug)]
pub struct Owner(Option<Origin>);

impl Owner {
    /// This process.
    pub fn here() -> Self {
        Self(Origin::here().ok())
    }

    /// Whether this is a forked child of that process.
    #[inline]
    pub fn is_other_process(self) -> bool {
        self.0.is_some_and(|origin| !origin.is_here())
    }
}

impl Default for Owner {
    fn default() -> Self {
        Self::here()
    }
}

/// A static with a separate value in each process, made at its first use.
#[derive(Debug)]
pub struct PerProcess<T>(AtomicPtr<Owned<T>>);

#[derive(Debug)]
struct Owned<T> {
    process: u64,
    value: T,
}

impl<T: Send + Sync + 'static> PerProcess<T> {
    /// Not made in any process yet.
    #[expect(clippy::new_without_default, reason = "it is for statics")]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// This process's value. Two threads may `make` one at the same time; one of the two is kept.
    pub fn get(&self, make: impl FnOnce() -> T) -> &T {
        // Without the page, by the number: an old kernel, on which nothing is shared that a stale value could harm.
        let process = Origin::here().map_or_else(|_| u64::from(std::process::id()), |here| here.0);
        let found = self.0.load(Ordering::Acquire);
        // SAFETY: null, or from `into_raw` below, by this process or an ancestor, and never freed.
        if let Some(owned) = unsafe { found.as_ref() }
            && owned.process == process
        {
            return &owned.value;
        }
        let value = make();
        let made = Box::into_raw(Box::new(Owned { process, value }));
        let set = (self.0).compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire);
        let kept = match set {
            // An ancestor's value is leaked: its lock may be held.
            Ok(_) => made,
            Err(faster) => {
                // SAFETY: made above, and nobody has seen it.
                drop(unsafe { Box::from_raw(made) });
                faster
            }
        };
        // SAFETY: as above. Only threads of this process write here, so a faster one's is this process's, too.
        let owned = unsafe { &*kept };
        &owned.value
    }
}

/// A value that is found once for a process and its children. Unlike `OnceLock`, no thread waits for another: in a child, that thread may
/// not exist.
#[derive(Debug)]
pub(crate) struct OnceBox<T>(AtomicPtr<T>);

impl<T: Send + Sync> OnceBox<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    pub(crate) fn get(&self) -> Option<&T> {
        // SAFETY: null, or from `into_raw` below, and freed with `self`.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Finds the value, unless it is known. If two threads do so at once, one result is kept.
    pub(crate) fn get_or_init(&self, find: impl FnOnce() -> T) -> &T {
        if let Some(known) = self.get() {
            return known;
        }
        let found = Box::into_raw(Box::new(find()));
        let (set, seen) = (Ordering::AcqRel, Ordering::Acquire);
        let faster = (self.0).compare_exchange(ptr::null_mut(), found, set, seen);
        let known = faster.map_or_else(
            |faster| {
                // SAFETY: made above, and nobody has seen it.
                drop(unsafe { Box::from_raw(found) });
                faster
            },
            |_| found,
        );
        // SAFETY: as in `get`.
        unsafe { &*known }
    }
}

impl<T> Drop for OnceBox<T> {
    fn drop(&mut self) {
        let known = self.0.load(Ordering::Acquire);
        if !known.is_null() {
            // SAFETY: from `into_raw` above, and nobody else is here any more.
            drop(unsafe { Box::from_raw(known) });
        }
    }
}

fn current(page: &AtomicU64) -> u64 {
    /// Copied at a fork: a child continues from its parent's number.
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let found = page.load(Ordering::Relaxed);
    if found != 0 {
        return found;
    }
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let set = page.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
    set.map_or_else(|found| found, |_| next)
}

/// The page, once it is there.
static NUMBER: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());

fn page() -> Result<&'static &'static AtomicU64, SystemError> {
    static PAGE: OnceBox<Result<&'static AtomicU64, SystemError>> = OnceBox::new();
    let page = PAGE.get_or_init(make).as_ref().map_err(Clone::clone)?;
    NUMBER.store(ptr::from_ref(*page).cast_mut(), Ordering::Relaxed);
    Ok(page)
}

fn make() -> Result<&'static AtomicU64, SystemError> {
    const PAGE: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
    let refused = |call, errno: nix::errno::Errno| SystemError::new(call, "", errno.into());
    let (protection, flags) = (
        ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        MapFlags::MAP_PRIVATE,
    );
    // SAFETY: a new private mapping at an address of the system's choice touches no memory of anybody else.
    let start = unsafe { mmap_anonymous(None, PAGE, protection, flags) }
        .map_err(|errno| refused("mmap", errno))?;
    // SAFETY: the page is ours, and nobody has seen it.
    unsafe { madvise(start, PAGE.get(), MmapAdvise::MADV_WIPEONFORK) }
        .map_err(|errno| refused("madvise", errno))?;
    // SAFETY: the page is zeroed, aligned, lives as long as the process, and is only used as this number.
    Ok(unsafe { start.cast::<AtomicU64>().as_ref() })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::sync::{AtomicBool, Mutex, lock};

    /// Whether forked children can `act` while another thread of the parent does so, whatever locks it holds.
    pub(crate) fn children_can(act: impl Fn() + Sync) -> bool {
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    act();
                }
            });
            let child = || {
                in_a_child(|| {
                    act();
                    true
                })
            };
            let all_can = (0..200).all(|_| child());
            ended.store(true, Ordering::Relaxed);
            all_can
        })
    }

    /// Whether nothing can keep a child from opening files, as a sanitizer does.
    pub(crate) fn opens_files_anyway() -> bool {
        let is_sanitized = std::env::var_os("TENSORPIPE_TEST_SANITIZED").is_some();
        if is_sanitized {
            println!("skipped: a sanitizer opens files of its own");
        }
        is_sanitized
    }

    /// Limits this process, a forked child, to so many open descriptors.
    pub(crate) fn open_at_most(most: u64) {
        let limit = libc::rlimit {
            rlim_cur: most,
            rlim_max: 64,
        };
        // SAFETY: the limit is read during the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    }

    /// Whether a forked child can let go of something that it has inherited.
    pub(crate) fn a_child_drops<T>(inherited: &mut Option<T>) -> bool {
        in_a_child(|| {
            drop(inherited.take());
            true
        })
    }

    /// Whether `holds` in a forked child.
    pub(crate) fn in_a_child(holds: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child runs what it is given, which allocates at most, and leaves at once without running anything of
        // this process.
        match unsafe { nix::unistd::fork() }.unwrap() {
            nix::unistd::ForkResult::Child => {
                // SAFETY: the child has no handlers of its own; the signal ends one that waits for ever.
                unsafe { libc::alarm(10) };
                // A panic would end in the test harness's copy, with threads that are not there.
                let holds = std::panic::catch_unwind(std::panic::AssertUnwindSafe(holds));
                // SAFETY: ends the child without running what the parent has registered.
                unsafe { libc::_exit(i32::from(!holds.unwrap_or(false))) }
            }
            nix::unistd::ForkResult::Parent { child } => {
                let status = nix::sys::wait::waitpid(child, None).unwrap();
                println!("{status:?}");
                matches!(status, nix::sys::wait::WaitStatus::Exited(_, 0))
            }
        }
    }

    #[test]
    fn a_forked_child_finds_a_lock_free_that_was_held() {
        static NAMES: PerProcess<Mutex<Vec<&str>>> = PerProcess::new();
        let names = || NAMES.get(Mutex::default);
        let mut held = lock(names());
        held.push("parent");
        assert!(in_a_child(|| {
            let is_new = lock(names()).is_empty();
            lock(names()).push("child");
            is_new && *lock(names()) == ["child"]
        }));
        drop(held);
        assert_eq!(*lock(names()), ["parent"]);
    }

    /// A `OnceLock` that a thread is about to fill would make the child wait for a thread that it does not have.
    #[test]
    fn a_forked_child_finds_out_what_was_being_found_out() {
        static NUMBER: OnceBox<u32> = OnceBox::new();
        let [begun, end] = [(); 2].map(|()| std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                NUMBER.get_or_init(|| {
                    begun.wait();
                    end.wait();
                    1
                })
            });
            begun.wait();
            let childs = in_a_child(|| *NUMBER.get_or_init(|| 2) == 2 && NUMBER.get() == Some(&2));
            end.wait();
            assert!(childs);
        });
        assert_eq!(*NUMBER.get_or_init(|| 3), 1);
    }

    #[test]
    fn threads_share_what_one_of_them_has_made() {
        static NUMBER: PerProcess<AtomicU64> = PerProcess::new();
        let start = std::sync::Barrier::new(8);
        let found: Vec<usize> = std::thread::scope(|scope| {
            let threads = (0..8).map(|_| {
                scope.spawn(|| {
                    start.wait();
                    let number = NUMBER.get(AtomicU64::default);
                    number.fetch_add(1, Ordering::Relaxed);
                    ptr::from_ref(number).addr()
                })
            });
            let threads: Vec<_> = threads.collect();
            let joined = threads.into_iter().map(|thread| thread.join().unwrap());
            joined.collect()
        });
        assert!(found.iter().all(|at| *at == found[0]));
        let number = NUMBER.get(AtomicU64::default);
        assert_eq!(number.load(Ordering::Relaxed), 8);
    }

    #[test]
    fn a_forked_child_is_somebody_else() {
        let here = Origin::here().unwrap();
        assert!(here.is_here());
        assert!(in_a_child(
            || !here.is_here() && Origin::here().is_ok_and(|new| new != here)
        ));
        assert!(here.is_here());
    }
}
