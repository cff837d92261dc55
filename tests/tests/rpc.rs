//! What calls can do, between processes that end whenever they like: streams, references, calls back.
#![allow(missing_docs, reason = "a test")]

#[path = "rpc/back.rs"]
mod back;
#[path = "rpc/blocked.rs"]
mod blocked;
#[path = "rpc/forked.rs"]
mod forked;
#[path = "rpc/overload.rs"]
mod overload;
#[path = "rpc/references.rs"]
mod references;
#[path = "rpc/required.rs"]
mod required;
#[path = "rpc/streams.rs"]
mod streams;
#[path = "rpc/unsent.rs"]
mod unsent;
#[path = "rpc/works.rs"]
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
