//! Channel `lease` between two processes: lent memory is not copied, stays unchanged while the borrower holds it, and comes
//! back however the borrower ends.
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
        Some("short of files") => denied::play_short_of_files(),
        Some("server") => calls::play(),
        Some("reads") => rewritten::serve(),
        Some("answers") => rewritten::answer(),
        Some(other) => panic!("no role {other}"),
    }
}
