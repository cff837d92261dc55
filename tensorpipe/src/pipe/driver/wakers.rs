//! Who drives a pipe when its connection has something to say.
//!
//! The connection always wakes the [`Poller`]; the poller passes the wake on to one task: the operation that was awaited
//! last, else the pipe's background task. So an answer reaches the task that waits for it without a hop through another
//! one. An operation that is awaited no more leaves, and hands on a wake that it has not acted on.
//!
//! A future can be polled once and then forgotten (kept in a variable while its task awaits something else). A wake
//! given to it would be lost for everybody. So after a wake, and while operations register, the background task looks every
//! [`TICK`] whether somebody was woken and has not driven the pipe since; then it drives, and passes the sleeper over. Where
//! nothing has happened for a [`TICK`] it sleeps, however many wait: the next wake starts it again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use super::waiter::wake;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// How long a forgotten future can delay the others of its pipe.
pub(crate) const TICK: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
pub(crate) struct Poller {
    /// Somebody was woken and has not driven the pipe since. Changed by exchanges only: whoever takes it back sees what
    /// there was to wake for.
    notified: AtomicBool,
    roles: Mutex<Roles>,
}

#[derive(Debug, Default)]
struct Roles {
    /// Operations being awaited; the last one has the role. Of many the first ones are most often the first to end.
    waiting: VecDeque<(u64, Waker)>,
    background: Option<Waker>,
    next_id: u64,
    /// The background task looks after forgotten futures.
    ticking: bool,
    /// There may be something to look after since its last look.
    active: bool,
}

impl Roles {
    /// There is something to look after. Returns who is to be woken for it.
    fn start_ticking(&mut self) -> Option<Waker> {
        self.active = true;
        let ticks = std::mem::replace(&mut self.ticking, true);
        (!ticks).then(|| self.background.clone()).flatten()
    }

    /// Whether this operation would wake this task already.
    fn knows(&mut self, id: u64, waker: &Waker) -> bool {
        let mut waiting = self.waiting.iter();
        let known = waiting.any(|(waiting, known)| *waiting == id && known.will_wake(waker));
        self.active |= known;
        known
    }
}

impl Poller {
    /// Makes `waker` the one to be woken; `slot` remembers the registration, whose number is returned.
    pub(crate) fn register(&self, slot: &mut Option<u64>, waker: &Waker) -> u64 {
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
            let known =
                slot.and_then(|id| roles.waiting.iter_mut().find(|(known, _)| *known == id));
            match known {
                Some((id, known)) => (*id, Some(std::mem::replace(known, waker)), ticking),
                None => {
                    let id = *slot.get_or_insert_with(|| {
                        roles.next_id += 1;
                        roles.next_id
                    });
                    roles.waiting.push_back((id, waker));
                    (id, None, ticking)
                }
            }
        };
        drop(old);
        if let Some(background) = ticking {
            wake(background);
        }
        id
    }

    /// Nobody is woken for what comes from now on, since somebody looks: the background task looks after that one, too.
    pub(crate) fn keep_ticking(&self) {
        let ticking = lock(&self.roles).start_ticking();
        if let Some(background) = ticking {
            wake(background);
        }
    }

    /// The operation is awaited no more.
    pub(crate) fn leave(&self, slot: &mut Option<u64>) {
        let Some(id) = slot.take() else { return };
        let (had_role, left) = {
            let mut roles = lock(&self.roles);
            let had_role = roles.waiting.back().is_some_and(|(last, _)| *last == id);
            let at = roles.waiting.iter().position(|(waiting, _)| *waiting == id);
            (had_role, at.and_then(|at| roles.waiting.remove(at)))
        };
        drop(left);
        if had_role && self.notified.load(Ordering::SeqCst) {
            self.notify();
        }
    }

    /// Whether operations are being awaited.
    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting() > 0
    }

    /// How many are.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.roles).waiting.len()
    }

    pub(crate) fn set_background(&self, waker: &Waker) {
        let mut roles = lock(&self.roles);
        match &mut roles.background {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    /// The background task has ended: its runtime is not held on to.
    pub(crate) fn clear_background(&self) {
        let background = lock(&self.roles).background.take();
        drop(background);
    }

    /// Whoever is about to drive says so first.
    pub(crate) fn driving(&self) {
        self.notified.swap(false, Ordering::SeqCst);
    }

    pub(crate) fn notify(&self) {
        self.notified.swap(true, Ordering::SeqCst);
        let (waker, ticking) = {
            let mut roles = lock(&self.roles);
            match roles.waiting.back().map(|(_, waker)| waker.clone()) {
                Some(waker) => (Some(waker), roles.start_ticking()),
                None => (roles.background.clone(), None),
            }
        };
        if let Some(waker) = waker {
            wake(waker);
        }
        if let Some(background) = ticking {
            wake(background);
        }
    }

    /// Somebody will be woken soon. Where that comes to nothing (the runtime is blocked), the background task finds out.
    pub(crate) fn owe_wake(&self) {
        self.notified.swap(true, Ordering::SeqCst);
        self.keep_ticking();
    }

    pub(crate) fn wake_background(&self) {
        let waker = lock(&self.roles).background.clone();
        if let Some(waker) = waker {
            wake(waker);
        }
    }

    /// Whether there is a background task.
    pub(crate) fn has_background(&self) -> bool {
        lock(&self.roles).background.is_some()
    }

    /// Whether the background task has to look again after a [`TICK`].
    pub(crate) fn is_ticking(&self) -> bool {
        lock(&self.roles).ticking
    }

    /// The background task looks. Returns whether somebody was woken and did not drive: it has lost the role.
    pub(crate) fn tick(&self) -> bool {
        let mut roles = lock(&self.roles);
        let asleep = self.notified.load(Ordering::SeqCst);
        let passed_over = asleep.then(|| roles.waiting.pop_back());
        roles.ticking = std::mem::take(&mut roles.active);
        drop(roles);
        drop(passed_over);
        asleep
    }
}

impl Wake for Poller {
    fn wake(self: Arc<Self>) {
        self.notify();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::AtomicU64;

    #[derive(Default)]
    struct Counter(AtomicU64);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn waker() -> (Arc<Counter>, Waker) {
        let counter = Arc::new(Counter::default());
        (counter.clone(), counter.into())
    }

    #[test]
    fn the_last_awaited_operation_is_woken_and_hands_on_what_it_did_not_act_on() {
        let poller = Poller::default();
        let ((background, b), (first, f), (second, s)) = (waker(), waker(), waker());
        let count = |c: &Counter| c.0.load(Ordering::SeqCst);
        poller.set_background(&b);
        poller.notify();
        assert_eq!(count(&background), 1);
        poller.driving();
        let (mut one, mut two) = (None, None);
        poller.register(&mut one, &f);
        assert_eq!(
            count(&background),
            2,
            "it starts looking after forgotten futures"
        );
        poller.register(&mut two, &s);
        poller.notify();
        assert_eq!((count(&first), count(&second)), (0, 1));
        poller.leave(&mut two);
        assert_eq!(count(&first), 1, "the second left without driving");
        poller.driving();
        poller.leave(&mut one);
        assert_eq!(count(&background), 2, "the first drove");
        poller.notify();
        assert_eq!(count(&background), 3);
    }

    #[test]
    fn a_forgotten_future_loses_the_role() {
        let poller = Poller::default();
        let ((background, b), (_, f)) = (waker(), waker());
        poller.set_background(&b);
        let mut slot = None;
        poller.register(&mut slot, &f);
        assert!(!poller.tick());
        assert!(poller.is_ticking());
        poller.notify();
        assert!(poller.tick());
        poller.driving();
        poller.notify();
        assert_eq!(background.0.load(Ordering::SeqCst), 2);
        poller.driving();
        assert!(!poller.tick());
        assert!(!poller.is_ticking(), "nobody is left to look after");
    }

    #[test]
    fn a_wait_without_end_costs_nothing_and_its_wake_is_looked_after() {
        let poller = Poller::default();
        let ((background, b), (operation, o)) = (waker(), waker());
        let count = |c: &Counter| c.0.load(Ordering::SeqCst);
        poller.set_background(&b);
        let mut slot = None;
        poller.register(&mut slot, &o);
        assert!(!poller.tick() && !poller.tick());
        assert!(!poller.is_ticking(), "it looks although nothing happens");
        let before = count(&background);
        poller.notify();
        assert_eq!((count(&operation), count(&background)), (1, before + 1));
        assert!(poller.is_ticking());
        assert!(poller.tick(), "the operation was forgotten");
    }
}
