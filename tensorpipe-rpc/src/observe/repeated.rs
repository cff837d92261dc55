//! Limits repeated log lines: an overloaded server, or a peer that breaks the protocol, would otherwise fill a log.
//!
//! It logs the first lines of a kind, and counts further ones within ten seconds. The next logged line says how many they were.

use std::collections::HashMap;
use std::sync::Mutex;

use tensorpipe::fork::PerProcess;
use tensorpipe::log_limit::LogLimit;

use crate::caught::ignore_panic;
use crate::lock::lock;

/// An event, how it happened, and its method. All are names from this process's own code, so there are few.
pub(crate) type Kind = (&'static str, &'static str, &'static str);

/// Whether to log this event; otherwise it is only counted.
pub(crate) fn should_log(kind: Kind) -> bool {
    static LIMITS: PerProcess<Mutex<HashMap<Kind, LogLimit>>> = PerProcess::new();
    let admitted = lock(LIMITS.get(Mutex::default))
        .entry(kind)
        .or_default()
        .admits();
    if let Some(Some(more)) = admitted {
        let (what, how, method) = kind;
        ignore_panic(|| {
            tracing::warn!(target: "tensorpipe_rpc", how, method, "{what}: and {more} more before, which were not told");
        });
    }
    admitted.is_some()
}
