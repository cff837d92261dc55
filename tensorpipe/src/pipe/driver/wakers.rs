//! Whom a wake reaches.
//!
//! The connection always wakes [`Wakers`], which passes the wake on to one task: the operation that registered last, else
//! the pipe's background task. So an answer reaches the task that waits for it without a hop through another one. An
//! operation that is awaited no more hands on a wake that it has not acted on. One that was passed over, as below, and is awaited again
//! stands where it stood.
//!
//! A future can be polled once and then forgotten (kept in a variable while its task awaits something else). It would swallow a wake-up. So
//! after a wake-up, and while operations register, the background task checks every `TICK` whether the woken task has driven the pipe
//! since. If not, it drives, and takes that operation off the list. After a `TICK` in which nothing happened it sleeps, however many
//! operations wait: the next wake-up starts it again.
//!
//! If many operations begin together, each registration costs as much as a small message. While one of them, or the background task, polls
//! for all, the others are only counted. They are woken when what they wait for is there.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Instant;

use super::tuning::LEFT_ALONE;
use crate::sync::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, lock,
};

#[derive(Debug, Default)]
pub(in crate::pipe) struct Wakers {
    /// A task was woken and has not driven the pipe since. Changed by exchanges only: the thread that clears it sees what the wake-up was
    /// for.
    notified: AtomicBool,
    roles: Mutex<Roles>,
    /// How many stand in `roles`, to be read without the lock. Written under it.
    registered: AtomicUsize,
    /// Operations that are only counted, and that others drive for. Changed by exchanges only.
    counted: AtomicUsize,
    /// How many of all these are awaited by a [main future](super::runtime::is_main_future).
    of_main_futures: AtomicUsize,
    /// The thread that has yielded with work left: until it is woken for that, or somebody [drives now](super::Driver::drive_now).
    yielded_on: AtomicU64,
    /// How often that thread has left the work alone since.
    left_alone: AtomicU32,
}

/// The number of no thread.
pub(super) const NO_THREAD: u64 = 0;

/// Wakes a task to go on with yielded work. If the runtime drops it instead, the background task's tick finds out.
struct Yielded(Arc<Wakers>);

#[derive(Debug, Default)]
struct Roles {
    /// Operations being awaited, in the order of their numbers; the last one is woken. Of many the first ones are most often the first to
    /// end.
    waiting: VecDeque<(u64, Waker)>,
    /// The one that was woken last.
    woken: Option<u64>,
    background: Option<Waker>,
    /// When the heartbeat woke the background task, which has not run since.
    asked: Option<Instant>,
    next_id: u64,
    /// The background task watches for forgotten futures.
    ticking: bool,
    /// Something has happened since its last tick.
    active: bool,
}

impl Roles {
    /// Something happens: starts the tick. Returns the background task's waker if that task has to be woken for it.
    fn start_ticking(&mut self) -> Option<Waker> {
        self.active = true;
        let ticks = std::mem::replace(&mut self.ticking, true);
        (!ticks).then(|| self.background.clone()).flatten()
    }

    /// Whether this operation is registered with this waker already.
    fn knows(&mut self, id: u64, waker: &Waker) -> bool {
        let known = self.find(id).map(|at| &self.waiting[at]);
        let known = known.is_some_and(|(_, known)| known.will_wake(waker));
        self.active |= known;
        known
    }

    /// Where an operation stands.
    fn find(&self, id: u64) -> Option<usize> {
        match self.waiting.back() {
            Some((last, _)) if *last == id => Some(self.waiting.len() - 1),
            _ => self.waiting.binary_search_by_key(&id, |(id, _)| *id).ok(),
        }
    }

    /// Adds an operation behind all others, or, if the tick has passed it over, where it stood.
    fn add(&mut self, id: u64, waker: Waker) {
        match self.waiting.back() {
            Some((last, _)) if *last > id => {
                let at = self.waiting.partition_point(|(known, _)| *known < id);
                self.waiting.insert(at, (id, waker));
            }
            _ => self.waiting.push_back((id, waker)),
        }
    }
}

impl Wakers {
    /// Makes `waker` the one to be woken; `slot` remembers the registration, whose number is returned.
    pub(in crate::pipe) fn register(&self, slot: &mut Option<u64>, waker: &Waker) -> u64 {
        if let Some(id) = *slot
            && lock(&self.roles).knows(id, waker)
        {
            return id;
        }
        // A waker is somebody else's code, also when it is cloned or dropped: not under the lock.
        let waker = waker.clone();
        let (id, old, ticking) = {
            let mut roles = lock(&self.roles);
            let ticking = roles.start_ticking();
            let known = slot.and_then(|id| roles.find(id));
            match known {
                Some(at) => {
                    let (id, known) = &mut roles.waiting[at];
                    (*id, Some(std::mem::replace(known, waker)), ticking)
                }
                None => {
                    let id = *slot.get_or_insert_with(|| {
                        roles.next_id += 1;
                        roles.next_id
                    });
                    roles.add(id, waker);
                    self.recount(&roles);
                    (id, None, ticking)
                }
            }
        };
        drop(old);
        wake_all(ticking);
        id
    }

    /// Polling is on, so nothing wakes a task from now on: the background task's tick watches the poller, too.
    pub(in crate::pipe) fn keep_ticking(&self) {
        let ticking = lock(&self.roles).start_ticking();
        wake_all(ticking);
    }

    /// The operation is awaited no more. Returns whether others are.
    pub(super) fn deregister(&self, slot: &mut Option<u64>) -> bool {
        let Some(id) = slot.take() else { return false };
        let (was_woken, left, others) = {
            let mut roles = lock(&self.roles);
            let was_woken = roles.woken == Some(id);
            let left = roles.find(id).and_then(|at| roles.waiting.remove(at));
            self.recount(&roles);
            let others =
                !roles.waiting.is_empty() || self.counted.fetch_or(0, Ordering::SeqCst) > 0;
            (was_woken, left, others)
        };
        drop(left);
        if was_woken && self.notified.load(Ordering::SeqCst) {
            self.notify();
        }
        others
    }

    fn recount(&self, roles: &MutexGuard<'_, Roles>) {
        self.registered
            .store(roles.waiting.len(), Ordering::Relaxed);
    }

    /// Counts an operation that registers no waker.
    pub(super) fn count(&self) {
        self.counted.fetch_add(1, Ordering::SeqCst);
    }

    /// It is awaited no more, or has registered.
    pub(super) fn uncount(&self) {
        self.counted.fetch_sub(1, Ordering::SeqCst);
    }

    /// How many operations are being awaited, as far as is seen without the lock.
    pub(super) fn waiting(&self) -> usize {
        self.registered()
            .saturating_add(self.counted.load(Ordering::Relaxed))
    }

    /// How many of them have registered whom to wake, as far as is seen without the lock.
    pub(super) fn registered(&self) -> usize {
        self.registered.load(Ordering::Relaxed)
    }

    /// An operation is awaited by a main future.
    pub(super) fn count_main_future(&self) {
        self.of_main_futures.fetch_add(1, Ordering::Relaxed);
    }

    /// It is awaited no more.
    pub(super) fn uncount_main_future(&self) {
        self.of_main_futures.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn has_main_futures(&self) -> bool {
        self.of_main_futures.load(Ordering::Relaxed) > 0
    }

    pub(super) fn set_background(&self, waker: &Waker) {
        let mut roles = lock(&self.roles);
        roles.asked = None;
        match &mut roles.background {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    /// The background task has ended: its runtime is not held on to.
    pub(in crate::pipe) fn clear_background(&self) {
        let background = lock(&self.roles).background.take();
        drop(background);
    }

    /// Called first by a thread that is about to drive. A load is cheaper than an exchange. What it may miss, the woken task acts on.
    pub(super) fn driving(&self) {
        if self.notified.load(Ordering::Relaxed) {
            self.notified.swap(false, Ordering::SeqCst);
        }
    }

    /// Whether a task was woken, and has not driven the pipe since. That task sees it.
    pub(super) fn has_woken(&self) -> bool {
        self.notified.load(Ordering::Relaxed)
    }

    /// Wakes somebody to drive.
    pub(in crate::pipe) fn notify(&self) {
        self.notified.swap(true, Ordering::SeqCst);
        let (waker, ticking) = {
            let mut roles = lock(&self.roles);
            let last = roles.waiting.back();
            match last.map(|(id, waker)| (*id, waker.clone())) {
                Some((id, waker)) => {
                    roles.woken = Some(id);
                    (Some(waker), roles.start_ticking())
                }
                None => (roles.background.clone(), None),
            }
        };
        wake_all(waker);
        wake_all(ticking);
    }

    /// A task will be woken soon. If that never happens (the runtime is blocked), the background task's tick finds out.
    pub(super) fn owe_wake(&self) {
        self.notified.swap(true, Ordering::SeqCst);
        self.keep_ticking();
    }

    /// This thread yields. Returns the waker for what is left.
    pub(super) fn yield_on(self: &Arc<Self>, thread: u64) -> Waker {
        self.left_alone.store(0, Ordering::Relaxed);
        self.yielded_on.store(thread, Ordering::Relaxed);
        Arc::new(Yielded(self.clone())).into()
    }

    pub(super) fn yielded_on(&self) -> u64 {
        self.yielded_on.load(Ordering::Relaxed)
    }

    /// Counts that the thread leaves yielded work alone. Returns whether it may: a task that never ends can keep the thread from its
    /// sockets.
    pub(super) fn leave_alone(&self) -> bool {
        self.left_alone.fetch_add(1, Ordering::Relaxed) < LEFT_ALONE
    }

    /// Ends the yield: the next driver does not wait for sockets and timers.
    pub(super) fn end_yield(&self) {
        self.yielded_on.store(NO_THREAD, Ordering::Relaxed);
    }

    pub(in crate::pipe) fn wake_background(&self) {
        let waker = lock(&self.roles).background.clone();
        wake_all(waker);
    }

    /// Wakes the background task. Returns when this woke it first without its having run since.
    pub(in crate::pipe) fn ask_background(&self, now: Instant) -> Instant {
        // It may not have run at all, and have left no waker.
        let asked = *lock(&self.roles).asked.get_or_insert(now);
        self.wake_background();
        asked
    }

    /// Wakes all operations that have registered.
    pub(in crate::pipe) fn wake_waiting(&self) {
        let waiting = lock(&self.roles).waiting.clone();
        wake_all(waiting.into_iter().map(|(_, waker)| waker));
    }

    /// Whether there is a background task.
    pub(in crate::pipe) fn has_background(&self) -> bool {
        lock(&self.roles).background.is_some()
    }

    /// Whether the background task has to come again after a `TICK`.
    pub(in crate::pipe) fn is_ticking(&self) -> bool {
        lock(&self.roles).ticking
    }

    /// The background task's tick. Returns whether a task was woken and did not drive; its operation is then registered no more.
    pub(super) fn tick(&self) -> bool {
        let mut roles = lock(&self.roles);
        let asleep = self.notified.load(Ordering::SeqCst);
        let passed_over = asleep.then(|| match roles.woken.and_then(|id| roles.find(id)) {
            Some(at) => roles.waiting.remove(at),
            None => roles.waiting.pop_back(),
        });
        self.recount(&roles);
        roles.ticking = std::mem::take(&mut roles.active);
        drop(roles);
        drop(passed_over);
        asleep
    }
}

/// Wakes all of them, without a lock. One that panics does not keep the others asleep.
#[inline]
pub(in crate::pipe) fn wake_all(wakes: impl IntoIterator<Item = Waker>) {
    wakes.into_iter().for_each(wake);
}

pub(in crate::pipe) fn wake(waker: Waker) {
    if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
        tracing::warn!("a waker panicked; its task was not woken");
    }
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.notify();
    }
}

impl Wake for Yielded {
    fn wake(self: Arc<Self>) {
        self.0.end_yield();
        self.0.notify();
    }
}

impl Drop for Yielded {
    fn drop(&mut self) {
        self.0.end_yield();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipe::tests::Woken;

    #[test]
    fn the_last_awaited_operation_is_woken_and_hands_on_what_it_did_not_act_on() {
        let wakers = Wakers::default();
        let [(background, b), (first, f), (second, s)] = [(); 3].map(|()| Woken::new());
        wakers.set_background(&b);
        wakers.notify();
        assert_eq!(background.count(), 1);
        wakers.driving();
        let (mut one, mut two) = (None, None);
        wakers.register(&mut one, &f);
        assert_eq!(
            background.count(),
            2,
            "it starts checking for forgotten futures"
        );
        wakers.register(&mut two, &s);
        wakers.notify();
        assert_eq!((first.count(), second.count()), (0, 1));
        wakers.deregister(&mut two);
        assert_eq!(first.count(), 1, "the second left without driving");
        wakers.driving();
        wakers.deregister(&mut one);
        assert_eq!(background.count(), 2, "the first drove");
        wakers.notify();
        assert_eq!(background.count(), 3);
    }

    /// The newer one has driven before the wake-up, and relies on it.
    #[test]
    fn an_operation_that_was_woken_hands_that_on_also_past_a_newer_one() {
        let wakers = Wakers::default();
        let [(first, f), (second, s), (third, t)] = [(); 3].map(|()| Woken::new());
        let woken = || [&first, &second, &third].map(|woken| woken.count());
        let (mut one, mut two, mut three) = (None, None, None);
        wakers.register(&mut one, &f);
        wakers.notify();
        wakers.register(&mut two, &s);
        wakers.register(&mut three, &t);
        assert_eq!(woken(), [1, 0, 0]);
        wakers.deregister(&mut two);
        assert_eq!(woken(), [1, 0, 0], "the first still has it");
        wakers.deregister(&mut one);
        assert_eq!(woken(), [1, 0, 1]);
    }

    #[test]
    fn an_operation_that_was_woken_and_forgotten_is_passed_over_and_no_newer_one() {
        let wakers = Wakers::default();
        let ((forgotten, f), (newer, n)) = (Woken::new(), Woken::new());
        let woken = || [forgotten.count(), newer.count()];
        let (mut one, mut two) = (None, None);
        wakers.register(&mut one, &f);
        wakers.notify();
        wakers.register(&mut two, &n);
        assert!(wakers.tick());
        wakers.deregister(&mut two);
        assert_eq!((woken(), wakers.registered()), ([1, 0], 0));
        wakers.register(&mut two, &n);
        wakers.driving();
        wakers.notify();
        assert_eq!(woken(), [1, 1]);
    }

    #[test]
    fn an_operation_that_was_passed_over_and_is_awaited_again_is_found_when_it_leaves() {
        let wakers = Wakers::default();
        let (woken, w) = Woken::new();
        let (mut first, mut newer) = (None, [None; 4]);
        wakers.register(&mut first, &w);
        wakers.notify();
        for slot in &mut newer {
            wakers.register(slot, &w);
        }
        assert!(wakers.tick());
        for slot in newer.iter_mut().chain([&mut first]) {
            wakers.register(slot, &w);
        }
        for slot in newer.iter_mut().chain([&mut first]) {
            wakers.deregister(slot);
        }
        assert_eq!(wakers.registered(), 0);
        drop(w);
        assert_eq!(Arc::strong_count(&woken), 1);
    }

    #[test]
    fn an_operation_that_has_moved_to_another_task_is_woken_there() {
        let wakers = Wakers::default();
        let ((before, b), (now, n)) = (Woken::new(), Woken::new());
        let mut moved = None;
        wakers.register(&mut moved, &b);
        wakers.register(&mut moved, &n);
        wakers.notify();
        assert_eq!((before.count(), now.count()), (0, 1));
    }

    #[test]
    fn the_background_task_looks_again_while_operations_register_or_a_wake_is_owed() {
        let wakers = Wakers::default();
        let mut slot = None;
        for _ in 0..3 {
            wakers.register(&mut slot, Waker::noop());
            assert!(!wakers.tick() && wakers.is_ticking());
        }
        assert!(!wakers.tick() && !wakers.is_ticking());
        wakers.owe_wake();
        assert!(wakers.is_ticking() && wakers.tick());
    }
}
