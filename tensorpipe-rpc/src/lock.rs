//! Locks whose holder may have panicked, and atomics, by the names of which `tensorpipe-loom` has its own.

use std::sync::{MutexGuard, PoisonError};

pub(crate) use std::sync::Mutex;
pub(crate) use std::sync::atomic::{AtomicBool, Ordering};

/// Locks. What a panicking thread left behind is used as it is: nothing here runs foreign code under a lock.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
