//! What messages that are being read may take of pooled memory, over all pipes of a context. It is counted as bytes come
//! in: what a peer only announces costs an address and no memory, and must not take what others need.
//!
//! Invariant: `taken` is the sum of all reservations that exist, and never more than `limit`.

use crate::sync::{Arc, AtomicU64, Ordering};

#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    taken: AtomicU64,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self {
            limit,
            taken: AtomicU64::new(0),
        })
    }

    /// Takes `bytes`, unless it has not so much left: then says in words how to go on.
    fn take(&self, bytes: u64) -> Result<(), String> {
        let more = |taken: u64| {
            taken
                .checked_add(bytes)
                .filter(|taken| *taken <= self.limit)
        };
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        match self.taken.fetch_update(set, fetch, more) {
            Ok(_) => Ok(()),
            Err(taken) => Err(format!(
                "messages being read take {taken} of {} bytes; raise `Limits::receive_budget`, or read fewer at once",
                self.limit
            )),
        }
    }
}

/// What one message has taken of a [`Budget`].
#[derive(Debug)]
pub(super) struct Reservation {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Reservation {
    pub(super) fn new(budget: &Arc<Budget>) -> Self {
        Self {
            budget: budget.clone(),
            bytes: 0,
        }
    }

    /// Takes `bytes` more; in words why not.
    pub(super) fn grow(&mut self, bytes: u64) -> Result<(), String> {
        self.budget.take(bytes)?;
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.taken.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
