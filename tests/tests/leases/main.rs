//! Channel `lease` between two processes: what is lent is not copied, stays what it is for as long as it is held, and comes
//! back, however its holder ends.
#![allow(missing_docs, reason = "a test")]

mod calls;
mod claims;
mod copies;
mod denied;
mod ends;
mod liars;
mod rewritten;
mod scene;
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
