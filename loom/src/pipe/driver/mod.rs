//! The real files of `tensorpipe/src/pipe/driver/`, with stand-ins for `poll_time`, `thread_counts`, `tuning` and `runtime`: a model
//! has no clock, needs few steps, and has no tokio.

#[expect(dead_code, reason = "how many come together is a matter of cost")]
#[path = "../../../../tensorpipe/src/pipe/driver/busy_poll.rs"]
mod busy_poll;
#[expect(dead_code, reason = "every thread of a model calls the handler itself")]
#[path = "../../../../tensorpipe/src/pipe/driver/delivery_lock.rs"]
mod delivery_lock;
#[path = "../../../../tensorpipe/src/pipe/driver/drive.rs"]
mod drive;
pub(super) mod poll_time;
pub(super) mod runtime;
mod thread_counts;
mod tuning;
#[expect(dead_code, reason = "all operations wait for the same here")]
#[path = "../../../../tensorpipe/src/pipe/driver/waiter.rs"]
mod waiter;
#[expect(dead_code, reason = "the end of the background task is not modelled")]
#[path = "../../../../tensorpipe/src/pipe/driver/wakers.rs"]
mod wakers;

/// How many messages to hold back is a matter of cost. Here: as many as possible.
pub(super) fn expects_batch(under_way: usize, _: u32) -> bool {
    under_way > 0
}

pub(super) use self::busy_poll::{BusyPoll, Readiness};
pub(super) use self::delivery_lock::{DeliveryLock, Rest};
pub(super) use self::drive::{Driven, Driver, Round};
pub(super) use self::waiter::{Interest, Waiter, Waiting, take_waiting};
