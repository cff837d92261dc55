//! Bounds on waits, and what must be held no more.

use std::io::ErrorKind;
use std::time::Duration;

use futures_util::future::join_all;
use tensorpipe::{Context, Error, ambient};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::millis;

/// An act ends at most so long after its time.
pub(super) const LATE: Duration = Duration::from_millis(10);

/// On top of a bound, where the clock is not virtual: for busy machines.
pub(super) fn slack() -> Duration {
    match ambient::is_virtual(&Handle::current()) {
        true => Duration::ZERO,
        false => Duration::from_secs(20),
    }
}

/// Waits until it is so.
pub(super) async fn until(what: &str, within: Duration, so: impl Fn() -> bool) {
    let within = within + slack();
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < within, "{what} after {within:?}");
        sleep(millis(1)).await;
    }
}

pub(super) async fn in_time<T>(what: &str, within: Duration, work: impl Future<Output = T>) -> T {
    let within = within + slack();
    let ended = timeout(within, work).await;
    ended.unwrap_or_else(|_| panic!("{what} goes on after {within:?}"))
}

/// Listens, also where the address is still in use. In real time another process may have it for a moment: one that is being killed, or one
/// that was forked from this one and does not run its program yet.
pub(super) async fn listens<T>(
    mut listen: impl AsyncFnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let begun = Instant::now();
    loop {
        match listen().await {
            Err(Error::System(error))
                if error.source.kind() == ErrorKind::AddrInUse && begun.elapsed() < slack() =>
            {
                sleep(millis(10)).await;
            }
            listened => return listened,
        }
    }
}

/// Does `work` while things happen, which never end.
pub(super) async fn struck<T>(
    strikes: impl Future<Output = ()>,
    work: impl Future<Output = T>,
) -> T {
    tokio::select! {
        biased;
        done = work => done,
        () = strikes => unreachable!("without end"),
    }
}

/// Waits for tasks; panics as they do.
pub(super) async fn all_end(tasks: Vec<JoinHandle<()>>) {
    for ended in join_all(tasks).await {
        ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
    }
}

/// Neither tensors nor loans nor a part of the budget. Copies for others stay for some seconds.
pub(super) async fn holds_nothing(context: &Context, within: Duration) {
    let held = || {
        let stats = context.pool().stats();
        stats.outstanding_bytes + stats.lendable.outstanding_bytes + stats.lendable.lent_bytes
    };
    until("tensors are held", within, || held() == 0).await;
    let taken = || {
        let stats = context.receive_budget();
        stats.taken + stats.waiting + stats.decoded + stats.announced
    };
    until("a budget is taken", within, || taken() == 0).await;
}
