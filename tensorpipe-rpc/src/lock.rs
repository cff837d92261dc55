//! Locks that survive a panic of their holder, atomics, and tokio's `Notify`. `tensorpipe-loom` replaces all of them.

use std::sync::PoisonError;

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard};
pub(crate) use tokio::sync::Notify;

/// Locks a mutex, even if its holder panicked. No foreign code runs under these locks, so the state is still usable.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
