//! A rendezvous inside one process, and between two of its contexts.
#![allow(missing_docs, reason = "a test")]

mod chaos;
mod hostile;
mod local;
#[path = "../numbers/mod.rs"]
mod numbers;
mod remote;

use std::time::Duration;

/// What `work` gives, on a busy machine too.
pub(crate) async fn soon<T>(work: impl Future<Output = T>) -> T {
    let bounded = tokio::time::timeout(Duration::from_secs(20), work).await;
    bounded.expect("within 20 s")
}

/// Looks again and again.
pub(crate) async fn until(what: impl Fn() -> bool) {
    soon(async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}
