//! The identity of the peer: contexts with a token, without one, and with a different one.
#![allow(missing_docs, reason = "a test")]

mod calls;
mod impostors;
mod processes;
mod sessions;
mod tls;
mod tokens;

/// What this binary does when a test of it starts it again.
#[test]
fn child() {
    match tensorpipe_tests::role().as_deref() {
        None => {}
        Some("keeper") => processes::play_keeper(),
        Some("visitor") => processes::play_visitor(),
        Some(other) => panic!("no role {other}"),
    }
}
