//! Driving: any thread may do it, and none waits for it. A thread that finds another one driving leaves a kick.
//!
//! Invariant: after a kick there is a whole round of work, by the thread that kicked or by the one that drives meanwhile. A driver that has
//! worked for too long has a task woken to go on.

use std::task::Waker;

use super::busy_poll::{BusyPoll, Readiness};
use super::delivery_lock::{DeliveryLock, Rest};
use super::runtime;
use super::thread_counts::with_counts;
use super::tuning::{ROUNDS, SOLE_POLLER_WAITERS};
use super::waiter::Waiting;
use super::wakers::Wakers;
use crate::sync::{Arc, AtomicBool, AtomicU32, Mutex, MutexGuard, Ordering, try_lock};

/// The last round has left work, or its connection may have to be told that somebody polls, or nobody.
const BUSY: u32 = 0;

/// It has left nothing, and the connection wakes.
const ASLEEP: u32 = 1;

/// It has left nothing, and the connection wakes nobody: it is polled.
const POLLED: u32 = 2;

/// How a round of work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pipe) enum Round {
    /// Nothing to do until the connection wakes somebody.
    Idle,
    /// Messages are to be delivered. There was nothing else, and somebody polls for what comes next, or the connection wakes for it.
    Deliver,
    /// Stopped early to let messages be delivered.
    DeliverAndContinue,
    /// Much was done, and there is more: it yields.
    Yield,
}

/// What a [`Driver`] drives: a pipe's `Core`, or the smallest pipe of a model.
pub(in crate::pipe) trait Driven: Sized {
    /// What one thread at a time works on: the connection and its buffers.
    type Work;
    /// Where operations find what they wait for.
    type Shared;

    fn driver(&self) -> &Driver<Self::Work>;

    fn shared(&self) -> &Mutex<Self::Shared>;

    /// Operations that are woken when what they wait for is there.
    fn waiting(shared: &mut Self::Shared) -> &mut Waiting;

    /// Sends and receives until the connection wants to wait.
    fn round(self: &Arc<Self>, work: &mut Self::Work) -> Round;

    /// Hands over what has come in, a slice of it at most. Runs after each round, without the work.
    fn deliver(self: &Arc<Self>) -> Rest;

    /// Asks the connection whether there is something to do. If `many` operations wait, a few bytes may be left for more to come. Pending
    /// output counts only if the poller `sends`.
    fn poll(work: &mut Self::Work, many: bool, sends: bool) -> Readiness;

    /// Whether work that is left can wait for a woken task. Once the pipe has ended its background task may be gone, and nobody would come.
    fn can_wait(&self) -> bool;

    /// Whether so much was done since this was `true` last that it is time to yield.
    fn is_slice_over(&self) -> bool;

    /// Whether this is a forked child's copy, which lets go of everything without a word.
    fn is_inherited(&self) -> bool;
}

/// The state of who drives, polls and sleeps. See the [module](super) for its table.
pub(in crate::pipe) struct Driver<W> {
    /// A kick and the holder's last check are exchanges, which have one total order. If the last check comes before a kick, the kicking
    /// thread sees what the holder did before, and gets the lock. With a plain store and a plain load both could read old values: a lock
    /// only acquires and releases.
    kicked: AtomicBool,
    /// Taken only by trying.
    work: Mutex<W>,
    /// How the last round has left the work: one of the constants above. Changed with the work held.
    rest: AtomicU32,
    /// The last driver has yielded, or used up its slice: others come first.
    yielded: AtomicBool,
    pub(in crate::pipe) wakers: Arc<Wakers>,
    pub(super) polling: BusyPoll,
    pub(in crate::pipe) delivery: DeliveryLock,
}

impl<W> Driver<W> {
    /// `work` is given the waker for its connection.
    pub(in crate::pipe) fn new(polling: BusyPoll, work: impl FnOnce(Waker) -> W) -> Self {
        let wakers = Arc::new(Wakers::default());
        Self {
            kicked: AtomicBool::new(false),
            work: Mutex::new(work(wakers.clone().into())),
            rest: AtomicU32::new(BUSY),
            yielded: AtomicBool::new(false),
            wakers,
            polling,
            delivery: DeliveryLock::default(),
        }
    }

    /// Moves whatever can be moved without waiting. Never waits: while somebody else works it leaves a kick.
    pub(in crate::pipe) fn drive<C: Driven<Work = W>>(&self, core: &Arc<C>) {
        if self.delivery.is_held_here() {
            // The handler wrote: the thread that called it drives next, and all of its answers leave together.
            return self.kick();
        }
        if self.has_yielded() && core.can_wait() && self.wakers.leave_alone() {
            // Driving from another task of this thread would put off its sockets and timers.
            return self.kick();
        }
        let is_slice_over = || core.is_slice_over();
        while self.rounds(|work| core.round(work), || core.deliver(), is_slice_over) {
            if core.can_wait() {
                return self.yield_and_wake();
            }
        }
        if self.should_yield_to_main_futures() && core.can_wait() {
            self.yield_and_wake();
        }
    }

    /// As [`Driver::drive`], for an operation that begins to wait, which may find that there is nothing to do. Whoever queues something drives
    /// for it, or has somebody come; so does a wake-up, of which this sees its own.
    pub(super) fn drive_to_wait<C: Driven<Work = W>>(&self, core: &Arc<C>) {
        if !self.is_at_rest() {
            self.drive(core);
        }
    }

    fn is_at_rest(&self) -> bool {
        let is_polling = self.is_polling();
        if is_polling && self.wakers.waiting() > SOLE_POLLER_WAITERS {
            // This operation will not poll, and whoever does may be on a runtime that is blocked.
            return false;
        }
        let rest = match is_polling {
            true => POLLED,
            false => ASLEEP,
        };
        self.rest.load(Ordering::Relaxed) == rest
            && !self.kicked.load(Ordering::Relaxed)
            && !self.wakers.has_woken()
    }

    /// Something is left to a later round, by the thread that holds the work.
    pub(in crate::pipe) fn leaves_work(&self, _: &MutexGuard<'_, W>) {
        self.rest.store(BUSY, Ordering::Relaxed);
    }

    /// As [`Driver::drive`], also if this thread has yielded: for a caller that has to know all that has come.
    pub(in crate::pipe) fn drive_now<C: Driven<Work = W>>(&self, core: &Arc<C>) {
        self.wakers.end_yield();
        self.drive(core);
    }

    /// Whether this thread has yielded the pipe, and has not polled its sockets and timers since.
    pub(in crate::pipe) fn has_yielded(&self) -> bool {
        runtime::has_yielded(&self.wakers)
    }

    /// Yields with work left, and has a task woken to go on.
    fn yield_and_wake(&self) {
        self.yielded.swap(true, Ordering::SeqCst);
        if runtime::is_single_threaded() {
            self.wakers.owe_wake();
            runtime::yield_pipe(&self.wakers);
        } else {
            self.wakers.notify();
        }
    }

    /// Works for a round, and until nobody has kicked any more; while another thread works, kicks. `deliver` runs after each round, without
    /// the lock. Returns whether it yields with work or deliveries left: the caller sees to it that somebody comes back.
    #[must_use]
    fn rounds(
        &self,
        mut round: impl FnMut(&mut W) -> Round,
        mut deliver: impl FnMut() -> Rest,
        is_slice_over: impl Fn() -> bool,
    ) -> bool {
        // Before the round: a wake-up from here on counts again. One that the round may have missed must not count as acted on.
        self.wakers.driving();
        with_counts(|counts| counts.drive(std::ptr::from_ref(self).addr()));
        let mut is_last = false;
        for _ in 0..ROUNDS {
            let Some(mut work) = self.hold_or_kick() else {
                return false;
            };
            // The round is for the kicks so far, too. One that this does not see yet is seen below, or by the last check.
            self.take_kick();
            let mut polled = self.is_polling();
            let mut ended = round(&mut work);
            while ended == Round::Idle && self.take_kick() {
                polled = self.is_polling();
                ended = round(&mut work);
            }
            let rest = match ended {
                Round::Idle | Round::Deliver if polled => POLLED,
                Round::Idle | Round::Deliver => ASLEEP,
                Round::DeliverAndContinue | Round::Yield => BUSY,
            };
            // Somebody who has switched polling meanwhile drives, or has left a kick.
            self.rest.store(rest, Ordering::Relaxed);
            drop(work);
            match deliver() {
                Rest::None => {}
                Rest::ForLater => break,
                Rest::Left => return false,
            }
            match ended {
                Round::Idle | Round::Deliver if !self.is_kicked() => {
                    if is_last {
                        self.yielded.swap(true, Ordering::SeqCst);
                    }
                    return false;
                }
                Round::Yield => break,
                _ if is_last => break,
                _ => {}
            }
            // What has come is answered first: else its answers would leave in two writes.
            is_last = is_slice_over();
        }
        self.kick();
        true
    }

    /// Whether others come first: sockets and timers, too.
    pub(super) fn should_yield<C: Driven<Work = W>>(&self, core: &Arc<C>) -> bool {
        let had =
            self.yielded.load(Ordering::Relaxed) && self.yielded.swap(false, Ordering::SeqCst);
        had || core.is_slice_over()
    }

    /// Tells the thread that drives already, or the one that drives next, that there is work.
    pub(in crate::pipe) fn kick(&self) {
        self.kicked.swap(true, Ordering::SeqCst);
    }

    /// The work, for a round; `None` while another thread has it, which then sees a kick.
    pub(in crate::pipe) fn hold_or_kick(&self) -> Option<MutexGuard<'_, W>> {
        self.hold().or_else(|| {
            self.kick();
            self.hold()
        })
    }

    /// As [`Driver::kick`], for the thread that holds the work: cheap if there is a kick already. Kicks are taken only with the work held.
    /// So this thread sees whether the last kick was taken, and the thread that takes it later sees what this one did.
    pub(in crate::pipe) fn kick_holding(&self, _: &MutexGuard<'_, W>) {
        if !self.kicked.load(Ordering::Relaxed) {
            self.kick();
        }
    }

    fn take_kick(&self) -> bool {
        // A load is cheaper than an exchange. What it may miss, the last check does not.
        self.kicked.load(Ordering::Relaxed) && self.kicked.swap(false, Ordering::SeqCst)
    }

    /// The last check, after the lock is released: see `kicked`.
    pub(in crate::pipe) fn is_kicked(&self) -> bool {
        self.kicked.fetch_or(false, Ordering::SeqCst)
    }

    /// Polls up to `times` times whether there is something to do, or a kick; does none of it. `false` while another thread has the work,
    /// and finds what there is. Holds the work all the while, since to let go of it costs more than a poll: a thread that writes meanwhile
    /// leaves a kick, which the next poll sees. Measured: letting go after each poll, an empty echo over shm takes 1.03 times as long;
    /// `tp-bench rpc --case echo --size 0 --transport shm --pin`.
    pub(super) fn poll_work(&self, times: u32, mut poll: impl FnMut(&mut W) -> bool) -> bool {
        let Some(mut work) = self.hold() else {
            return false;
        };
        for _ in 0..times {
            if self.kicked.load(Ordering::Relaxed) || poll(&mut work) {
                return true;
            }
            std::hint::spin_loop();
        }
        drop(work);
        // A thread that found the lock held by this one has left a kick, and relies on this check.
        self.is_kicked()
    }

    /// The work, for something else than a round; `None` while another thread has it. After releasing it the caller must check whether
    /// somebody [has kicked](Self::is_kicked) meanwhile, and drive if so.
    pub(in crate::pipe) fn hold(&self) -> Option<MutexGuard<'_, W>> {
        try_lock(&self.work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::lock;

    /// Rounds that end like this, the last one for ever: how many there are, whether there is more, with a kick for it, and whether
    /// whoever polls next lets others come first.
    fn drives(ends: &[Round], is_slice_over: bool) -> (usize, bool, bool) {
        let driver = Driver::new(BusyPoll::new(false, false), |_| 0);
        let mut delivered = 0;
        let round = |rounds: &mut usize| {
            *rounds += 1;
            *ends.get(*rounds - 1).unwrap_or(&ends[0])
        };
        let deliver = || {
            delivered += 1;
            Rest::None
        };
        let is_left = driver.rounds(round, deliver, || is_slice_over);
        assert_eq!(driver.is_kicked(), is_left, "what is left is forgotten");
        assert_eq!(*lock(&driver.work), delivered);
        (delivered, is_left, driver.yielded.load(Ordering::SeqCst))
    }

    #[test]
    fn whoever_begins_to_wait_drives_only_where_something_may_be_left() {
        use Round::{Deliver, Idle, Yield};
        let driver = Driver::new(BusyPoll::new(true, false), |_| ());
        let ends = |round| {
            let _ = driver.rounds(|()| round, || Rest::None, || false);
            driver.is_at_rest()
        };
        assert!(!driver.is_at_rest(), "its connection wakes nobody yet");
        assert!(ends(Idle) && ends(Deliver));
        assert!(!ends(Yield), "it was left unfinished");
        assert!(ends(Idle), "a kick stays");
        driver.kick();
        assert!(!driver.is_at_rest());
        assert!(ends(Idle));
        driver.wakers.notify();
        assert!(!driver.is_at_rest(), "the connection has woken");
        assert!(ends(Idle));
        driver.poll_anyway();
        assert!(!driver.is_at_rest(), "the connection would wake");
        assert!(ends(Idle));
    }

    #[test]
    fn what_is_left_after_a_while_is_left_to_others() {
        use Round::{DeliverAndContinue, Idle, Yield};
        let endless = [DeliverAndContinue];
        assert_eq!(drives(&endless, false), (ROUNDS, true, false));
        assert_eq!(drives(&[Yield], false), (1, true, false));
        // Behind a slice that is over, one round more answers what has come.
        assert_eq!(drives(&endless, true), (2, true, false));
        let all_answered = [DeliverAndContinue, Idle];
        assert_eq!(drives(&all_answered, true), (2, false, true));
        assert_eq!(drives(&[Idle], true), (1, false, false));
    }
}
