//! Two processes, one of which dies at a named point: the other gets a typed error for everything that is pending and
//! everything that comes later, soon, and keeps nothing.
//!
//! The network cut (a cable, not a process) is the stopped process here: to this side both are silence. A cut made with
//! network namespaces would need root.
#![allow(missing_docs, reason = "a test")]

mod batches;
mod calls;
mod handshakes;
mod open_pipes;
mod scene;
mod signals;

/// What this binary does when a test of it starts it again.
#[test]
fn child() {
    match tensorpipe_tests::role().as_deref() {
        None => {}
        Some("pipe") => scene::play(),
        Some("batches") => batches::play(),
        Some("calls") => calls::play(),
        Some("sigpipe") => signals::play(),
        Some(other) => panic!("no role {other}"),
    }
}
