//! What fails once a call is told once: a server that is overloaded, or a peer that sends nonsense, would fill a log otherwise.
//!
//! The first of a kind is told. Those that follow within ten seconds are counted, and the next one that is told says how many they were.

use std::collections::HashMap;
use std::sync::Mutex;

use tensorpipe::fork::PerProcess;
use tensorpipe::log_limit::LogLimit;

use crate::lock::lock;

/// What happened, how, and to which method: names that this process was built with, so that there are few of them.
pub(crate) type Kind = (&'static str, &'static str, &'static str);

/// Whether to tell of this one; else it is counted.
pub(crate) fn should_log(kind: Kind) -> bool {
    static LIMITS: PerProcess<Mutex<HashMap<Kind, LogLimit>>> = PerProcess::new();
    let admitted = lock(LIMITS.get(Mutex::default))
        .entry(kind)
        .or_default()
        .admits();
    if let Some(Some(more)) = admitted {
        let (what, how, method) = kind;
        tracing::warn!(target: "tensorpipe_rpc", how, method, "{what}: and {more} more before, which were not told");
    }
    admitted.is_some()
}
