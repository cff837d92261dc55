//! A rendezvous of two and three processes: values cross by name. A process that dies, is late, gives up, or sends too much costs
//! the others nothing but time.
#![allow(missing_docs, reason = "a test")]

mod bounds;
mod gone;
mod passing;
mod scene;

/// What this binary does when a test of it starts it again.
#[test]
fn child() {
    match tensorpipe_tests::role().as_deref() {
        None => {}
        Some("stage") => scene::play(),
        Some(other) => panic!("no role {other}"),
    }
}
