//! What was tuned: each with its unit, the figure that it came from, and the command that measured it.
//!
//! *Measured* names a figure and, where the repository tells it, the command and its section in `benches/RESULTS.md`. *Chosen*
//! means that no measurement was kept.

use std::time::Duration;

// Driving: when it is others' turn.

/// Rounds of work in one poll of a task. Chosen.
pub(super) const ROUNDS: usize = 16;

/// How long a forgotten future can delay the others of its pipe. Chosen. While something happens, a tick costs one wake; an
/// idle pipe has none, since it took 0.5 to 1.25 % of a core. Measured: `tp-bench idle --system pipe@shm,rpc@shm --seconds 2
/// --pin`.
pub(in crate::pipe) const TICK: Duration = Duration::from_millis(50);

// Busy-polling: how long, and for how many.

/// The longest time to poll. As long as a wake-up at both ends, so that polling in vain costs at most as much again. From
/// measured wake-ups of some 20 µs at each end: `tp-bench limits` (round trips spinning and asleep).
pub(super) const POLL_LONGEST: Duration = Duration::from_micros(50);

/// Below this it is not worth beginning. Chosen.
pub(super) const POLL_SHORTEST: Duration = Duration::from_micros(3);

/// A sleep up to this long would have been better spent polling. Chosen: twice [`POLL_LONGEST`].
pub(super) const SHORT_SLEEP: Duration = Duration::from_micros(100);

/// Short sleeps before polling is tried again, at most: it doubles each time that polling was in vain. Chosen.
pub(super) const SHORT_SLEEPS_MOST: u32 = 256;

/// Polls in one poll of a task. A runtime takes longer to come back to a task than they take. Chosen.
pub(super) const POLLS_PER_WAKE: u32 = 16;

/// Polls between two looks at the clock. Chosen.
pub(super) const POLLS_PER_CLOCK: u32 = 32;

/// Operations, or messages at once, above which polls that are system calls stop: each would find one message, where a
/// sleeper is woken for many. Measured: 64 calls in flight over tcp, 7.7 µs each by polling, 1.7 asleep; command not kept.
pub(super) const COSTLY_POLL_MESSAGES: u32 = 4;

/// Operations above which one polls for all, without a system call: that each of them did once would cost more than it
/// finds. Measured: 64 calls in flight over shm, 1.17 instead of 1.26 µs each; command not kept.
pub(super) const SOLE_POLLER_WAITERS: usize = 4;

// Coalescing: the more are under way, the more of them share a read or a write.

/// Operations above which several messages are waited for, to be read together: a poll finds less for each. Chosen.
pub(super) const RECEIVE_BATCH_WAITERS: usize = 16;
