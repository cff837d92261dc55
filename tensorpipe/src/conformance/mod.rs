//! Tests of the traits' contracts, for backends of this crate and of others (feature `conformance`).
//!
//! [`transport`] checks a [`Transport`](crate::transports::Transport), [`channel`] a [`Channel`](crate::channels::Channel) through real
//! pipes, [`pipe`] a whole [`Context`](crate::Context), [`device`] an [`Allocator`](crate::device::Allocator) and its memory.
//! [`TestDevices`] are devices without hardware, to test your own channels with. A scenario is an async function that takes the suite's
//! `Subject` and panics if the contract is broken. Every received byte is compared, and every wait has a bound, so that a hanging backend
//! fails.
//!
//! One line makes a `#[tokio::test]` of each scenario (the crate needs tokio with `macros`, `rt` and `time`):
//!
//! ```ignore
//! tensorpipe::transport_conformance!(mine, || Arc::new(MyTransport::new()), "address");
//! tensorpipe::channel_conformance!(my_channel, || Arc::new(MyChannel::new()));
//! tensorpipe::device_conformance!(my_device, MyFixture::new);
//! tensorpipe::pipe_conformance!(both, || my_context(), "mine://address");
//! ```
//!
//! A program can also run a suite: `conformance::transport::all(make).await` returns the names of the passed scenarios.

pub mod channel;
pub mod device;
pub mod pipe;
mod test_device;
pub mod transport;

pub use test_device::{Copied, Hold, Pinned, TestDevices, TestQueue};

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use tokio::sync::oneshot;

/// A bound on every wait of a scenario. Far more than a correct backend takes on a busy machine.
const BOUND: Duration = Duration::from_secs(30);

/// Bytes that do not repeat, different for each seed.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Panics if `found` is not `wanted`. Names the first byte that differs instead of printing megabytes.
#[track_caller]
pub fn assert_same(found: &[u8], wanted: &[u8], what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}: length");
    if found != wanted {
        let at = found.iter().zip(wanted).position(|(a, b)| a != b);
        panic!(
            "{what}: {} bytes differ from byte {} on",
            wanted.len(),
            at.unwrap_or_default()
        );
    }
}

/// Waits for `work`, but not for ever.
async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(BOUND, work).await {
        Ok(result) => result,
        Err(_) => panic!("{what}: nothing for {BOUND:?}"),
    }
}

/// Runs `work`, which may block for ever, and waits for it, but not for ever. It has a thread of its own, because a runtime that ends waits
/// for its blocking tasks.
async fn blocking<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = oneshot::channel();
    let runtime = tokio::runtime::Handle::current();
    std::thread::spawn(move || {
        // The work may be another crate's, which may look for a runtime.
        let _runtime = runtime.enter();
        drop(done.send(catch_unwind(AssertUnwindSafe(work))))
    });
    match within(what, is_done).await {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => resume_unwind(panic),
        Err(_) => panic!("{what}: its thread has ended"),
    }
}

/// Waits until `reached` holds, but not for ever.
async fn eventually(what: &str, mut reached: impl FnMut() -> bool) {
    let wait = async {
        while !reached() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(what, wait).await;
}

/// `mod $module` with a test for each scenario of the transport suite.
///
/// `$transport` is a closure that makes an `Arc<dyn Transport>`, `$address` an address that it can listen at. Each test evaluates both
/// anew: make up an address each time if only one listener can have it.
#[macro_export]
macro_rules! transport_conformance {
    ($module:ident, $transport:expr, $address:expr) => {
        mod $module {
            #[allow(unused_imports, reason = "for what the arguments name")]
            use super::*;
            $crate::__transport_scenarios! { __suite_tests (transport,
            $crate::conformance::transport::Subject::new(($transport)(), $address)) }
        }
    };
}

/// `mod $module` with a test for each scenario of the channel suite.
///
/// `$make` is a closure that makes an `Arc<dyn Channel>` for main memory. For another device, write `subject = Subject::on(..)`, with an
/// expression for a [`channel::Subject`](crate::conformance::channel::Subject), which each test evaluates anew. The example `custom_device`
/// has one.
#[macro_export]
macro_rules! channel_conformance {
    ($module:ident, subject = $subject:expr) => {
        mod $module {
            #[allow(unused_imports, reason = "for what the arguments name")]
            use super::*;
            $crate::__channel_scenarios! { __suite_tests (channel, $subject) }
        }
    };
    ($module:ident, $make:expr) => {
        $crate::channel_conformance!(
            $module,
            subject = $crate::conformance::channel::Subject::cpu($make)
        );
    };
}

/// `mod $module` with a test for each scenario of the device suite.
///
/// `$make` is a closure that makes a [`Fixture`](crate::conformance::device::Fixture); each test calls it anew.
#[macro_export]
macro_rules! device_conformance {
    ($module:ident, $make:expr) => {
        mod $module {
            #[allow(unused_imports, reason = "for what the arguments name")]
            use super::*;
            $crate::__device_scenarios! { __suite_tests (device,
            $crate::conformance::device::Subject::new(($make)())) }
        }
    };
}

/// `mod $module` with a test for each scenario of the pipe suite.
///
/// `$context` is a closure that makes a [`Context`](crate::Context), `$url` a URL that it can listen at. Each test evaluates both anew.
#[macro_export]
macro_rules! pipe_conformance {
    ($module:ident, $context:expr, $url:expr) => {
        mod $module {
            #[allow(unused_imports, reason = "for what the arguments name")]
            use super::*;
            $crate::__pipe_scenarios! { __suite_tests (pipe,
            $crate::conformance::pipe::Subject::new($context, $url)) }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __suite_tests {
    (($suite:ident, $subject:expr) $($scenario:ident)*) => {
        $(#[tokio::test]
        async fn $scenario() {
            $crate::conformance::$suite::$scenario($subject).await;
        })*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __suite_names {
    (() $($scenario:ident)*) => { &[$(stringify!($scenario)),*] };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __suite_run {
    (($make:expr) $($scenario:ident)*) => {{
        $(Box::pin($scenario(($make)())).await;)*
        SCENARIOS
    }};
}
