//! Copies of ordinary memory for one borrower, which reads them in place.
//!
//! Copies lie in segments of their own, so a borrower that may map one finds only what was copied for it. The copies that a borrower keeps
//! count against its own share, and take nothing from the pools of applications. A copy that was unused for a while is freed. All unused
//! ones are freed when none was made for as long, or when the borrower's process has ended: a burst leaves nothing.

use std::time::{Duration, Instant};

use crate::device::{BufferMut, Pool, PoolOptions};
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// The part of a pool's lendable memory that is a borrower's share: 256 MiB of 4 GiB.
const SHARE: u64 = 16;

/// Copies are freed after being unused for so long. Chosen: as long as a connection over `shm` keeps its rings' memory. Tests wait less.
pub(super) const IDLE: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });

/// How long tensors go by other channels after memory for a copy could not be had. Chosen.
const REFUSED: Duration = Duration::from_millis(100);

/// See the module's documentation.
#[derive(Debug)]
pub(in crate::channels) struct Copies {
    pool: Pool,
    /// Some were made since the last `tidy`.
    used: AtomicBool,
    /// The system had no memory or no descriptor: it is not asked again until then.
    refused: Mutex<Option<Instant>>,
}

impl Copies {
    pub(super) fn new() -> Self {
        let share = Self::share();
        Self {
            pool: Pool::new(PoolOptions {
                retain: share,
                lendable: share,
            }),
            used: AtomicBool::new(false),
            refused: Mutex::default(),
        }
    }

    /// The most that a borrower can ever keep, in bytes.
    pub(in crate::channels) fn share() -> u64 {
        PoolOptions::default().lendable / SHARE
    }

    /// Whether there is room for `len` bytes.
    pub(super) fn has_room(&self, len: usize) -> bool {
        let refused = lock(&self.refused).is_some_and(|until| until > Instant::now());
        !refused && self.pool.has_lendable(len)
    }

    /// Room for `len` bytes, or `None` if there is none. Also whether this is the first since the last `tidy`: then the broker must
    /// tidy up later.
    pub(super) fn take(&self, len: usize) -> Option<(BufferMut, bool)> {
        let Some(memory) = self.pool.take_lendable(len) else {
            *lock(&self.refused) = Some(Instant::now() + REFUSED);
            return None;
        };
        Some((memory, self.is_first()))
    }

    /// The same, but only from free memory: no segment is made.
    pub(super) fn take_free(&self, len: usize) -> Option<(BufferMut, bool)> {
        let memory = self.pool.take_free_lendable(len)?;
        Some((memory, self.is_first()))
    }

    fn is_first(&self) -> bool {
        // A load is cheaper than an atomic swap.
        !(self.used.load(Ordering::Relaxed) || self.used.swap(true, Ordering::Relaxed))
    }

    /// Frees what was unused since the last call, or, if no copy was made since then, all that is unused. Returns whether a copy was
    /// made.
    pub(super) fn tidy(&self) -> bool {
        let used = self.used.swap(false, Ordering::Relaxed);
        match used {
            true => self.pool.trim_stale(),
            false => self.pool.trim(0),
        }
        used
    }

    /// The borrower's process has ended: all of them are back.
    pub(super) fn free(&self) {
        self.pool.trim(0);
    }
}

#[cfg(test)]
impl Copies {
    /// Bytes of its segments.
    pub(super) fn mapped(&self) -> u64 {
        self.pool.stats().lendable.mapped_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_used_for_a_while_is_freed() {
        let copies = Copies::new();
        let (memory, first) = copies.take(100_000).unwrap();
        assert!(first);
        drop(memory);
        assert!(!copies.take(100_000).unwrap().1);
        assert!(copies.tidy());
        assert!(copies.mapped() > 0, "used a moment ago");
        assert!(!copies.tidy());
        assert_eq!(copies.mapped(), 0);
        assert!(
            copies.take(100_000).unwrap().1,
            "somebody has to look after it again"
        );
    }

    #[test]
    fn what_a_burst_leaves_is_freed_though_others_go_on() {
        let copies = Copies::new();
        let mapped = || copies.mapped();
        let burst: Vec<_> = (0..5).map(|_| copies.take(3 << 20).unwrap()).collect();
        let all = mapped();
        drop(burst);
        assert!(copies.tidy());
        assert_eq!(mapped(), all, "used a moment ago");
        for _ in 0..2 {
            drop(copies.take(3 << 20).unwrap());
            assert!(copies.tidy());
        }
        assert_eq!(mapped(), all / 5, "one at a time is used");
    }

    #[test]
    fn a_share_that_is_in_use_has_no_room() {
        let copies = Copies::new();
        let share = Copies::share() as usize;
        assert!(copies.has_room(share) && !copies.has_room(share + 1));
        let half = copies.take(share / 2).unwrap();
        assert!(copies.has_room(share / 4) && !copies.has_room(share));
        assert!(copies.take(share).is_none());
        drop(half);
        assert!(!copies.has_room(share), "it is not asked again at once");
        std::thread::sleep(REFUSED);
        assert!(copies.has_room(share), "what is unused makes room");
    }
}
