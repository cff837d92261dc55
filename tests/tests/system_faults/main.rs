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

/// What this binary does when a test of it starts it again.
#[test]
fn child() {
    match tensorpipe_tests::role().as_deref() {
        None => {}
        Some("scene") => scene::play(),
        Some("writer") => pairs::play(),
        Some("reader") => pairs::play_reader(),
        Some("small") => group::play(),
        Some("survivor") => under_load::play_survivor(),
        Some("struck") => under_load::play_struck(),
        Some(other) => panic!("no role {other}"),
    }
}
