//! loom models: they check the hand-overs between tensorpipe's threads and processes in every order of their steps.
//!
//! The modelled sources are the real files, included by path. They name locks and atomics only through `crate::sync`, or `crate::lock` in
//! `tensorpipe-rpc`. Here both are [our own](sync), made of loom's types. A model is a function that runs a few threads in every possible
//! order and panics if a promise does not hold in one of them. The package's tests call the models.
//!
//! | of | what holds in every order |
//! |---|---|
//! | pipe | no kick, delivery or wake is lost; while polling is on, somebody polls for whoever waits; whoever writes a message that leaves in part hears when the rest has |
//! | ring | bytes arrive whole, and whoever sleeps at it is woken; memory that its writer gives back is touched by nobody else; an end that dies between any two steps leaves the ring valid |
//! | leases | nobody is handed memory to write that another process may still read; all of it comes back, once, also from a borrower that dies between any two steps |
//! | calls | an outcome goes to exactly one, and wakes the one that awaits it; whatever ends a call, nothing of it stays in the table, and a reply that nobody takes is given back once; a call with a stream ends with its last item; a stream's sender that waits for room, or for its end, is woken; so is its reader, also by a message for which there was no room; what streams took of their connection comes back; no release is lost, nor overtaken by a call that its thread makes later |
//! | replicas | a call that waits hears of a replica that comes, and that none ever will; whoever has something for a replica's task wakes it; who has gone takes nobody else with it |
//!
//! A model has no clock and no tokio, so the sources' clock, tuned numbers, runtime and `Notify` have stand-ins here. Flags that hand over
//! are changed by exchanges, not by stores: loom does not know that a store after an exchange is later than it. In a model each lock is
//! either always waited for or always tried.
//!
//! The models need no `--cfg loom`, to which other crates (tokio) would react: they run as ordinary tests.
//!
//! loom explores the C++ memory model, including loads of stale values, with two limits. It treats `SeqCst` as acquire-release, except
//! for fences and for the value that is loaded. Where a model sets a limit, loom tries only that many preemptions of a thread.

// The included sources have unit tests of their own, which need real threads.
#![cfg(not(test))]

// `tensorpipe-rpc` names the pipe's crate by this path.
extern crate self as tensorpipe;

#[allow(dead_code, reason = "no model runs a user's code but wakers")]
#[path = "../../tensorpipe-rpc/src/caught.rs"]
mod caught;
pub mod client;
mod codec {
    /// Stand-in for a message's arguments, which no model reads.
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
    /// Stand-in for a message's header.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Header {
        pub(crate) call: u64,
    }
}
pub mod lease;
/// `tensorpipe-rpc` names [`sync`] by this path.
mod lock {
    pub(crate) use crate::notify::Notify;
    pub(crate) use crate::sync::*;
}
pub mod notify;
mod observe {
    /// Stand-in: the models count nothing.
    pub(crate) mod metrics {
        pub(crate) fn replica_connected() {}
        pub(crate) fn replica_lost() {}
    }

    /// Stand-in: the models do not count what they log.
    pub(crate) fn should_log(_: (&str, &str, &str)) -> bool {
        true
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

/// Stand-in for a message whose bytes are still with its sender.
#[derive(Debug)]
pub struct Incoming;

impl Drop for Incoming {
    /// The real `drop` tells the sender that the message is not wanted.
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

/// Runs `model` in every order of its threads' steps, with at most `preemptions` preemptions.
fn check(preemptions: impl Into<Option<usize>>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions.into();
    builder.check(model);
}
