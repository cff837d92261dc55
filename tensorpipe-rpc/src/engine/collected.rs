//! What threads collect for whichever of them sends next: releases of references that have not left.
//!
//! Invariant: while something is listed, [`Collected::has_some`] says so to whoever knows of it, and somebody was asked to send it. It stays
//! listed until it is sent, so that what a thread sends afterwards does not overtake it. Two threads may send the same.

use std::collections::VecDeque;

use crate::lock::{AtomicBool, Mutex, Ordering, lock};

/// Above so many, the list's memory is given back once it is empty.
const KEPT: usize = 64;

pub(super) struct Collected<T> {
    list: Mutex<List<T>>,
    /// Changed under the lock. Also true while a thread sends one that it did not list.
    some: AtomicBool,
}

struct List<T> {
    /// The oldest first.
    waiting: VecDeque<T>,
    /// How many have been removed so far.
    removed: u64,
}

/// What became of one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    /// It is not listed. The caller sends it now, or [keeps](Collected::keep) it.
    SendNow,
    /// It is the first in the list: the caller asks somebody to send it.
    Ask,
    /// Whoever listed the first has asked.
    Asked,
}

impl<T> Default for Collected<T> {
    fn default() -> Self {
        let list = List {
            waiting: VecDeque::new(),
            removed: 0,
        };
        Self {
            list: Mutex::new(list),
            some: AtomicBool::new(false),
        }
    }
}

impl<T: Copy> Collected<T> {
    /// Lists one more, unless it is the first for a while.
    pub(super) fn add(&self, one: T) -> Added {
        let mut list = lock(&self.list);
        if !self.some.swap(true, Ordering::Relaxed) {
            return Added::SendNow;
        }
        list.waiting.push_back(one);
        match list.waiting.len() {
            1 => Added::Ask,
            _ => Added::Asked,
        }
    }

    /// Lists one that there was no room for. The caller sees to it that somebody sends it.
    pub(super) fn keep(&self, one: T) {
        let mut list = lock(&self.list);
        list.waiting.push_back(one);
        // Another thread may have found the list empty meanwhile.
        self.some.swap(true, Ordering::Relaxed);
    }

    /// Whether there is something to send. Takes no lock.
    pub(super) fn has_some(&self) -> bool {
        self.some.load(Ordering::Relaxed)
    }

    /// Copies the first, at most so many, to `first`. If that stays empty, nothing is left. Returns what [`remove`](Self::remove) asks for.
    pub(super) fn first(&self, most: usize, first: &mut impl Extend<T>) -> u64 {
        let list = lock(&self.list);
        if list.waiting.is_empty() {
            self.some.swap(false, Ordering::Relaxed);
        }
        first.extend(list.waiting.iter().take(most).copied());
        list.removed
    }

    /// So many of the [`first`](Self::first) are sent. Other threads may have removed some of them meanwhile.
    pub(super) fn remove(&self, sent: usize, removed: u64) {
        let mut list = lock(&self.list);
        let by_others = usize::try_from(list.removed - removed).unwrap_or(usize::MAX);
        let left = sent.saturating_sub(by_others);
        list.removed += left as u64;
        list.waiting.drain(..left);
        if list.waiting.is_empty() {
            list.waiting.shrink_to(KEPT);
        }
    }

    /// How many are listed.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        lock(&self.list).waiting.len()
    }
}
