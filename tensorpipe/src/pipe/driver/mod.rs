//! Who drives a pipe, who busy-polls it, and who sleeps.
//!
//! *Driving* is sending and receiving: one thread at a time does it, and nobody waits for that thread. *Busy-polling* is
//! asking the connection again and again instead of sleeping. At any moment a pipe is in one of these states:
//!
//! | state | who acts next |
//! |---|---|
//! | `Asleep` | the connection, which asks to be woken |
//! | `Woken` | one task: the operation registered last, else the background task |
//! | `Driving` | the thread that has the work; others leave a kick |
//! | `Polling` | one task, which is scheduled to poll again; the connection wakes nobody |
//! | `Vacant` | the next operation, else the background task's tick: polling is on, but no waiting task polls |
//!
//! | from | event | to | code |
//! |---|---|---|---|
//! | `Asleep` | the connection wakes | `Woken` | `Wakers::notify` |
//! | `Woken` | the task is polled | `Driving` | `Wakers::driving`, `Driver::rounds` |
//! | `Woken` | its operation is dropped first | `Woken`, the next task | `Wakers::deregister` |
//! | `Woken` | it does nothing for a `TICK`: a forgotten future | `Driving`, by the background task | `Driver::tick` |
//! | `Asleep` | an operation begins, and polling pays | `Driving`, with polling on | `Waiter::poll`, `Driver::start_polling` |
//! | `Asleep` | an operation begins | `Asleep`: whoever queued something has driven for it; `Driving` if the last round has left something | `Driver::drive_to_wait` |
//! | `Driving` | another thread has work | `Driving`, one more round | `Driver::kick` |
//! | `Driving` | it has done a slice, or has given the handler one, and there is more | `Woken`, behind sockets and timers; other tasks of the thread only kick, `LEFT_ALONE` times at most | `Driver::yield_and_wake` |
//! | `Driving` | something has come while a main future waits, on a runtime of one thread | the same | `Driver::yield_and_wake` |
//! | `Driving` | nothing to do, polling is off | `Asleep` | `Driver::rounds` |
//! | `Driving` | the same, but what was written found the peer awake | `Polling`, by whoever waits | `Driver::poll_again` |
//! | `Asleep` | a task writes, and finds the peer awake | `Woken`, the background task, which polls | `Driver::is_to_poll_for_peer` |
//! | `Driving` | nothing to do, polling is on | `Polling`, by whoever waits | `Driver::poll_again` |
//! | `Polling` | a poll finds something | `Driving` | `Driver::poll` |
//! | `Polling` | another thread has work | `Driving`, by the poller | `Driver::poll_work` |
//! | `Polling` | a newer operation waits | `Polling`, by that one | `Driver::poll_again` |
//! | `Polling` | in vain for too long, as all of the thread's pipes, or crowded; or, with several workers, bytes come from other sockets, too | `Asleep` | `Driver::stop_polling` |
//! | `Polling` | the poller leaves, others wait | `Woken`, the background task, once for all that leave | `Driver::deregister` |
//! | `Polling` | the poller leaves, nobody waits | `Vacant`; `Asleep` where a handler listens | `Driver::deregister` |
//! | `Polling` | the poller's task does something else, nobody else waits | `Vacant` | `Driver::pause` |
//! | `Polling` | no poll within a `TICK`: a forgotten future | `Asleep` | `Driver::tick` |
//! | `Vacant` | an operation begins | `Polling` | `Waiter::poll` |
//! | `Polling` | one of many operations begins, whose messages left together | `Polling`: the poller drives for it | `Waiter::count` |
//! | `Vacant` | a `TICK` passes | `Asleep` | `Driver::tick` |
//!
//! The states are spread over a few words, so that no step waits for a lock that is held across a system call:
//! - [`Driver`]: the work behind a lock that is only tried, and the kick (`Driving`).
//! - [`Wakers`]: whom a wake reaches, and whether somebody was woken and has not driven (`Woken`).
//! - [`BusyPoll`]: one word that says who polls (`Polling`, `Vacant`, or neither).
//! - [`DeliveryLock`](delivery_lock::DeliveryLock): who calls the handler; whoever drives delivers.
//! - [`Waiter`]: one operation's part in all of this.
//!
//! `coalesce.rs` decides which messages wait for others, to be written or read together with them.
//!
//! Every flag that hands something over is changed by atomic exchanges. An exchange reads the latest value, and its thread sees everything
//! that was done before that value was set. `tensorpipe-loom` includes these files and checks each in every order of the threads' steps.
//!
//! Nothing here names the rest of the pipe: `Core` implements [`Driven`]. Its background task and its heartbeat stay outside,
//! since most of what they do is the pipe's clock and its end, for which a trait would only repeat `Core`.
//!
//! Why busy-polling: to wake a sleeping core costs some 20 µs at each end, a poll some nanoseconds. If the connection can be polled, one of
//! the waiting tasks polls it cooperatively, then sleeps. Over tcp a poll is a system call, so it polls only while few operations are under
//! way, and its thread drives few pipes. While a task polls, no further round follows one that has only read messages for the handler: the
//! poller finds what comes next. Nor does one on a runtime of one thread where a read is a system call: the round itself asks to be woken.
//!
//! A runtime of one thread polls the future of `block_on`, the *main future*, together with its sockets and timers: at the latest after
//! some sixty tasks. Polling tasks that find each other's answers are always ready, and would delay it that long. So when something comes
//! while a main future waits, the driver yields to it.

mod busy_poll;
mod coalesce;
mod delivery_lock;
mod drive;
mod poll_time;
pub(super) mod runtime;
mod thread_counts;
pub(super) mod tuning;
mod waiter;
mod wakers;

pub(super) use self::busy_poll::{BusyPoll, Readiness};
pub(super) use self::coalesce::{DelayedAcks, Reads, Sends, expects_batch};
pub(super) use self::delivery_lock::Rest;
pub(super) use self::drive::{Driven, Driver, Round};
pub use self::runtime::leave_handlers;
pub(super) use self::waiter::{Holds, Interest, Waiter, Waiting, take_waiting};
pub(super) use self::wakers::{Wakers, wake, wake_all};
