//! Channel `lease` between two processes: what is lent is not copied, stays what it is for as long as it is held, and comes
//! back, however its holder ends.
#![allow(missing_docs, reason = "a test")]

#[path = "leases/calls.rs"]
mod calls;
#[path = "leases/claims.rs"]
mod claims;
#[path = "leases/copies.rs"]
mod copies;
#[path = "leases/denied.rs"]
mod denied;
#[path = "leases/ends.rs"]
mod ends;
#[path = "leases/liars.rs"]
mod liars;
#[path = "leases/rewritten.rs"]
mod rewritten;
#[path = "leases/scene.rs"]
mod scene;
#[path = "leases/sharing.rs"]
mod sharing;

/// What this binary does when a test of it starts it again.
#[test]
fn child() {
    match tensorpipe_tests::role().as_deref() {
        None => {}
        Some("peer") => scene::play(),
        Some("unmapped") => denied::play_unmapped(),
        Some("server") => calls::play(),
        Some("reads") => rewritten::serve(),
        Some("answers") => rewritten::answer(),
        Some(other) => panic!("no role {other}"),
    }
}
