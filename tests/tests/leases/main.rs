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

tensorpipe_tests::child! {
    "peer" => scene::play(),
    "unmapped" => denied::play_unmapped(),
    "short of files" => denied::play_short_of_files(),
    "server" => calls::play(),
    "reads" => rewritten::serve(),
    "answers" => rewritten::answer(),
}
