//! Calls over a bad network: a link of this process between two network namespaces loses, delays, repeats and swallows packets.
//! Needs root and `/dev/net/tun`, and says so if they are missing. `tests/FAULTS.md` has the table.
#![allow(missing_docs, reason = "a test")]

mod calls;
mod link;
mod rows;

/// What this binary does when a test of it starts it again.
#[test]
fn child() {
    match tensorpipe_tests::role().as_deref() {
        None => {}
        Some("server") => calls::play_server(),
        Some("client") => calls::play_client(),
        Some("replicas") => calls::play_replicas(),
        Some(other) => panic!("no role {other}"),
    }
}
