//! The hand-overs between tensorpipe's threads and processes, checked in every order of their steps.
//!
//! The sources are the real ones, included by their path. They name locks and atomics only through `crate::sync`, or `crate::lock` in
//! `tensorpipe-rpc`; both are [ours](sync) here, made of loom's. A model is a function that runs a few threads again and again, in another order each time, and panics if its
//! promise does not hold in one of them. The package's tests call the models.
//!
//! | of | what holds in every order |
//! |---|---|
//! | pipe | no kick, delivery or wake is lost; while polling is on, somebody polls for whoever waits; whoever writes a message that leaves in part hears when the rest has |
//! | ring | bytes arrive whole, and whoever sleeps at it is woken; memory that its writer gives back is touched by nobody else; an end that dies between any two steps leaves the ring valid |
//! | leases | nobody is handed memory to write that another process may still read; all of it comes back, once, also from a borrower that dies between any two steps |
//! | calls | an outcome goes to exactly one, and wakes whoever awaits it; a stream's sender that waits for room, or for its end, is woken; so is its reader, also by a message for which there was no room; what streams took of their connection comes back |
//! | replicas | a call that waits hears of a replica that comes, and that none ever will; whoever has something for a replica's task wakes it; who has gone takes nobody else with it |
//!
//! The sources' clock, tuned numbers, runtime and `Notify` have stand-ins here: a model has no clock and no tokio. Flags that hand over are
//! changed by exchanges, not by stores: loom does not know that a store behind an exchange is later than it. In a model a lock is
//! either waited for or tried.
//!
//! No `--cfg loom` is needed, which other crates (tokio) would react to: the models are tests like all others.
//!
//! loom explores the C++ memory model, values that are not yet seen included, with two limits. `SeqCst` counts as acquire-release,
//! except for fences and for the value that is loaded. Where a model says so, only so many preemptions of a thread are tried.

// The included sources have tests of their own, which are for threads of the system.
#![cfg(not(test))]

// As `tensorpipe-rpc` names the pipe.
extern crate self as tensorpipe;

pub mod client;
mod codec {
    /// What came in a message: nobody looks at it here.
    #[derive(Debug)]
    pub(crate) struct Arguments;

    #[derive(Debug)]
    pub(crate) struct DecodeError;

    impl Arguments {
        pub(crate) fn item<T>(&self, _last: bool) -> Result<T, DecodeError> {
            Err(DecodeError)
        }
    }
}
mod death;
mod device;
mod error;
mod header {
    /// What a message says of itself: its number here.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Header(pub(crate) u64);
}
pub mod lease;
/// As `tensorpipe-rpc` names it.
mod lock {
    pub(crate) use crate::notify::Notify;
    pub(crate) use crate::sync::*;
}
pub mod notify;
mod observe {
    /// Nobody counts here.
    pub(crate) mod metrics {
        pub(crate) fn replica_connected() {}
        pub(crate) fn replica_lost() {}
    }
}
pub mod pipe;
pub mod ring;
pub mod rpc;
mod schema {
    /// A service.
    pub(crate) struct Schema;
}
pub mod sync;
mod sys;

/// A message that its sender still has.
#[derive(Debug)]
pub struct Incoming;

impl Drop for Incoming {
    /// The real one says that it is not wanted.
    fn drop(&mut self) {}
}

/// Makes each of these models a test.
#[macro_export]
macro_rules! models {
    ($($module:ident: $($model:ident),+;)+) => {
        $($(
            #[test]
            fn $model() {
                $module::$model();
            }
        )+)+
    };
}

/// Runs `model` in every order of its threads' steps, with at most so many preemptions.
fn check(preemptions: impl Into<Option<usize>>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions.into();
    builder.check(model);
}
