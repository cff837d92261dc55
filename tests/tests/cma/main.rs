//! Channel `cma` between two processes: the reader copies ordinary memory directly out of the writer's process, whole or not at all. If the
//! system does not allow that, tensors arrive another way and the route says why.
#![allow(missing_docs, reason = "a test")]

mod denied;
mod halfway;
mod liars;
mod moving;
mod scene;

/// What this binary does when a test of it starts it again.
#[test]
fn child() {
    match tensorpipe_tests::role().as_deref() {
        None => {}
        Some("peer") => scene::play(),
        Some("reader") => halfway::play(),
        Some("asker") => denied::play_asker(),
        Some(other) => panic!("no role {other}"),
    }
}
