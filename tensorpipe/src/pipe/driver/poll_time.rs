//! How long to busy-poll before sleeping.
//!
//! Waking a sleeping core takes some 20 µs at each end, a poll a few nanoseconds. So whoever waits polls for a while and
//! then sleeps; a wait that is over while polling saves both wake-ups. Whether that is to be expected is learnt: polling
//! in vain makes the next time shorter, down to none, and sleeps that turn out to be short bring it back. Where both
//! ends share a core, or calls are far apart, nobody polls for long.
//!
//! The clock is an argument: tests tell the time, and the models of `tensorpipe-loom` have a file in place of this one.

use std::time::{Duration, Instant};

use super::tuning::{POLL_LONGEST, POLL_SHORTEST, POLLS_PER_CLOCK, SHORT_SLEEP, SHORT_SLEEPS_MOST};

#[derive(Debug)]
pub(super) struct PollTime {
    limit: Duration,
    /// A poll has found something since `limit` was raised.
    has_paid: bool,
    short_sleeps: u32,
    short_sleeps_wanted: u32,
    wait: Wait,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Not,
    /// Since when, as soon as the clock was read.
    Polling(u32, Option<Instant>),
    Sleeping(Instant),
}

impl Default for PollTime {
    fn default() -> Self {
        Self {
            limit: POLL_LONGEST,
            has_paid: false,
            short_sleeps: 0,
            short_sleeps_wanted: 2,
            wait: Wait::Not,
        }
    }
}

impl PollTime {
    /// Whether a wait that begins now should begin with polling.
    pub(super) fn pays(&self) -> bool {
        self.limit > Duration::ZERO
    }

    /// So many polls have found nothing. Returns whether to poll on; else it is time to sleep.
    pub(super) fn in_vain(&mut self, polls: u32, now: impl FnOnce() -> Instant) -> bool {
        let (before, since) = match self.wait {
            Wait::Polling(before, since) => (before, since),
            _ => (0, None),
        };
        let so_far = before + polls;
        if so_far < POLLS_PER_CLOCK && self.pays() {
            self.wait = Wait::Polling(so_far, since);
            return true;
        }
        let now = now();
        let since = since.unwrap_or(now);
        if now.saturating_duration_since(since) < self.limit {
            self.wait = Wait::Polling(0, Some(since));
            return true;
        }
        self.limit /= 2;
        if !self.has_paid || self.limit < POLL_SHORTEST {
            self.limit = Duration::ZERO;
        }
        self.wait = Wait::Sleeping(since);
        false
    }

    /// A wait begins, or goes on, asleep.
    pub(super) fn sleeps(&mut self, now: impl FnOnce() -> Instant) {
        self.wait = match self.wait {
            Wait::Not => Wait::Sleeping(now()),
            Wait::Polling(_, since) => Wait::Sleeping(since.unwrap_or_else(now)),
            sleeping @ Wait::Sleeping(_) => sleeping,
        };
    }

    /// Something has come.
    pub(super) fn found(&mut self, now: impl FnOnce() -> Instant) {
        match self.wait {
            Wait::Not => {}
            Wait::Polling(..) => {
                self.limit = POLL_LONGEST;
                self.has_paid = true;
                self.short_sleeps_wanted = 2;
            }
            Wait::Sleeping(since) => {
                if self.limit < POLL_LONGEST {
                    self.slept(now().saturating_duration_since(since));
                }
            }
        }
        self.wait = Wait::Not;
    }

    fn slept(&mut self, slept: Duration) {
        if slept > SHORT_SLEEP {
            self.short_sleeps = 0;
            return;
        }
        self.short_sleeps += 1;
        if self.short_sleeps >= self.short_sleeps_wanted {
            self.short_sleeps = 0;
            self.short_sleeps_wanted = (self.short_sleeps_wanted * 2).min(SHORT_SLEEPS_MOST);
            self.limit = POLL_LONGEST;
            self.has_paid = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Clock(Instant);

    impl Clock {
        fn pass(&mut self, micros: u64) -> Instant {
            self.0 += Duration::from_micros(micros);
            self.0
        }
    }

    /// A wait without an answer while polling: how long it polled.
    fn poll_in_vain(time: &mut PollTime, clock: &mut Clock) -> Duration {
        let begun = clock.0;
        if time.pays() {
            while time.in_vain(POLLS_PER_CLOCK, || clock.pass(1)) {}
        } else {
            time.sleeps(|| clock.0);
        }
        clock.0 - begun
    }

    fn answer_after(time: &mut PollTime, clock: &mut Clock, micros: u64) {
        let now = clock.pass(micros);
        time.found(|| now);
    }

    #[test]
    fn answers_that_come_soon_keep_it_polling() {
        let (mut time, clock) = (PollTime::default(), Clock(Instant::now()));
        for _ in 0..1000 {
            assert!(time.pays());
            assert!(time.in_vain(5, || clock.0));
            time.found(|| clock.0);
        }
    }

    #[test]
    fn it_never_polls_longer_than_a_wake_up_takes() {
        let (mut time, mut clock) = (PollTime::default(), Clock(Instant::now()));
        assert!(poll_in_vain(&mut time, &mut clock) < POLL_LONGEST + Duration::from_micros(5));
    }

    #[test]
    fn where_answers_are_far_apart_it_sleeps_at_once() {
        let (mut time, mut clock) = (PollTime::default(), Clock(Instant::now()));
        let mut polled = Duration::ZERO;
        for _ in 0..1000 {
            polled += poll_in_vain(&mut time, &mut clock);
            answer_after(&mut time, &mut clock, 1000);
        }
        assert!(polled < Duration::from_micros(200), "{polled:?}");
        assert!(!time.pays());
    }

    #[test]
    fn a_burst_brings_it_back() {
        let (mut time, mut clock) = (PollTime::default(), Clock(Instant::now()));
        poll_in_vain(&mut time, &mut clock);
        answer_after(&mut time, &mut clock, 1000);
        let mut sleeps = 0;
        while !time.pays() {
            time.sleeps(|| clock.0);
            answer_after(&mut time, &mut clock, 40);
            sleeps += 1;
        }
        assert!(sleeps <= 4, "{sleeps}");
    }

    #[test]
    fn two_ends_on_one_core_poll_rarely() {
        // While one polls the other cannot run: polling is always in vain, and sleeps are short.
        let (mut time, mut clock) = (PollTime::default(), Clock(Instant::now()));
        let mut polled = Duration::ZERO;
        for _ in 0..10_000 {
            polled += poll_in_vain(&mut time, &mut clock);
            answer_after(&mut time, &mut clock, 5);
        }
        assert!(polled < Duration::from_micros(10_000), "{polled:?}");
    }
}
