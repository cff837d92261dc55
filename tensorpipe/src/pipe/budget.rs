//! How much pooled memory messages that are being read may take, over all pipes of a context. Memory counts when it becomes resident, just
//! before bytes are written to it: in whole pages, not in bytes. Memory that a peer only announces costs addresses, and must not take what
//! others need.
//!
//! Addresses have a bound of their own: there are many, but not endlessly many. One pipe may announce as much as the budget at once: more
//! of it could not come in. So a peer that only announces hurts nobody else's pipe. All pipes together may take [`ADDRESSES`].
//!
//! A message that is complete, and waits for something else, goes on counting while somebody has it [`Held`]. So that it leaves
//! room for what it may wait for, half of the budget is kept for messages that come in.
//!
//! Invariant: `taken` is the sum of all reservations that exist, and never more than `limit`; likewise `announced`.

use super::driver::tuning::{ADDRESSES, WAITING_ANYWAY};
use crate::error::Error;
use crate::sync::{Arc, AtomicU64, Ordering};

#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    taken: AtomicU64,
    /// The part of `taken` that belongs to messages which wait for something else than their bytes.
    waiting: AtomicU64,
    /// The part of `taken` that belongs to what an engine has made of messages.
    derived: AtomicU64,
    announced: AtomicU64,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self {
            limit,
            taken: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            derived: AtomicU64::new(0),
            announced: AtomicU64::new(0),
        })
    }
}

/// What is taken of [`Limits::receive_budget`](crate::Limits::receive_budget) at a moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BudgetStats {
    /// The budget.
    pub limit: u64,
    /// All that is taken.
    pub taken: u64,
    /// The part of it that belongs to calls which are complete and wait for something else.
    pub waiting: u64,
    /// The part of it that decoded arguments of calls take beyond their bytes.
    pub decoded: u64,
    /// Memory that messages under way announce. Only what comes of it is taken.
    pub announced: u64,
}

impl Budget {
    pub(crate) fn stats(&self) -> BudgetStats {
        let now = |counter: &AtomicU64| counter.load(Ordering::Acquire);
        BudgetStats {
            limit: self.limit,
            taken: now(&self.taken),
            waiting: now(&self.waiting),
            decoded: now(&self.derived),
            announced: now(&self.announced),
        }
    }
}

/// Adds `bytes` to `counter`. If that would be more than `limit`, the error is the present value.
fn add(counter: &AtomicU64, bytes: u64, limit: u64) -> Result<(), u64> {
    let more = |now: u64| now.checked_add(bytes).filter(|now| *now <= limit);
    let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
    counter.fetch_update(set, fetch, more).map(|_| ())
}

/// What one pipe has announced of messages that are being read.
#[derive(Clone, Debug)]
pub(crate) struct Announcements {
    budget: Arc<Budget>,
    here: Arc<AtomicU64>,
}

/// Addresses for one part, until its message is complete.
#[derive(Debug)]
pub(super) struct Announced {
    of: Announcements,
    bytes: u64,
}

impl Announcements {
    pub(crate) fn new(budget: &Arc<Budget>) -> Self {
        Self {
            budget: budget.clone(),
            here: Arc::default(),
        }
    }

    /// For one message of this pipe's.
    pub(super) fn reservation(&self) -> Reservation {
        Reservation::new(&self.budget)
    }

    /// Takes addresses for `bytes`. The error says in words why not.
    pub(super) fn take(&self, bytes: u64) -> Result<Announced, String> {
        let limit = self.budget.limit;
        add(&self.here, bytes, limit).map_err(|here| {
            format!(
                "messages being read from this pipe announce {here} bytes, and may announce {limit}; raise `Limits::receive_budget`, or read fewer at once"
            )
        })?;
        if let Err(all) = add(&self.budget.announced, bytes, ADDRESSES) {
            self.here.fetch_sub(bytes, Ordering::AcqRel);
            return Err(format!(
                "messages being read from all pipes announce {all} bytes, and may announce {ADDRESSES}; read fewer at once"
            ));
        }
        Ok(Announced {
            of: self.clone(),
            bytes,
        })
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        let Announcements { budget, here } = &self.of;
        here.fetch_sub(self.bytes, Ordering::AcqRel);
        budget.announced.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// What one message has taken of a [`Budget`].
#[derive(Debug)]
pub(super) struct Reservation {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Reservation {
    fn new(budget: &Arc<Budget>) -> Self {
        Self {
            budget: budget.clone(),
            bytes: 0,
        }
    }

    /// One of the same budget.
    pub(super) fn another(&self) -> Self {
        Self::new(&self.budget)
    }

    /// Takes over what `other` has taken.
    pub(super) fn absorb(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Takes `bytes` more. The error says in words why not.
    pub(super) fn grow(&mut self, bytes: u64) -> Result<(), String> {
        let limit = self.budget.limit;
        add(&self.budget.taken, bytes, limit).map_err(|taken| {
            format!(
                "messages being read take {taken} of {limit} bytes; raise `Limits::receive_budget`, or read fewer at once"
            )
        })?;
        self.bytes += bytes;
        Ok(())
    }

    /// Gives `bytes` of it back, or what is left.
    pub(super) fn shrink(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.budget.taken.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Gives it all back.
    pub(super) fn clear(&mut self) {
        self.shrink(self.bytes);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.clear();
    }
}

/// What a message that is complete goes on taking of [`Limits::receive_budget`](crate::Limits::receive_budget), until this is
/// dropped: see [`Handler::message`](crate::engine::Handler::message) and [`EnginePipe::hold`](crate::engine::EnginePipe::hold).
#[derive(Debug)]
pub struct Held {
    reservation: Reservation,
    waits: bool,
    /// How much of [`Budget::derived`] is its own.
    derived: u64,
}

impl Held {
    pub(super) fn new(budget: &Arc<Budget>, bytes: u64) -> Result<Self, Error> {
        let mut reservation = Reservation::new(budget);
        match reservation.grow(bytes) {
            Ok(()) => Ok(reservation.into()),
            Err(reason) => Err(out_of_memory(bytes, reason)),
        }
    }

    /// For what is made of a message, which has `own` bytes so far: half of the budget at most for all messages. Takes `most` bytes, or
    /// what there is if that is `least` or more.
    pub(super) fn derived(
        budget: &Arc<Budget>,
        most: u64,
        least: u64,
        own: u64,
    ) -> Result<Self, NoRoom> {
        let limit = budget.limit / 2;
        let fits = |now: u64| most.min(limit.saturating_sub(now));
        let more = |now: u64| (fits(now) >= least).then(|| now + fits(now));
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        let before = budget.derived.fetch_update(set, fetch, more);
        let before = before.map_err(|taken| NoRoom {
            others: taken > own,
            reason: format!(
                "what calls under way hold beyond their bytes takes {taken} of {limit} bytes, half of `Limits::receive_budget`; raise it, or send less at once"
            )
            .into(),
        })?;
        // From here on its drop gives that back.
        let mut held = Self {
            reservation: Reservation::new(budget),
            derived: fits(before),
            waits: false,
        };
        let mut grown = held.reservation.grow(held.derived);
        if grown.is_err() {
            // All of the budget has less room than this half of it.
            let room = budget.limit.saturating_sub(budget.taken.load(fetch));
            let less = held.derived.min(room.max(least));
            budget.derived.fetch_sub(held.derived - less, set);
            held.derived = less;
            grown = held.reservation.grow(less);
        }
        grown.map_err(|reason| NoRoom {
            others: true,
            reason: reason.into(),
        })?;
        Ok(held)
    }

    /// Takes so many bytes more.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where there is no room.
    pub fn grow(&mut self, bytes: u64) -> Result<(), Error> {
        let grown = self.reservation.grow(bytes);
        grown.map_err(|reason| out_of_memory(bytes, reason))?;
        if self.waits {
            let waiting = &self.reservation.budget.waiting;
            waiting.fetch_add(bytes, Ordering::AcqRel);
        }
        Ok(())
    }

    /// How many bytes it has taken.
    pub fn bytes(&self) -> u64 {
        self.reservation.bytes
    }

    /// The message waits for more than its own bytes, maybe for long. All such messages take at most half of the budget, or a single one
    /// three quarters: the rest is for what they wait for. A message of up to 64 KiB may always wait.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where others that wait leave no room.
    pub fn wait(&mut self) -> Result<(), Error> {
        let Reservation { budget, bytes } = &self.reservation;
        let (bytes, limit) = (*bytes, budget.limit / 2);
        if self.waits {
            return Ok(());
        }
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        let added = budget.waiting.fetch_update(set, fetch, |now| {
            let sum = now.saturating_add(bytes);
            let alone = now == 0 && bytes <= limit + limit / 2;
            (alone || sum <= limit || bytes <= WAITING_ANYWAY).then_some(sum)
        });
        match added {
            Ok(_) => self.waits = true,
            Err(waiting) => {
                let reason = format!(
                    "messages that wait take {waiting} bytes and may take {limit}, half of `Limits::receive_budget`; raise it, or have fewer wait at once"
                );
                return Err(out_of_memory(bytes, reason));
            }
        }
        Ok(())
    }
}

impl From<Reservation> for Held {
    fn from(reservation: Reservation) -> Self {
        Self {
            reservation,
            waits: false,
            derived: 0,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Reservation { budget, bytes } = &self.reservation;
        if self.waits {
            budget.waiting.fetch_sub(*bytes, Ordering::AcqRel);
        }
        budget.derived.fetch_sub(self.derived, Ordering::AcqRel);
    }
}

/// Why memory cannot be held.
#[derive(Clone, Debug)]
pub struct NoRoom {
    /// Others have a part of what is missing: later there may be room.
    pub others: bool,
    /// In words.
    pub reason: Arc<str>,
}

pub(super) fn out_of_memory(bytes: u64, reason: String) -> Error {
    let reason = reason.into();
    Error::OutOfMemory { bytes, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_announces_as_much_as_the_budget_and_all_of_them_as_addresses_last() {
        let budget = Budget::new(ADDRESSES / 2);
        let pipes: Vec<_> = (0..3).map(|_| Announcements::new(&budget)).collect();
        let error = pipes[0].take(ADDRESSES / 2 + 1).unwrap_err();
        assert!(error.contains("receive_budget"), "{error}");
        let first = pipes[0].take(ADDRESSES / 2).unwrap();
        assert!(pipes[0].take(1).is_err(), "it has announced all it may");
        let _second = pipes[1].take(ADDRESSES / 2).unwrap();
        let error = pipes[2].take(1).unwrap_err();
        assert!(error.contains("all pipes"), "{error}");
        drop(first);
        pipes[2].take(ADDRESSES / 2).unwrap();
        pipes[0].take(ADDRESSES / 2).unwrap();
    }

    #[test]
    fn what_is_taken_comes_back_and_nothing_overflows() {
        let budget = Budget::new(100);
        let (mut most, mut rest) = (Reservation::new(&budget), Reservation::new(&budget));
        most.grow(50).unwrap();
        most.grow(40).unwrap();
        let error = rest.grow(11).unwrap_err();
        assert!(error.contains("90 of 100"), "{error}");
        assert!(rest.grow(u64::MAX).is_err());
        rest.grow(10).unwrap();
        drop(most);
        assert!(rest.grow(91).is_err());
        rest.grow(90).unwrap();
        drop(rest);
        assert!(Reservation::new(&budget).grow(100).is_ok());
    }

    #[test]
    fn what_one_takes_over_from_another_is_counted_once() {
        let budget = Budget::new(100);
        let mut all = Reservation::new(&budget);
        for bytes in [20, 30] {
            let mut part = all.another();
            part.grow(bytes).unwrap();
            all.absorb(part);
        }
        assert!(all.another().grow(51).is_err());
        all.clear();
        all.another().grow(100).unwrap();
    }

    #[test]
    fn what_waits_leaves_half_of_it_to_what_comes_or_is_alone() {
        const M: u64 = 1_000_000;
        let budget = Budget::new(100 * M);
        let mut first = Held::new(&budget, 60 * M).unwrap();
        first.wait().unwrap();
        let mut second = Held::new(&budget, 10 * M).unwrap();
        let error = second.wait().unwrap_err().to_string();
        assert!(
            error.contains("60000000 bytes and may take 50000000"),
            "{error}"
        );
        drop(first);
        for held in [&mut second, &mut Held::new(&budget, 40 * M).unwrap()] {
            held.wait().unwrap();
            held.wait().unwrap();
        }
        assert!(Held::new(&budget, 91 * M).is_err());
        drop(second);
        assert_eq!(budget.waiting.load(Ordering::Acquire), 0);
        Held::new(&budget, 100 * M).unwrap();
    }

    #[test]
    fn what_is_made_of_messages_takes_half_of_it_and_says_whether_others_have_that() {
        let budget = Budget::new(100);
        let first = Held::derived(&budget, 30, 1, 0).unwrap();
        let rest = Held::derived(&budget, 30, 1, 30).unwrap();
        assert_eq!((first.bytes(), rest.bytes()), (30, 20), "what there is");
        assert!(!Held::derived(&budget, 30, 1, 50).unwrap_err().others);
        assert!(Held::derived(&budget, 30, 1, 30).unwrap_err().others);
        drop(rest);
        let all = Held::new(&budget, 70).unwrap();
        // Half of it is not taken, but all is.
        assert!(Held::derived(&budget, 10, 1, 30).unwrap_err().others);
        drop(all);
        let most = Held::new(&budget, 60).unwrap();
        let less = Held::derived(&budget, 15, 1, 30).unwrap();
        assert_eq!(less.bytes(), 10, "half of it has room for 20");
        drop((most, less));
        drop((first, Held::derived(&budget, 20, 20, 30).unwrap()));
        assert_eq!(budget.derived.load(Ordering::Acquire), 0);
        Held::new(&budget, 100).unwrap();
    }

    #[test]
    fn one_that_waits_leaves_room_for_others() {
        let limit = 100 << 20;
        let budget = Budget::new(limit);
        let held = |bytes| Held::new(&budget, bytes).unwrap();
        assert!(held(limit).wait().is_err(), "nobody else could receive");
        let mut large = held(3 * (limit / 4));
        large.wait().unwrap();
        assert!(held(1 << 20).wait().is_err());
        held(WAITING_ANYWAY).wait().unwrap();
        drop(large);
        held(1 << 20).wait().unwrap();
    }
}
