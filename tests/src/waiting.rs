//! Time bounds for tests. They are generous, because the machine may be busy; no test measures anything by them.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A bound on each step of a test.
const SOON: Duration = Duration::from_secs(30);

/// A bound on a whole test.
const WHOLE: Duration = Duration::from_secs(100);

/// A runtime of two threads.
///
/// # Panics
/// When the system refuses.
pub fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build();
    runtime.expect("a runtime")
}

/// Runs a test while no other one of this binary runs: mappings and descriptors are counted by process.
///
/// # Panics
/// When the test does, or hangs.
pub fn alone(test: impl AsyncFnOnce()) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    runtime().block_on(async {
        let whole = tokio::time::timeout(WHOLE, test()).await;
        whole.expect("the test hangs");
    });
}

/// Awaits `work`.
///
/// # Panics
/// When `work` takes more than half a minute. The message names `what`.
pub async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    let result = tokio::time::timeout(SOON, work).await;
    result.unwrap_or_else(|_| panic!("{what}: nothing for {SOON:?}"))
}

/// Polls `reached` until it is true.
///
/// # Panics
/// As [`soon`].
pub async fn eventually(what: &str, mut reached: impl FnMut() -> bool) {
    let wait = async {
        while !reached() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(what, wait).await;
}
