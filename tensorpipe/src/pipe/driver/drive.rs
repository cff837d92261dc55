//! Work that everybody may do and nobody waits for: whoever cannot have it leaves a kick.
//!
//! Invariant: after a kick there is a whole round of work, by the one who kicked or by whoever had the work meanwhile; or,
//! if it went on for too long, that one is told to come back. `tensorpipe-loom` checks it in every order of the threads' steps.

use super::poller::Poller;
use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering, try_lock};

/// Rounds of work in one poll, before other tasks get their turn.
const ROUNDS: usize = 16;

/// How a round of work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pipe) enum Round {
    /// Nothing to do until the connection wakes the poller.
    Idle,
    /// Stopped early to let messages be delivered.
    More,
    /// Much was done, and there is more: it is others' turn.
    Enough,
}

/// Work that is taken only by trying.
pub(in crate::pipe) struct HandOver<W> {
    /// Changed, and looked at for the last time, by exchanges only: they have one order. If the holder's last look comes
    /// before a kick, whoever kicks sees what the holder did before, and gets the lock. With a store here and a load there
    /// both could see the past: the steps of a lock are acquire and release, and no more.
    kicked: AtomicBool,
    work: Mutex<W>,
}

impl<W> HandOver<W> {
    pub(in crate::pipe) fn new(work: W) -> Self {
        Self {
            kicked: AtomicBool::new(false),
            work: Mutex::new(work),
        }
    }

    /// There is work, for whoever has it already or drives next.
    pub(in crate::pipe) fn kick(&self) {
        self.kicked.swap(true, Ordering::SeqCst);
    }

    /// The same by whoever has the work: cheap where somebody has kicked already. Who takes a kick has the work, too: so this one
    /// sees whether it was taken, and whoever takes it later sees what this one did.
    pub(in crate::pipe) fn kick_holding(&self, _: &MutexGuard<'_, W>) {
        if !self.kicked.load(Ordering::Relaxed) {
            self.kick();
        }
    }

    /// Kicks, and works until nobody has kicked any more. Never waits: while somebody else works it returns. `deliver`
    /// runs after each round, without the lock. Returns whether there is more, but it is others' turn: who drives sees to it
    /// that somebody comes back.
    #[must_use]
    pub(in crate::pipe) fn drive(
        &self,
        poller: &Poller,
        mut round: impl FnMut(&mut W) -> Round,
        mut deliver: impl FnMut(),
    ) -> bool {
        // Before the kick: a wake from here on counts again. One that the kick's round may not have seen must not be
        // taken for acted on.
        poller.driving();
        self.kick();
        for _ in 0..ROUNDS {
            let Some(mut work) = try_lock(&self.work) else {
                return false;
            };
            let mut ended = Round::Idle;
            while ended == Round::Idle && self.take_kick() {
                ended = round(&mut work);
            }
            drop(work);
            deliver();
            match ended {
                Round::Idle if self.is_kicked() => {}
                Round::Idle => return false,
                Round::More => self.kick(),
                Round::Enough => {
                    self.kick();
                    return true;
                }
            }
        }
        true
    }

    /// Whether there is something to do, as far as a few looks show: `look` and kicks. Does none of it. `false` while
    /// somebody else has the work, and finds what there is.
    pub(in crate::pipe) fn look(&self, times: u32, mut look: impl FnMut(&mut W) -> bool) -> bool {
        for _ in 0..times {
            if self.kicked.load(Ordering::Relaxed) {
                return true;
            }
            let Some(mut work) = try_lock(&self.work) else {
                return false;
            };
            if look(&mut work) {
                return true;
            }
            drop(work);
            std::hint::spin_loop();
        }
        // Whoever came while this one had the lock relies on it.
        self.is_kicked()
    }

    /// The work, for something that is no round of it; `None` while somebody else has it. Whoever lets go of it looks
    /// whether somebody [has kicked](Self::is_kicked) meanwhile, and then drives.
    pub(in crate::pipe) fn hold(&self) -> Option<MutexGuard<'_, W>> {
        try_lock(&self.work)
    }

    fn take_kick(&self) -> bool {
        // A look is cheaper than an exchange. What it may miss, the last look does not.
        self.kicked.load(Ordering::Relaxed) && self.kicked.swap(false, Ordering::SeqCst)
    }

    /// The last look, without the lock.
    pub(in crate::pipe) fn is_kicked(&self) -> bool {
        self.kicked.fetch_or(false, Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::sync::lock;

    #[test]
    fn work_without_end_is_left_to_others_after_a_while() {
        let (work, poller) = (HandOver::new(0), Poller::default());
        let mut delivered = 0;
        let round = |rounds: &mut usize| {
            *rounds += 1;
            Round::More
        };
        assert!(work.drive(&poller, round, || delivered += 1));
        assert_eq!((*lock(&work.work), delivered), (ROUNDS, ROUNDS));
    }

    #[test]
    fn a_round_that_has_enough_is_the_last_and_leaves_a_kick() {
        let (work, poller) = (HandOver::new(0), Poller::default());
        let round = |rounds: &mut usize| {
            *rounds += 1;
            Round::Enough
        };
        assert!(work.drive(&poller, round, || ()));
        assert_eq!(*lock(&work.work), 1);
        assert!(work.is_kicked(), "what is left is forgotten");
    }

    #[test]
    fn a_kick_while_it_works_is_one_more_round() {
        let (work, poller) = (HandOver::new(0), Poller::default());
        let kicks = Cell::new(2);
        let kick = || {
            if kicks.get() > 0 {
                kicks.set(kicks.get() - 1);
                // Somebody else drives meanwhile.
                assert!(!work.drive(&poller, |_| unreachable!(), || ()));
            }
        };
        let more = work.drive(
            &poller,
            |rounds| {
                *rounds += 1;
                kick();
                Round::Idle
            },
            || (),
        );
        assert!(!more);
        assert_eq!(*lock(&work.work), 3);
    }
}
