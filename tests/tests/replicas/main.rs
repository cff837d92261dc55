//! Clients of several server processes, which die or stop. A call moves to another server where that is safe; otherwise it ends with an
//! error that is true about what has run.
#![allow(missing_docs, reason = "a test")]

mod callers;
mod deaths;
mod scene;
mod stuck;

/// What this binary does when a test of it starts it again.
#[test]
fn child() {
    match tensorpipe_tests::role().as_deref() {
        None => {}
        Some("server") => scene::play(),
        Some("client") => callers::call(),
        Some(other) => panic!("no role {other}"),
    }
}
