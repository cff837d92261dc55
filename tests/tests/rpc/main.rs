//! What calls can do, between processes that end whenever they like: streams, references, calls back.
#![allow(missing_docs, reason = "a test")]

mod back;
mod blocked;
mod forked;
mod references;
mod required;
mod streams;
mod unsent;
mod works;

/// What this binary does when a test of it starts it again.
#[test]
fn child() {
    match tensorpipe_tests::role().as_deref() {
        None => {}
        Some("server") => works::serve(),
        Some("reader") => streams::read(),
        Some("feeder") => streams::feed(),
        Some("blocker") => blocked::serve(),
        Some("holder") => references::hold(),
        Some("called") => back::be_called(),
        Some(other) => panic!("no role {other}"),
    }
}
