//! How long to busy-poll before sleeping.
//!
//! Waking a sleeping core takes some 20 µs at each end, a poll a few nanoseconds. So whoever waits polls for a while and
//! then sleeps; a wait that is over while polling saves both wake-ups. Whether that is to be expected is learnt: polling
//! in vain makes the next time shorter, down to none, and sleeps that turn out to be short bring it back. Where both
//! ends share a core, or calls are far apart, nobody polls for long.
//!
//! Several pipes on one thread poll in turn. A wait costs only its share of that time: it may be long while other pipes are busy. A thread
//! that drives one pipe after the other has no time to sleep, and polling each of them once in a while costs less than a wake-up. So a
//! server of many clients that call all the time polls all of them, however long each waits. Over tcp it stops polling those that it polls in
//! vain: to ask each of many sockets is more work than to be told by the system which of them have news.
//!
//! A thread that polls all of its pipes in vain keeps its core from a peer that shares it. So it stops as soon as one pipe alone would. If
//! the system has taken its core meanwhile, others want it, and the thread polls none for a while. Where both ends share a core, polling
//! often seems to pay: a write wakes the peer, which runs at once, and then its answer is there. So a thread that loses its core all the time
//! pauses, too.
//!
//! Both ends may be wrong together. If cores wake slowly, each end sees long sleeps, and polls in vain while the other end sleeps: a call
//! takes two wake-ups, though both ends have nothing else to do. So after some sleeps that two slow wake-ups would explain, an end polls
//! once for as long as these may take. An end that answers a peer that is awake then polls, too. Each try waits for twice as many signs the
//! next time, until it has paid. Over tcp neither end sees whether its reader is awake.
//!
//! The clock is an argument: tests tell the time, and the models of `tensorpipe-loom` have a file in place of this one.

use std::time::{Duration, Instant};

use super::thread_counts::ThreadCounts;
use super::tuning::{
    BUSY_SLICE, PAID_IN_A_ROW, POLL_LONGEST, POLL_SHORTEST, POLLS_PER_CLOCK, SHORT_SLEEP,
    SIGNS_MOST, SLOW_WAKES, SLOW_WAKES_MOST, SOCKETS_POLLED, TICK,
};

#[derive(Debug)]
pub(super) struct PollTime {
    limit: Duration,
    /// A poll has found something since `limit` was raised.
    has_paid: bool,
    /// How often in a row polling has paid since a try for slow wake-ups paid; 0 without such a try.
    paid_since_long: u32,
    /// The peer sees it when this end polls, and polls then. Otherwise polls are system calls.
    peer_sees: bool,
    short_sleeps: Signs,
    /// Sleeps that two slow wake-ups would explain.
    slow_wakes: Signs,
    /// Writes that found the peer awake.
    peer_polls: Signs,
    wait: Wait,
}

/// Counts signs that polling would pay. After `wanted` signs it is tried; the next try takes twice as many, until polling has paid.
#[derive(Clone, Copy, Debug)]
struct Signs {
    seen: u32,
    wanted: u32,
    least: u32,
    most: u32,
}

impl Signs {
    const fn new(least: u32, most: u32) -> Self {
        let (seen, wanted) = (0, least);
        Self {
            seen,
            wanted,
            least,
            most,
        }
    }

    /// Counts a sign. Returns whether to try polling.
    fn add(&mut self) -> bool {
        self.seen += 1;
        let tries = self.seen >= self.wanted;
        if tries {
            self.seen = 0;
            self.wanted = (self.wanted * 2).min(self.most);
        }
        tries
    }

    fn has_paid(&mut self) {
        self.wanted = self.least;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Not,
    /// So many polls since the clock was read last.
    Polling(u32, Option<Begun>),
    Sleeping(Begun),
}

/// When a wait began, or its polling, as soon as the clock was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Begun {
    at: Instant,
    /// Which thread it was, and what it had counted by then.
    thread: u64,
    all_polled: u64,
    driven: u64,
    /// Polls of this wait since.
    polled: u64,
    /// How often bytes had come to the thread when the clock was last read, and when it was first read after that.
    came: u64,
    in_vain_since: Instant,
}

impl Begun {
    fn new(at: Instant, counts: &ThreadCounts) -> Self {
        Self {
            at,
            thread: counts.thread(),
            all_polled: counts.polled.get(),
            driven: counts.driven.get(),
            polled: 0,
            came: counts.came.get(),
            in_vain_since: at,
        }
    }

    /// For how long nothing has come for any pipe of the thread.
    fn in_vain(&mut self, now: Instant, counts: &ThreadCounts) -> Duration {
        let came = counts.came.get();
        if came != self.came {
            (self.came, self.in_vain_since) = (came, now);
        }
        now.saturating_duration_since(self.in_vain_since)
    }

    /// This wait's share of the time until `now`. The rest went to other pipes that were polled on the same thread: a wait that is long
    /// because they are busy costs nothing.
    fn share(&self, now: Instant, counts: &ThreadCounts) -> Duration {
        let passed = now.saturating_duration_since(self.at);
        // On another thread the share is not known. Beyond a `TICK` all of the time counts, so that no wait polls without end.
        if counts.thread() != self.thread || passed > TICK {
            return passed;
        }
        let all = counts.polled.get().saturating_sub(self.all_polled);
        let ours = (passed.as_nanos() as u64).saturating_mul(self.polled);
        Duration::from_nanos(ours / all.max(self.polled).max(1))
    }

    /// Whether the wait's thread drove other pipes since.
    fn has_driven_others(&self, counts: &ThreadCounts) -> bool {
        counts.thread() == self.thread && counts.driven.get() != self.driven
    }

    /// Whether the wait's thread drove many other pipes for each poll of this one.
    fn is_crowded(&self, counts: &ThreadCounts) -> bool {
        let others = (counts.driven.get()).saturating_sub(self.driven + self.polled);
        counts.thread() == self.thread && others > SOCKETS_POLLED * (self.polled + 1)
    }

    /// Whether the wait's thread had no time to sleep, and would have polled this pipe once for each time that it drove another.
    fn was_busy(&self, now: Instant, counts: &ThreadCounts) -> bool {
        let driven = counts.driven.get().saturating_sub(self.driven);
        let passed = now.saturating_duration_since(self.at);
        counts.thread() == self.thread
            && passed.as_nanos() < u128::from(driven) * BUSY_SLICE.as_nanos()
    }
}

impl PollTime {
    /// If `peer_sees`, the peer notices that this end polls.
    pub(super) fn new(peer_sees: bool) -> Self {
        Self {
            limit: POLL_LONGEST,
            has_paid: false,
            paid_since_long: 0,
            peer_sees,
            short_sleeps: Signs::new(2, SIGNS_MOST),
            slow_wakes: Signs::new(8, SLOW_WAKES_MOST),
            peer_polls: Signs::new(1, SIGNS_MOST),
            wait: Wait::Not,
        }
    }

    /// Whether a wait that begins now should begin with polling.
    pub(super) fn pays(&self, counts: &ThreadCounts, now: impl FnOnce() -> Instant) -> bool {
        self.limit > Duration::ZERO && !counts.pauses(now)
    }

    /// `polls` polls have found nothing, in one poll of the task. Returns whether to poll on; otherwise it is time to sleep.
    pub(super) fn should_poll_on(
        &mut self,
        polls: u32,
        counts: &ThreadCounts,
        now: impl FnOnce() -> Instant,
    ) -> bool {
        let (before, mut begun) = match self.wait {
            Wait::Polling(before, begun) => (before, begun),
            _ => (0, None),
        };
        if let Some(begun) = &mut begun {
            begun.polled += 1;
        }
        let so_far = before + polls;
        if so_far < POLLS_PER_CLOCK && self.limit > Duration::ZERO {
            self.wait = Wait::Polling(so_far, begun);
            return true;
        }
        let at = now();
        let mut begun = begun.unwrap_or_else(|| Begun::new(at, counts));
        let is_crowded = !self.peer_sees && begun.is_crowded(counts);
        if begun.share(at, counts) < self.limit && !is_crowded && !counts.pauses(|| at) {
            if begun.in_vain(at, counts) <= self.limit.max(POLL_LONGEST) {
                self.wait = Wait::Polling(0, Some(begun));
                return true;
            }
            counts.is_idle.set(true);
        }
        self.paid_since_long = 0;
        self.limit /= 2;
        if is_crowded || !self.has_paid || self.limit < POLL_SHORTEST {
            self.limit = Duration::ZERO;
        }
        self.wait = Wait::Sleeping(begun);
        false
    }

    /// A wait begins, or goes on, asleep.
    pub(super) fn sleeps(&mut self, counts: &ThreadCounts, now: impl FnOnce() -> Instant) {
        self.wait = match self.wait {
            Wait::Polling(_, Some(begun)) => Wait::Sleeping(begun),
            Wait::Not | Wait::Polling(_, None) => Wait::Sleeping(Begun::new(now(), counts)),
            sleeping @ Wait::Sleeping(_) => sleeping,
        };
    }

    /// Something has come.
    pub(super) fn found(&mut self, counts: &ThreadCounts, now: impl FnOnce() -> Instant) {
        match self.wait {
            Wait::Not => {}
            Wait::Polling(_, begun) => {
                if !self.has_paid || self.limit < POLL_LONGEST || self.paid_since_long > 0 {
                    let share = |begun: Begun| begun.share(now(), counts);
                    self.paid(begun.map(share).unwrap_or_default());
                }
            }
            Wait::Sleeping(begun) => {
                if begun.has_driven_others(counts) {
                    counts.wakes_sleeper();
                }
                if !self.peer_sees && begun.is_crowded(counts) {
                    self.short_sleeps.seen = 0;
                } else if self.limit < POLL_LONGEST {
                    let now = now();
                    let slept = now.saturating_duration_since(begun.at);
                    self.slept(slept, begun.was_busy(now, counts));
                }
            }
        }
        self.wait = Wait::Not;
    }

    /// A poll has found something, after so long.
    #[cold]
    fn paid(&mut self, polled: Duration) {
        self.limit = POLL_LONGEST;
        if polled > POLL_LONGEST {
            // An end that polls for longer than usual sees every answer, so this proves little. Polling pays once the peer polls, too.
            self.has_paid = false;
            self.paid_since_long = 1;
            return;
        }
        self.has_paid = true;
        self.short_sleeps.has_paid();
        self.peer_polls.has_paid();
        if self.paid_since_long > 0 {
            self.paid_since_long += 1;
            if self.paid_since_long > PAID_IN_A_ROW {
                self.paid_since_long = 0;
                self.slow_wakes.has_paid();
            }
        }
    }

    /// A write found the peer awake. Returns whether it is time to try polling.
    pub(super) fn peer_polls(
        &mut self,
        counts: &ThreadCounts,
        now: impl FnOnce() -> Instant,
    ) -> bool {
        let tries = self.limit.is_zero() && !counts.pauses(now) && self.peer_polls.add();
        if tries {
            self.tries(POLL_LONGEST);
        }
        tries
    }

    /// A sleep is over. `was_busy`: its thread had no time to sleep.
    fn slept(&mut self, slept: Duration, was_busy: bool) {
        if slept <= SHORT_SLEEP || was_busy {
            if self.short_sleeps.add() {
                self.tries(POLL_LONGEST);
            }
            return;
        }
        self.short_sleeps.seen = 0;
        if self.peer_sees && slept <= SLOW_WAKES && self.slow_wakes.add() {
            self.tries(SLOW_WAKES);
        }
    }

    /// The next wait begins with polling, to find out whether it pays.
    fn tries(&mut self, limit: Duration) {
        self.limit = limit;
        self.has_paid = false;
    }
}

#[cfg(test)]
mod tests {
    use super::super::thread_counts::add;
    use super::super::tuning::{PAUSE, PAUSE_LONGEST, POLLS_PAY, SLEEPER_POLLS};
    use super::*;

    struct Clock {
        now: Instant,
        counts: ThreadCounts,
    }

    impl Clock {
        fn new() -> Self {
            let (now, counts) = (Instant::now(), ThreadCounts::new());
            Self { now, counts }
        }

        fn pass(&mut self, micros: u64) -> Instant {
            self.now += Duration::from_micros(micros);
            self.now
        }

        /// One poll of ours, and so many of others'.
        fn poll(&self, others: u64) -> &ThreadCounts {
            add(&self.counts.came, others);
            add(&self.counts.driven, others);
            self.poll_idle(others)
        }

        /// The same; nothing comes for the others.
        fn poll_idle(&self, others: u64) -> &ThreadCounts {
            add(&self.counts.polled, 1 + others);
            &self.counts
        }
    }

    /// A wait without an answer while polling, on a thread that polls and drives so many others each time: how long it polled.
    fn poll_in_vain(time: &mut PollTime, clock: &mut Clock, others: u64) -> Duration {
        let begun = clock.now;
        if time.pays(&clock.counts, || clock.now) {
            while {
                let now = clock.pass(1 + others);
                time.should_poll_on(POLLS_PER_CLOCK, clock.poll(others), || now)
            } {}
        } else {
            time.sleeps(&clock.counts, || clock.now);
        }
        clock.now - begun
    }

    fn answer_after(time: &mut PollTime, clock: &mut Clock, micros: u64) {
        let now = clock.pass(micros);
        time.found(clock.poll(0), || now);
    }

    #[test]
    fn a_thread_remembers_for_some_polls_that_something_came_for_a_sleeper() {
        let (mut time, mut clock) = (PollTime::new(false), Clock::new());
        poll_in_vain(&mut time, &mut clock, 0);
        answer_after(&mut time, &mut clock, 1);
        assert!(!clock.counts.has_sleepers(), "the thread has no other pipe");
        time.sleeps(&clock.counts, || clock.now);
        clock.poll(1);
        answer_after(&mut time, &mut clock, 1);
        assert!(clock.counts.has_sleepers());
        let mut other = PollTime::new(false);
        other.should_poll_on(1, clock.poll(SLEEPER_POLLS), || clock.now);
        answer_after(&mut other, &mut clock, 1);
        assert!(!clock.counts.has_sleepers(), "that one was polled for");
    }

    /// Five waits asleep, so many microseconds each, on a thread that drives so many others meanwhile.
    fn sleep_often(time: &mut PollTime, clock: &mut Clock, others: u64, micros: u64) {
        for _ in 0..5 {
            time.sleeps(&clock.counts, || clock.now);
            clock.poll(others);
            answer_after(time, clock, micros);
        }
    }

    #[test]
    fn it_never_polls_longer_than_a_wake_up_takes() {
        let (mut time, mut clock) = (PollTime::new(true), Clock::new());
        assert!(poll_in_vain(&mut time, &mut clock, 0) < POLL_LONGEST + Duration::from_micros(5));
    }

    #[test]
    fn among_others_that_are_busy_it_polls_as_long_as_its_share() {
        let (mut time, mut clock) = (PollTime::new(true), Clock::new());
        let polled = poll_in_vain(&mut time, &mut clock, 99);
        assert!(polled > 90 * POLL_LONGEST, "{polled:?}");
        assert!(polled < 110 * POLL_LONGEST, "{polled:?}");
    }

    /// Both ends may share a core.
    #[test]
    fn a_thread_of_many_that_polls_all_in_vain_stops_as_if_it_had_one_and_pauses() {
        for (paid, preemptions, pauses) in [(0, 1, true), (POLLS_PAY, 1, false), (0, 0, false)] {
            let (mut times, mut clock) = ([(); 9].map(|()| PollTime::new(true)), Clock::new());
            add(&clock.counts.found, paid);
            let begun = clock.now;
            let mut polling: Vec<_> = times.iter_mut().collect();
            while !polling.is_empty() {
                polling.retain_mut(|time| {
                    let now = clock.pass(1);
                    let counts = clock.poll_idle(0);
                    let polls_on = time.should_poll_on(POLLS_PER_CLOCK, counts, || now);
                    if !polls_on {
                        counts.stops_polling(now, || preemptions);
                    }
                    polls_on
                });
            }
            let polled = clock.now - begun;
            assert!(polled < 2 * POLL_LONGEST, "{polled:?}");
            let (mut other, counts) = (PollTime::new(true), clock.poll_idle(0));
            let polls_on = other.should_poll_on(POLLS_PER_CLOCK, counts, || clock.now);
            assert_eq!(polls_on, !pauses);
            for time in &mut times {
                sleep_often(time, &mut clock, 0, 10);
                assert_eq!(time.pays(&clock.counts, || clock.now), !pauses);
            }
            let later = clock.now + PAUSE_LONGEST;
            assert!(times.iter().all(|time| time.pays(&clock.counts, || later)));
            add(&clock.counts.came, PAUSE);
            assert!(
                times
                    .iter()
                    .all(|time| time.pays(&clock.counts, || clock.now))
            );
        }
    }

    /// Where polls are system calls: a thread of few pipes polls them, one of many is told which of them have news.
    #[test]
    fn sockets_are_polled_among_few_others() {
        for (others, pays) in [(3, true), (20, false)] {
            let (mut time, mut clock) = (PollTime::new(false), Clock::new());
            // Polling has paid before.
            assert!(time.should_poll_on(1, clock.poll(0), || clock.now));
            answer_after(&mut time, &mut clock, 1);
            let polled = poll_in_vain(&mut time, &mut clock, others);
            assert_eq!(polled > POLL_LONGEST, pays, "{others}: {polled:?}");
            assert_eq!(time.pays(&clock.counts, || clock.now), pays, "{others}");
            answer_after(&mut time, &mut clock, 1);
            sleep_often(&mut time, &mut clock, others, 10);
            assert_eq!(time.pays(&clock.counts, || clock.now), pays, "{others}");
        }
    }

    /// What another thread has counted says nothing.
    #[test]
    fn a_wait_that_goes_on_on_another_thread_polls_no_longer_than_alone() {
        let (mut time, mut clock) = (PollTime::new(true), Clock::new());
        assert!(time.should_poll_on(POLLS_PER_CLOCK, clock.poll(0), || clock.now));
        clock.counts = ThreadCounts::new();
        add(&clock.counts.polled, 1 << 40);
        add(&clock.counts.driven, 1 << 40);
        let polled = poll_in_vain(&mut time, &mut clock, 0);
        assert!(polled < 2 * POLL_LONGEST, "{polled:?}");
        answer_after(&mut time, &mut clock, 1000);
        assert!(!time.pays(&clock.counts, || clock.now));
    }

    /// So many others were driven in each sleep, one every ten microseconds.
    #[test]
    fn a_thread_that_never_rests_polls_all_of_its_pipes() {
        for (others, pays) in [(100, true), (3, false)] {
            let (mut time, mut clock) = (PollTime::new(true), Clock::new());
            poll_in_vain(&mut time, &mut clock, 0);
            sleep_often(&mut time, &mut clock, others, 1000);
            assert_eq!(time.pays(&clock.counts, || clock.now), pays, "{others}");
        }
    }

    #[test]
    fn two_ends_on_one_core_poll_rarely() {
        // While one polls the other cannot run: polling is always in vain, and sleeps are short.
        let (mut time, mut clock) = (PollTime::new(true), Clock::new());
        let mut polled = Duration::ZERO;
        for _ in 0..10_000 {
            polled += poll_in_vain(&mut time, &mut clock, 0);
            answer_after(&mut time, &mut clock, 5);
        }
        assert!(polled < Duration::from_micros(10_000), "{polled:?}");
    }

    /// An end of a connection whose cores take long to wake up.
    struct End {
        time: PollTime,
        /// Something was written to a peer that was awake, behind something that came.
        peer_was_awake: bool,
    }

    impl End {
        /// One that sleeps; after how many long sleeps it tries to poll.
        fn asleep(tries_after: u32) -> Self {
            let mut time = PollTime::new(true);
            time.limit = Duration::ZERO;
            time.slow_wakes.wanted = tries_after;
            let peer_was_awake = false;
            Self {
                time,
                peer_was_awake,
            }
        }

        /// Waits from `begun` on for what comes at `arrives`. Returns when it acts on it, whether it polled until then, and for how long it
        /// polled in vain, or for longer than that pays.
        fn wait(
            &mut self,
            begun: Instant,
            arrives: Instant,
            wake_up: Duration,
        ) -> (Instant, bool, Duration) {
            let counts = &ThreadCounts::new();
            let mut now = begun;
            let peer_polls =
                std::mem::take(&mut self.peer_was_awake) && self.time.peer_polls(counts, || begun);
            let mut polls = peer_polls || self.time.pays(counts, || begun);
            if !polls {
                self.time.sleeps(counts, || now);
            }
            while polls && now < arrives {
                now += Duration::from_micros(1);
                polls = self.time.should_poll_on(POLLS_PER_CLOCK, counts, || now);
            }
            let acts = if polls { now } else { arrives + wake_up };
            self.time.found(counts, || acts);
            let polled = now - begun;
            let pays = polls && polled <= POLL_LONGEST;
            (acts, polls, if pays { Duration::ZERO } else { polled })
        }
    }

    /// Calls, each a pause after the answer to the last one: these `pauses` again and again. An answer takes `work`. Begins with both ends
    /// asleep, which try to poll after so many long sleeps. Returns how often both polled for what came, and for how long either polled
    /// for nothing.
    fn call(
        calls: usize,
        try_after: [u32; 2],
        [wake_up, work]: [u64; 2],
        pauses: &[u64],
    ) -> (u32, Duration) {
        let [wake_up, work] = [wake_up, work].map(Duration::from_micros);
        let [mut client, mut server] = try_after.map(End::asleep);
        let (mut now, mut hot, mut polled) = (Instant::now(), 0, Duration::ZERO);
        let mut answered = now;
        for pause in pauses.iter().cycle().take(calls) {
            let sent = now + Duration::from_micros(*pause);
            let (came, server_polls, server_polled) = server.wait(answered, sent, wake_up);
            client.peer_was_awake = server_polls;
            answered = came + work;
            let (acts, client_polls, client_polled) = client.wait(sent, answered, wake_up);
            server.peer_was_awake = client_polls;
            hot += u32::from(server_polls && client_polls);
            polled += server_polled + client_polled;
            now = acts;
        }
        (hot, polled)
    }

    #[test]
    fn two_ends_that_sleep_for_nothing_but_each_others_wake_up_begin_to_poll() {
        for try_after in [[8, 8], [8, SLOW_WAKES_MOST], [SLOW_WAKES_MOST, 8]] {
            for wake_up in [20, 60, 120, 250, 430] {
                let (hot, _) = call(100, try_after, [wake_up, 2], &[1]);
                assert!(hot >= 90, "wake-ups take {wake_up} µs: {hot} of 100 calls");
            }
        }
    }

    #[test]
    fn where_calls_or_answers_take_their_time_nobody_polls_for_long() {
        for (times, pauses, most) in [
            ([20, 2], &[300][..], 2),
            ([20, 300], &[300], 2),
            ([20, 300], &[2], 2),
            ([250, 2], &[400], 2),
            ([20, 2], &[900], 2),
            ([20, 2], &[1, 1, 600, 600, 600], 20),
            ([20, 2], &[1, 1, 850], 20),
            // The polls between them pay; each pause is polled for as long as always.
            ([20, 2], &[1, 1, 1, 300], 15),
            (
                [20, 2],
                &[1, 1, 1, 300, 300, 300, 300, 300, 300, 300, 300, 300, 300],
                18,
            ),
        ] {
            let (hot, polled) = call(10_000, [8, 8], times, pauses);
            let mean = polled / 10_000;
            let most = Duration::from_micros(most);
            assert!(mean < most, "{times:?} {pauses:?}: {mean:?}");
            assert!(hot < 100 || pauses.len() > 1, "{times:?} {pauses:?}: {hot}");
        }
    }
}
