//! Locks whose holder may have panicked, atomics and tokio's `Notify`, of which `tensorpipe-loom` has its own by the same names.

use std::sync::PoisonError;

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard};
pub(crate) use tokio::sync::Notify;

/// Locks. What a panicking thread left behind is used as it is: nothing here runs foreign code under a lock.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
