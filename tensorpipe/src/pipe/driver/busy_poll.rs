//! Busy-polling: which task polls, and how a task that polls no more is replaced.
//!
//! While polling is on, the connection does not ask to be woken. Invariant: while an operation waits, polling is on only if one task, the
//! poller, is scheduled to poll again; a resting operation does not count as waiting. A poller that leaves, or has polled long enough,
//! switches polling off or sees to another poller. If a poller is forgotten, or leaves and none follows, the background task's tick
//! notices.
//!
//! A poll costs a few nanoseconds and no system call, or (tcp) one system call. Between some polls the task goes to the end of its
//! runtime's queue, so that whatever else is ready runs first. Of several busy pipes on one thread each gets its turn, and so do timers and
//! sockets. A runtime whose tasks are always ready looks at its sockets after some sixty polls only, which take half a millisecond over tcp. So
//! on a runtime of one thread pollers over tcp let it look first after a few calls, and each time while something comes for pipes that slept:
//! else one of two equal clients made a tenth of the other's calls.
//!
//! On a runtime of several workers only a socket that is busy alone is polled. Of several, each would keep a worker busy, and the system lets a
//! thread that it wakes for another one wait for a core, up to 4 ms where there are fewer cores than such threads.

use std::task::Waker;
use std::time::Instant;

use super::drive::{Driven, Driver};
use super::poll_time::PollTime;
use super::runtime;
use super::thread_counts::{LAST_SOCKET, ThreadCounts, look_waker, preemptions, with_counts};
use super::tuning::{
    COSTLY_POLL_MESSAGES, POLLS_PER_WAKE, RECEIVE_BATCH_WAITERS, SOCKET_ALONE, SOLE_POLLER_WAITERS,
};
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, lock};

/// Polling is off: the connection wakes. The numbers of operations begin with 1.
const OFF: u64 = 0;

/// Polling is on, and nobody polls.
const VACANT: u64 = u64::MAX;

/// The background task polls.
const BACKGROUND: u64 = u64::MAX - 1;

#[derive(Debug)]
pub(in crate::pipe) struct BusyPoll {
    /// The connection can be polled.
    can_poll: bool,
    /// A poll is a system call: messages that come and go together cost less.
    io_is_syscall: bool,
    /// Who polls: an operation's number, or one of the constants above. Changed by exchanges only.
    poller: AtomicU64,
    /// Polls so far, and how many there were at the background task's last tick.
    polls: AtomicU64,
    polls_seen: AtomicU64,
    /// An operation waits: `time` is to be told when something comes.
    waiting: AtomicBool,
    /// A handler takes messages at any time: somebody always waits.
    listens: AtomicBool,
    /// The background task was woken to poll, and has not come yet. Changed by exchanges only.
    background_comes: AtomicBool,
    /// Something has come since main futures were last polled, maybe for one of them.
    for_main_futures: AtomicBool,
    /// The pipe is closing: its background task keeps its clock, and does not poll.
    closing: AtomicBool,
    /// A write found the peer awake, and it is time to try whether polling pays.
    polls_for_peer: AtomicBool,
    /// How often in a row bytes came from this socket, and from no other one of the process; at most [`SOCKET_ALONE`].
    alone: AtomicU32,
    /// How many messages came together last; none, if a poll has found none since.
    last_batch: AtomicU32,
    /// The poller's last polls have seen bytes, and let more come together with them.
    some_seen: AtomicBool,
    time: Mutex<PollTime>,
}

/// What a poll has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pipe) enum Readiness {
    NotReady,
    /// Something that waits for more, for a short while.
    Partial,
    /// Something to be done now.
    Ready,
}

impl BusyPoll {
    /// Whether the connection can be polled, and whether each poll is a system call.
    pub(in crate::pipe) fn new(can_poll: bool, io_is_syscall: bool) -> Self {
        Self {
            can_poll,
            io_is_syscall,
            poller: AtomicU64::new(OFF),
            polls: AtomicU64::new(0),
            polls_seen: AtomicU64::new(0),
            waiting: AtomicBool::new(false),
            listens: AtomicBool::new(false),
            background_comes: AtomicBool::new(false),
            for_main_futures: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            polls_for_peer: AtomicBool::new(false),
            alone: AtomicU32::new(SOCKET_ALONE),
            last_batch: AtomicU32::new(0),
            some_seen: AtomicBool::new(false),
            time: Mutex::new(PollTime::new(!io_is_syscall)),
        }
    }

    fn poller(&self) -> u64 {
        self.poller.load(Ordering::SeqCst)
    }

    /// `who` polls from now on, unless polling is off.
    fn take_over(&self, who: u64) -> bool {
        let on = |poller| (poller != OFF).then_some(who);
        let taken = (self.poller).fetch_update(Ordering::SeqCst, Ordering::SeqCst, on);
        taken.is_ok()
    }

    fn change(&self, from: u64, to: u64) {
        let _ = (self.poller).compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
    }
}

impl<W> Driver<W> {
    /// Whether the connection is polled, and asks nobody to be woken.
    pub(in crate::pipe) fn is_polling(&self) -> bool {
        self.polling.poller() != OFF
    }

    /// Whether moving bytes is a system call.
    pub(in crate::pipe) fn io_is_syscall(&self) -> bool {
        self.polling.io_is_syscall
    }

    /// Whether a handler takes messages at any time.
    pub(in crate::pipe) fn listens(&self) -> bool {
        self.polling.listens.load(Ordering::Relaxed)
    }

    /// From now on messages are taken at any time.
    pub(in crate::pipe) fn listen(&self) {
        self.polling.listens.store(true, Ordering::SeqCst);
        // Polling may have been left on.
        self.wakers.wake_background();
    }

    /// From now on the background task does not poll: a peer that always has something to say must not keep it from the clock.
    pub(in crate::pipe) fn closes(&self) {
        self.polling.closing.store(true, Ordering::SeqCst);
    }

    fn is_closing(&self) -> bool {
        self.polling.closing.load(Ordering::SeqCst)
    }

    /// How many messages came in one go last.
    pub(in crate::pipe) fn last_batch(&self) -> u32 {
        self.polling.last_batch.load(Ordering::Relaxed)
    }

    /// So many messages came in one go.
    pub(in crate::pipe) fn record_batch(&self, messages: u32) {
        self.polling.last_batch.store(messages, Ordering::Relaxed);
    }

    /// Bytes have come.
    pub(in crate::pipe) fn record_arrival(&self) {
        let polling = &self.polling;
        with_counts(ThreadCounts::arrival);
        if polling.io_is_syscall {
            let alone = match LAST_SOCKET.is_again(std::ptr::from_ref(self).addr()) {
                true => (polling.alone.load(Ordering::Relaxed) + 1).min(SOCKET_ALONE),
                false => 0,
            };
            polling.alone.store(alone, Ordering::Relaxed);
        }
        if polling.waiting.load(Ordering::Relaxed) {
            polling.waiting.store(false, Ordering::Relaxed);
            if self.wakers.has_main_futures() {
                polling.for_main_futures.store(true, Ordering::Relaxed);
            }
            with_counts(|counts| lock(&polling.time).found(counts, Instant::now));
        }
    }

    /// Whether something has come that may be for a main future, which is polled only together with sockets and timers. `true` once.
    pub(super) fn should_yield_to_main_futures(&self) -> bool {
        let due = &self.polling.for_main_futures;
        due.load(Ordering::Relaxed)
            && due.swap(false, Ordering::Relaxed)
            && runtime::is_single_threaded()
            && !runtime::is_main_future()
    }

    /// Something was written after something had come, and the peer was awake, although this side does not poll.
    pub(in crate::pipe) fn found_peer_awake(&self) {
        let polling = &self.polling;
        if polling.can_poll
            && !polling.io_is_syscall
            && with_counts(|counts| lock(&polling.time).peer_polls(counts, Instant::now))
        {
            polling.polls_for_peer.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the background task is to be woken to poll: the peer is awake, and no operation here awaits what follows the message just
    /// written.
    pub(in crate::pipe) fn is_to_poll_for_peer(&self) -> bool {
        self.polling.polls_for_peer.load(Ordering::Relaxed)
            && !self.is_polling()
            && self.wakers.registered() == 0
            && !self.delivery.is_held_here()
    }

    /// Whether so many operations wait that polls, each a system call, do not pay.
    fn has_too_many_to_poll(&self) -> bool {
        self.io_is_syscall()
            && (self.polling.last_batch.load(Ordering::Relaxed) > COSTLY_POLL_MESSAGES
                || self.wakers.waiting() > COSTLY_POLL_MESSAGES as usize)
    }

    /// Whether this is one of several busy sockets, on a runtime of several workers. Each worker would poll one of them, and take the core
    /// from those that the system wakes for the others.
    fn is_beside_others(&self) -> bool {
        self.io_is_syscall()
            && self.polling.alone.load(Ordering::Relaxed) < SOCKET_ALONE
            && runtime::has_several_workers()
    }

    /// A wait is about to begin: switches polling on if it pays. From the next round on the connection then does not ask to be woken.
    pub(super) fn start_polling(&self) {
        let polling = &self.polling;
        if polling.can_poll
            && !self.is_polling()
            && !self.has_too_many_to_poll()
            && !self.is_beside_others()
            && with_counts(|counts| lock(&polling.time).pays(counts, Instant::now))
        {
            polling.change(OFF, VACANT);
            polling.polls_for_peer.store(false, Ordering::Relaxed);
            self.wakers.keep_ticking();
        }
    }

    /// The runtime that would say when something comes does not run: whoever drives from now on looks for itself.
    pub(in crate::pipe) fn poll_anyway(&self) {
        if self.polling.can_poll {
            self.polling.change(OFF, VACANT);
            self.wakers.keep_ticking();
        }
    }

    /// Polls a few times whether something can be done now. For the operation that is the poller.
    pub(in crate::pipe) fn poll<C: Driven<Work = W>>(&self) -> bool {
        let many = self.wakers.waiting() > RECEIVE_BATCH_WAITERS;
        // With many, pending output does not count: the background task was told of it.
        self.poll_for::<C>(many, !many)
    }

    /// The same. A poller that `sends` also takes what was left behind.
    fn poll_for<C: Driven<Work = W>>(&self, many: bool, sends: bool) -> bool {
        let mut some = false;
        let found = self.poll_work(POLLS_PER_WAKE, |work| {
            let seen = C::poll(work, many, sends);
            some |= seen == Readiness::Partial;
            seen == Readiness::Ready
        });
        with_counts(|counts| counts.poll(found));
        if some && !found {
            self.polling.some_seen.store(true, Ordering::Relaxed);
        }
        found
    }

    /// `who` has found nothing and waits. Returns whether it is the poller, and scheduled to poll again; `polls` says whether it was the
    /// poller already. Otherwise the connection asks to be woken, or another task polls.
    pub(super) fn poll_again<C: Driven<Work = W>>(
        &self,
        core: &Arc<C>,
        who: u64,
        polls: &mut bool,
        waker: &Waker,
    ) -> bool {
        let polling = &self.polling;
        if !polling.can_poll {
            return false;
        }
        if who == BACKGROUND && self.is_closing() {
            if std::mem::take(polls) || polling.poller() == VACANT {
                self.stop_polling(core);
            }
            return false;
        }
        polling.waiting.store(true, Ordering::Relaxed);
        let mut poller = polling.poller();
        if poller == OFF && self.polls_as_peer_does(core) {
            poller = polling.poller();
        }
        if poller == OFF {
            *polls = false;
            with_counts(|counts| lock(&polling.time).sleeps(counts, Instant::now));
            return false;
        }
        let is_new = !*polls;
        if is_new
            && poller != VACANT
            && !polling.io_is_syscall
            && self.wakers.waiting() > SOLE_POLLER_WAITERS
        {
            return false;
        }
        // A newer operation takes over. So does an older one if nobody polls, since polling was switched off in between, and on again.
        *polls = match is_new || poller == VACANT {
            true => polling.take_over(who),
            false => poller == who,
        };
        if !*polls {
            return false;
        }
        // One task polls at a time: no exchange is needed.
        let polls_so_far = polling.polls.load(Ordering::Relaxed);
        polling.polls.store(polls_so_far + 1, Ordering::Relaxed);
        // Polls that saw bytes, and left them for more to come, were not in vain: the bytes are read soon, and tell how long it took.
        let some_seen = polling.some_seen.load(Ordering::Relaxed)
            && polling.some_seen.swap(false, Ordering::Relaxed);
        let should_poll_on = |counts: &ThreadCounts| {
            let polls_on = lock(&polling.time).should_poll_on(POLLS_PER_WAKE, counts, Instant::now);
            if !polls_on {
                counts.stops_polling(Instant::now(), preemptions);
            }
            polls_on
        };
        let polls_on = || some_seen || with_counts(should_poll_on);
        if !self.has_too_many_to_poll() && !self.is_beside_others() && polls_on() {
            // Polls again once other ready tasks have run; if much was done since sockets and timers were polled, after those, too.
            let io_is_syscall = polling.io_is_syscall;
            let mut looks = with_counts(|counts| counts.is_look_due(io_is_syscall));
            if looks && (runtime::is_main_future() || !runtime::has_one_worker()) {
                with_counts(ThreadCounts::has_looked);
                looks = false;
            }
            let is_last = self.should_yield(core) || self.has_yielded();
            if looks || (is_last && runtime::is_single_threaded()) {
                // Whoever is woken by the look polls behind this.
                runtime::wake_last(look_waker());
                runtime::wake_last(waker);
            } else {
                waker.wake_by_ref();
            }
            return true;
        }
        *polls = false;
        self.stop_polling(core);
        false
    }

    /// Switches polling on if the last write found the peer awake: most likely it polls, and its answer comes soon.
    fn polls_as_peer_does<C: Driven<Work = W>>(&self, core: &Arc<C>) -> bool {
        let polling = &self.polling;
        let polls = polling.polls_for_peer.load(Ordering::Relaxed)
            && polling.polls_for_peer.swap(false, Ordering::Relaxed);
        if polls {
            polling.change(OFF, VACANT);
            self.wakers.keep_ticking();
            // A round tells the connection.
            self.drive(core);
        }
        polls
    }

    /// Counts an operation that registers no waker: the poller drives for it, or the task that is woken. Returns `false` if it had better
    /// register: polling is on and nobody polls, or so few wait that its own task should poll.
    pub(super) fn count(&self) -> bool {
        self.wakers.count();
        // After counting: a poller that leaves from here on sees the count.
        let poller = self.polling.poller();
        poller != VACANT && self.wakers.waiting() > SOLE_POLLER_WAITERS
    }

    /// `who` does something else, and polls no more. The next operation polls.
    pub(super) fn pause(&self, who: Option<u64>, polls: &mut bool) {
        if let (true, Some(who)) = (std::mem::take(polls), who) {
            self.polling.change(who, VACANT);
        }
    }

    /// The operation in `slot` waits no more. If others still wait, the background task polls until one of them does.
    ///
    /// If no operation waits, polling stays on: most likely the next one is about to begin, and switching polling off and on costs more
    /// than leaving it on. If none comes, the background task's tick switches it off; until then what the peer sends of its own accord (a
    /// ping, a goodbye) stays unread.
    pub(super) fn deregister<C: Driven<Work = W>>(
        &self,
        core: &Arc<C>,
        slot: &mut Option<u64>,
        polls: &mut bool,
    ) {
        let polling = &self.polling;
        self.pause(*slot, polls);
        // After that: an operation that registers from here on finds that nobody polls.
        let others_wait = self.wakers.deregister(slot);
        // Also if it never polled: it may have switched polling on, and found at once what it waits for.
        if polling.poller() != VACANT {
            return;
        }
        if others_wait {
            // If many leave together, only the first wakes the background task.
            if !polling.background_comes.swap(true, Ordering::SeqCst) {
                self.wakers.wake_background();
            }
        } else if polling.listens.load(Ordering::SeqCst) {
            self.stop_polling(core);
        }
    }

    /// From now on the connection asks to be woken.
    fn stop_polling<C: Driven<Work = W>>(&self, core: &Arc<C>) {
        if self.polling.poller.swap(OFF, Ordering::SeqCst) != OFF {
            self.drive(core);
        }
    }

    /// The background task drives. Returns whether it is the poller, and scheduled to poll again.
    pub(in crate::pipe) fn drive_in_background<C: Driven<Work = W>>(
        &self,
        core: &Arc<C>,
        polls: &mut bool,
        waker: &Waker,
    ) -> bool {
        let many = self.wakers.waiting() > RECEIVE_BATCH_WAITERS;
        if self.polling.background_comes.load(Ordering::Relaxed) {
            self.polling.background_comes.swap(false, Ordering::SeqCst);
        }
        if *polls
            && !self.poll_for::<C>(many, true)
            && self.poll_again(core, BACKGROUND, polls, waker)
        {
            return true;
        }
        self.wakers.set_background(waker);
        // Operations that are awaited poll for themselves, unless the one that did has just ended.
        let may_poll = self.is_polling() || self.wakers.registered() == 0;
        if may_poll && !self.is_closing() {
            self.start_polling();
        }
        self.drive(core);
        may_poll
            && (*polls || [OFF, VACANT].contains(&self.polling.poller()))
            && self.poll_again(core, BACKGROUND, polls, waker)
    }

    /// The background task watches for forgotten futures.
    pub(in crate::pipe) fn tick<C: Driven<Work = W>>(&self, core: &Arc<C>) {
        let polls = self.polling.polls.load(Ordering::Relaxed);
        let seen = self.polling.polls_seen.swap(polls, Ordering::Relaxed);
        let poller = self.polling.poller();
        if poller == VACANT || (poller != OFF && polls == seen) {
            self.stop_polling(core);
        }
        if self.is_polling() {
            self.wakers.keep_ticking();
        }
        if self.wakers.tick() {
            self.drive_now(core);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::{Context, Poll};

    use super::super::tuning::{ARRIVALS_PER_LOOK, TICK};
    use super::super::{Interest, Waiter};
    use super::*;
    use crate::pipe::Core;
    use crate::pipe::tests::{Woken, shm_pair, soon, tcp_pair};
    use crate::{Message, Pipe};

    /// A pipe with polling on at which many wait, and both its ends; nothing but the test drives it.
    async fn many_wait() -> (Arc<Core>, Vec<Option<u64>>, [Pipe; 2]) {
        let (client, server) = shm_pair().await;
        let core = client.core().clone();
        let mut slots = vec![None; RECEIVE_BATCH_WAITERS + 1];
        for slot in &mut slots {
            core.driver.wakers.register(slot, Waker::noop());
        }
        core.driver.start_polling();
        core.drive();
        assert!(core.driver.is_polling());
        (core, slots, [client, server])
    }

    #[tokio::test]
    async fn the_background_task_sends_what_it_was_told_of_while_it_polls_for_many() {
        let (core, _slots, _ends) = many_wait().await;
        let (driver, mut polls) = (&core.driver, false);
        assert!(driver.poll_again(&core, BACKGROUND, &mut polls, Waker::noop()) && polls);
        let before = core.counters.bytes_out();
        {
            let mut io = driver.hold().unwrap();
            let room = io.room();
            let told = lock(&core.shared)
                .state
                .write(b"told", &mut Default::default(), room);
            assert!(told.unwrap().sent);
            io.push_message();
            io.sends.owe();
        }
        driver.drive_in_background(&core, &mut polls, Waker::noop());
        assert_eq!(core.counters.bytes_out(), before + 24);
    }

    #[tokio::test]
    async fn a_round_that_finds_nothing_to_send_settles_what_was_owed() {
        let (core, _slots, _ends) = many_wait().await;
        core.driver.hold().unwrap().sends.owe();
        core.drive();
        let mut io = core.driver.hold().unwrap();
        assert_eq!(io.poll(false, true), Readiness::NotReady);
        assert!(io.sends.owe(), "nobody is told again");
    }

    /// The runtime looks at its sockets only now and then while a task is always ready. A poller lets it do so first for those that sleep, and
    /// whenever much has come.
    #[tokio::test]
    async fn who_polls_a_socket_polls_behind_the_news_of_others() {
        tokio::spawn(polls_behind_news()).await.unwrap();
    }

    async fn polls_behind_news() {
        let slept: fn(&ThreadCounts) = ThreadCounts::wakes_sleeper;
        let much: fn(&ThreadCounts) =
            |counts| (0..ARRIVALS_PER_LOOK).for_each(|_| counts.arrival());
        for (name, pair, happens, waits) in [
            (
                "alone",
                tcp_pair().await,
                (|_| ()) as fn(&ThreadCounts),
                false,
            ),
            ("beside one that slept", tcp_pair().await, slept, true),
            ("much has come", tcp_pair().await, much, true),
            ("a poll is no system call", shm_pair().await, slept, false),
        ] {
            let driver = &pair.0.core().driver;
            let (woken, waker) = Woken::new();
            let mut waiter = Waiter::new(pair.0.core().clone());
            *lock(&driver.polling.time) = PollTime::new(false);
            waiter.drive(&waker);
            with_counts(|counts| {
                counts.forget_sleepers();
                counts.has_looked();
                happens(counts);
            });
            assert!(waiter.poll_again(&waker), "{name}: it does not poll");
            assert_eq!(woken.count(), usize::from(!waits), "{name}");
            tokio::task::yield_now().await;
            assert_eq!(woken.count(), 1, "{name}: nobody polls");
        }
    }

    /// Another worker would look at the sockets, but the system may not give it a core.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn on_a_runtime_of_several_workers_only_a_socket_that_is_busy_alone_is_polled() {
        let (pair, other) = (tcp_pair().await, tcp_pair().await);
        let shm = shm_pair().await;
        for (name, ends, waits) in [("one of two", &pair, false), ("no socket", &shm, true)] {
            let driver = &ends.0.core().driver;
            let mut waiter = Waiter::new(ends.0.core().clone());
            let mut polls = || {
                *lock(&driver.polling.time) = PollTime::new(false);
                waiter.drive(Waker::noop());
                waiter.poll_again(Waker::noop())
            };
            driver.polling.alone.store(SOCKET_ALONE, Ordering::Relaxed);
            assert!(polls(), "{name}, alone");
            other.0.core().driver.record_arrival();
            driver.record_arrival();
            assert_eq!(polls(), waits, "{name}");
            assert_eq!(driver.is_polling(), waits, "{name}");
            assert_eq!(polls(), waits, "{name}, the next wait");
        }
    }

    /// The background task has taken over from a poller that left, and its runtime is blocked since.
    #[tokio::test]
    async fn of_many_that_wait_on_another_runtime_one_reads_what_a_blocked_poller_does_not() {
        let (client, server) = shm_pair().await;
        let core = client.core();
        let mut cx = Context::from_waker(Waker::noop());
        let waits = |waiter: &mut Waiter<Arc<Core>>, cx: &mut Context<'_>| {
            waiter.poll(cx, Interest::Descriptor, |shared| {
                shared.arrived.pop_front()
            })
        };
        let mut waiters: Vec<_> = (0..=SOLE_POLLER_WAITERS)
            .map(|_| Waiter::new(core.clone()))
            .collect();
        for waiter in &mut waiters {
            assert!(waits(waiter, &mut cx).is_pending());
        }
        let mut polls = false;
        core.driver.poll_anyway();
        (core.driver.polling).change(core.driver.polling.poller(), VACANT);
        core.drive();
        // However long the others have polled.
        *lock(&core.driver.polling.time) = PollTime::new(true);
        let driver = &core.driver;
        assert!(driver.poll_again(core, BACKGROUND, &mut polls, Waker::noop()));
        server.send(Message::new("nobody polls for it")).unwrap();
        let mut late = Waiter::new(core.clone());
        assert!(waits(&mut late, &mut cx).is_ready());
    }

    /// Its task does something else: a handler that listens, another operation, or the next one, must not wait for it to poll.
    #[tokio::test]
    async fn an_operation_that_rests_polls_no_more_and_waits_where_nobody_else_does() {
        for (name, listens, others, waits) in [
            ("alone", false, false, true),
            ("a handler", true, false, false),
            ("another", false, true, false),
            ("no polling", false, false, false),
        ] {
            let (client, _server) = shm_pair().await;
            let driver = &client.core().driver;
            if listens {
                driver.listen();
            }
            let mut other = None;
            if others {
                driver.wakers.register(&mut other, Waker::noop());
            }
            let mut waiter = Waiter::new(client.core().clone());
            waiter.drive(Waker::noop());
            assert!(waiter.poll_again(Waker::noop()), "{name}: it does not poll");
            let who = driver.polling.poller();
            if name == "no polling" {
                driver.stop_polling(client.core());
            }
            waiter.pause();
            assert_ne!(driver.polling.poller(), who, "{name}");
            let expected = usize::from(waits) + usize::from(others);
            assert_eq!(driver.wakers.waiting(), expected, "{name}");
        }
    }

    /// Neither end expects polling to pay; but the peer may poll.
    #[tokio::test]
    async fn whoever_answers_a_peer_that_is_awake_polls_as_it_does() {
        for (name, awake, answers) in [
            ("it polls", true, 1),
            ("it sleeps", false, 1),
            // The first answer woke the peer, and nobody knows whether it is awake yet.
            ("two answers", false, 2),
        ] {
            let (client, server) = shm_pair().await;
            let [peer, core] = [&client, &server].map(|pipe| pipe.core().clone());
            if awake {
                // Whatever the handshake has taught it.
                peer.driver.poll_anyway();
            }
            for core in [&peer, &core] {
                let mut now = Instant::now();
                let mut later = || {
                    now += TICK;
                    now
                };
                let mut time = lock(&core.driver.polling.time);
                with_counts(|counts| {
                    while time.should_poll_on(1000, counts, &mut later) {}
                    time.found(counts, &mut later);
                    assert!(!time.pays(counts, later));
                });
            }
            peer.drive();
            client.send(Message::new("a call")).unwrap();
            core.drive();
            let (background, waker) = Woken::new();
            core.driver.wakers.set_background(&waker);
            for _ in 0..answers {
                server.send(Message::new("an answer")).unwrap();
            }
            // A task wrote the answer, and waits for nothing.
            assert_eq!(background.count(), usize::from(awake), "{name}");
            let mut waiter = Waiter::new(core);
            waiter.drive(Waker::noop());
            assert_eq!(waiter.poll_again(Waker::noop()), awake, "{name}");
            drop(waiter);
            let before = background.count();
            server.send(Message::new("while it polls")).unwrap();
            let again = background.count() > before;
            assert!(!awake || !again, "it is told of what is done already");
        }
    }

    /// This test is a main future: it is polled only behind sixty polls of tasks that are always ready. Counts the polls behind its
    /// message.
    #[tokio::test]
    async fn a_main_future_has_what_came_for_it_before_tasks_poll_again() {
        for name in ["one polls", "another takes over", "it is woken, too"] {
            let (client, server) = shm_pair().await;
            let core = client.core().clone();
            let polls = Arc::new(AtomicU64::new(0));
            let behind = polls.clone();
            let mut waiters = vec![Waiter::new(core.clone())];
            let mut seen = 0;
            let task = tokio::spawn(poll_fn(move |cx| {
                seen += 1;
                if seen == 2 {
                    assert!(core.driver.is_polling());
                    server.send(Message::new("for the main future")).unwrap();
                    match name {
                        "another takes over" => waiters.push(Waiter::new(core.clone())),
                        "it is woken, too" => cx.waker().wake_by_ref(),
                        _ => {}
                    }
                }
                behind.fetch_add(u64::from(seen >= 2), Ordering::Relaxed);
                for waiter in &mut waiters {
                    assert!(waiter.poll(cx, Interest::End, |_| None::<()>).is_pending());
                }
                Poll::<()>::Pending
            }));
            soon(client.read_descriptor()).await.unwrap();
            let polls = polls.load(Ordering::Relaxed);
            assert!((1..=3).contains(&polls), "{name}: {polls}");
            task.abort();
        }
    }
}
