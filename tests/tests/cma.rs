//! Channel `cma` between two processes: ordinary memory is read where the writer has it, whole or not at all, and where the
//! system does not allow that, tensors arrive all the same and the route says why.
#![allow(missing_docs, reason = "a test")]

#[path = "cma/denied.rs"]
mod denied;
#[path = "cma/halfway.rs"]
mod halfway;
#[path = "cma/liars.rs"]
mod liars;
#[path = "cma/moving.rs"]
mod moving;
#[path = "cma/scene.rs"]
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
