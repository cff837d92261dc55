//! How long to look again and again before sleeping.
//!
//! Waking a sleeping core takes some 20 µs at each end, a look a few nanoseconds. So whoever waits looks for a while and
//! then sleeps; a wait that is over while looking saves both wake-ups. Whether that is to be expected is learnt: looking
//! in vain makes the next time shorter, down to none, and sleeps that turn out to be short bring it back. Where both
//! ends share a core, or calls are far apart, nobody looks for long.

use std::time::{Duration, Instant};

/// The longest time to look. As long as a wake-up at both ends, so that looking in vain costs at most as much again.
const LONGEST: Duration = Duration::from_micros(50);

/// Below this it is not worth beginning.
const SHORTEST: Duration = Duration::from_micros(3);

/// A sleep up to this long would have been better spent looking.
const SHORT_SLEEP: Duration = Duration::from_micros(100);

/// Looks in one poll. A runtime takes longer to come back to a task than they take.
pub(in crate::pipe) const LOOKS_IN_A_POLL: u32 = 16;

/// Looks between two looks at the clock.
const LOOKS: u32 = 32;

/// Short sleeps before looking is tried again, at most: it doubles each time that it was in vain.
const MOST_SHORT_SLEEPS: u32 = 256;

#[derive(Debug)]
pub(crate) struct Spin {
    limit: Duration,
    /// Looks that have found something since `limit` was raised.
    has_paid: bool,
    short_sleeps: u32,
    short_sleeps_wanted: u32,
    wait: Wait,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Not,
    /// Since when, as soon as the clock was looked at.
    Looking(u32, Option<Instant>),
    Sleeping(Instant),
}

impl Default for Spin {
    fn default() -> Self {
        Self {
            limit: LONGEST,
            has_paid: false,
            short_sleeps: 0,
            short_sleeps_wanted: 2,
            wait: Wait::Not,
        }
    }
}

impl Spin {
    /// Whether a wait that begins now should begin with looking.
    pub(crate) fn pays(&self) -> bool {
        self.limit > Duration::ZERO
    }

    /// `looks` looks have found nothing. Returns whether to look on; else it is time to sleep.
    pub(crate) fn in_vain(&mut self, looks: u32, now: impl FnOnce() -> Instant) -> bool {
        let (before, since) = match self.wait {
            Wait::Looking(before, since) => (before, since),
            _ => (0, None),
        };
        let so_far = before + looks;
        if so_far < LOOKS && self.pays() {
            self.wait = Wait::Looking(so_far, since);
            return true;
        }
        let now = now();
        let since = since.unwrap_or(now);
        if now.saturating_duration_since(since) < self.limit {
            self.wait = Wait::Looking(0, Some(since));
            return true;
        }
        self.limit /= 2;
        if !self.has_paid || self.limit < SHORTEST {
            self.limit = Duration::ZERO;
        }
        self.wait = Wait::Sleeping(since);
        false
    }

    /// A wait begins, or goes on, asleep.
    pub(crate) fn sleeps(&mut self, now: impl FnOnce() -> Instant) {
        self.wait = match self.wait {
            Wait::Not => Wait::Sleeping(now()),
            Wait::Looking(_, since) => Wait::Sleeping(since.unwrap_or_else(now)),
            sleeping @ Wait::Sleeping(_) => sleeping,
        };
    }

    /// Something has come.
    pub(crate) fn found(&mut self, now: impl FnOnce() -> Instant) {
        match self.wait {
            Wait::Not => {}
            Wait::Looking(..) => {
                self.limit = LONGEST;
                self.has_paid = true;
                self.short_sleeps_wanted = 2;
            }
            Wait::Sleeping(since) => {
                if self.limit < LONGEST {
                    self.slept(now().saturating_duration_since(since));
                }
            }
        }
        self.wait = Wait::Not;
    }

    fn slept(&mut self, time: Duration) {
        if time > SHORT_SLEEP {
            self.short_sleeps = 0;
            return;
        }
        self.short_sleeps += 1;
        if self.short_sleeps >= self.short_sleeps_wanted {
            self.short_sleeps = 0;
            self.short_sleeps_wanted = (self.short_sleeps_wanted * 2).min(MOST_SHORT_SLEEPS);
            self.limit = LONGEST;
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

    /// A wait without an answer while looking: how long it looked.
    fn look_in_vain(spin: &mut Spin, clock: &mut Clock) -> Duration {
        let begun = clock.0;
        if spin.pays() {
            while spin.in_vain(LOOKS, || clock.pass(1)) {}
        } else {
            spin.sleeps(|| clock.0);
        }
        clock.0 - begun
    }

    fn answer_after(spin: &mut Spin, clock: &mut Clock, micros: u64) {
        let now = clock.pass(micros);
        spin.found(|| now);
    }

    #[test]
    fn answers_that_come_soon_keep_it_looking() {
        let (mut spin, clock) = (Spin::default(), Clock(Instant::now()));
        for _ in 0..1000 {
            assert!(spin.pays());
            assert!(spin.in_vain(5, || clock.0));
            spin.found(|| clock.0);
        }
    }

    #[test]
    fn it_never_looks_longer_than_a_wake_up_takes() {
        let (mut spin, mut clock) = (Spin::default(), Clock(Instant::now()));
        assert!(look_in_vain(&mut spin, &mut clock) < LONGEST + Duration::from_micros(5));
    }

    #[test]
    fn where_answers_are_far_apart_it_sleeps_at_once() {
        let (mut spin, mut clock) = (Spin::default(), Clock(Instant::now()));
        let mut looked = Duration::ZERO;
        for _ in 0..1000 {
            looked += look_in_vain(&mut spin, &mut clock);
            answer_after(&mut spin, &mut clock, 1000);
        }
        assert!(looked < Duration::from_micros(200), "{looked:?}");
        assert!(!spin.pays());
    }

    #[test]
    fn a_burst_brings_it_back() {
        let (mut spin, mut clock) = (Spin::default(), Clock(Instant::now()));
        look_in_vain(&mut spin, &mut clock);
        answer_after(&mut spin, &mut clock, 1000);
        let mut sleeps = 0;
        while !spin.pays() {
            spin.sleeps(|| clock.0);
            answer_after(&mut spin, &mut clock, 40);
            sleeps += 1;
        }
        assert!(sleeps <= 4, "{sleeps}");
    }

    #[test]
    fn two_ends_on_one_core_look_rarely() {
        // While one looks the other cannot run: looking is always in vain, and sleeps are short.
        let (mut spin, mut clock) = (Spin::default(), Clock(Instant::now()));
        let mut looked = Duration::ZERO;
        for _ in 0..10_000 {
            looked += look_in_vain(&mut spin, &mut clock);
            answer_after(&mut spin, &mut clock, 5);
        }
        assert!(looked < Duration::from_micros(10_000), "{looked:?}");
    }
}
