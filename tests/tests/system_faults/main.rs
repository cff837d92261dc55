//! The system refuses calls or memory, row by row: a child runs a small scene under a fault. Each part of the scene works, or ends in
//! a typed error that says what to do; nothing hangs, and nothing is killed. Other tests stop, fork and kill the peer of a process.
//! `tests/FAULTS.md` has the table.
#![allow(missing_docs, reason = "a test")]

mod faults;
mod group;
mod pairs;
mod rows;
mod scene;
mod under_load;
mod vm;

tensorpipe_tests::child! {
    "scene" => scene::play(),
    "writer" => pairs::play(),
    "reader" => pairs::play_reader(),
    "small" => group::play(),
    "survivor" => under_load::play_survivor(),
    "struck" => under_load::play_struck(),
}
