//! The same names as in `tensorpipe/src/sync.rs`, made of loom's types.
//!
//! Only the lock is our own. With loom's lock no other thread runs between the last step under the lock and its release. So a `try_lock`
//! in just that moment, in which a kick could get lost, would never fail. Here a lock that is tried is an atomic flag with the orderings of
//! the standard library's lock.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicU8;
use std::sync::{LockResult, PoisonError, TryLockError};

use crate::death;

pub use std::sync::atomic::Ordering;
pub use std::sync::{Arc, Weak};

macro_rules! atomics {
    ($($name:ident: $type:ty;)+) => {
        $(
            /// loom's atomic, where each use is a step.
            #[derive(Debug)]
            pub struct $name(loom::sync::atomic::$name);

            impl $name {
                /// An atomic with this value.
                pub fn new(value: $type) -> Self {
                    let atomic = loom::sync::atomic::$name::new(value);
                    // loom has one order for sequentially consistent stores, to which the first value does not belong.
                    atomic.store(value, Ordering::SeqCst);
                    Self(atomic)
                }
            }

            impl Default for $name {
                fn default() -> Self {
                    Self::new(<$type>::default())
                }
            }

            impl Deref for $name {
                type Target = loom::sync::atomic::$name;

                fn deref(&self) -> &Self::Target {
                    death::step();
                    &self.0
                }
            }
        )+
    };
}

atomics! {
    AtomicBool: bool;
    AtomicU32: u32;
    AtomicU64: u64;
    AtomicUsize: usize;
}

/// loom's fence, also a step.
pub fn fence(order: Ordering) {
    death::step();
    loom::sync::atomic::fence(order);
}

/// A lock that is either always waited for or always tried.
pub struct Mutex<T: ?Sized> {
    waited: loom::sync::Mutex<()>,
    tried: AtomicBool,
    /// Whether the lock is waited for or tried. Access is no step of a model.
    usage: AtomicU8,
    data: std::sync::Mutex<T>,
}

/// Access to what a [`Mutex`] guards; dropping it unlocks.
pub struct MutexGuard<'a, T: ?Sized> {
    /// Taken on drop, before other threads may lock.
    data: Option<std::sync::MutexGuard<'a, T>>,
    held: Held<'a>,
}

enum Held<'a> {
    Waited {
        _guard: loom::sync::MutexGuard<'a, ()>,
    },
    Tried(&'a AtomicBool),
}

const WAITED: u8 = 1;
const TRIED: u8 = 2;

impl<T> Mutex<T> {
    /// An unlocked lock.
    pub fn new(data: T) -> Self {
        Self {
            waited: loom::sync::Mutex::new(()),
            tried: AtomicBool::new(false),
            usage: AtomicU8::new(0),
            data: std::sync::Mutex::new(data),
        }
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Access without locking: `&mut self` proves that nobody else has the lock.
    ///
    /// # Errors
    /// As the standard library's.
    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        self.data.get_mut()
    }

    fn guard<'a>(&'a self, usage: u8, held: Held<'a>) -> MutexGuard<'a, T> {
        let before = self.usage.fetch_or(usage, Ordering::Relaxed);
        assert!(
            [0, usage].contains(&before),
            "a lock here is either waited for or tried, not both"
        );
        let data = match self.data.try_lock() {
            Ok(data) => data,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => panic!("two threads have the same lock"),
        };
        MutexGuard {
            data: Some(data),
            held,
        }
    }
}

/// Waits for the lock.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    let guard = mutex.waited.lock();
    let guard = guard.unwrap_or_else(PoisonError::into_inner);
    mutex.guard(WAITED, Held::Waited { _guard: guard })
}

/// Locks if the lock is free; does not wait.
pub fn try_lock<T: ?Sized>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    // An exchange that fails is a relaxed load, which may see an old value. loom's exchanges only see the newest.
    if mutex.tried.load(Ordering::Relaxed) {
        return None;
    }
    mutex
        .tried
        .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
        .ok()?;
    Some(mutex.guard(TRIED, Held::Tried(&mutex.tried)))
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: ?Sized> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex").finish_non_exhaustive()
    }
}

impl<T: ?Sized> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MutexGuard").finish_non_exhaustive()
    }
}

const HELD: &str = "only dropping it takes it";

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.data.as_deref().expect(HELD)
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.data.as_deref_mut().expect(HELD)
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.data = None;
        if let Held::Tried(tried) = self.held {
            tried.swap(false, Ordering::Release);
        }
    }
}

/// loom runs all threads of a model on one of the system's: its own thread locals tell them apart.
macro_rules! local {
    ($(#[$attribute:meta])* $vis:vis static $name:ident: $type:ty = const $init:block;) => {
        loom::thread_local! {
            $(#[$attribute])* $vis static $name: $type = $init
        }
    };
}

pub(crate) use local as thread_local;
