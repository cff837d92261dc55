//! What the system refuses, row by row: a child runs a small scene under a fault. Each part of the scene works, or ends in a
//! typed error that says what to do; nothing hangs, and nothing is killed. `tests/FAULTS.md` is the table.
#![allow(missing_docs, reason = "a test")]

mod faults;
mod group;
mod pairs;
mod rows;
mod scene;
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
        Some(other) => panic!("no role {other}"),
    }
}
