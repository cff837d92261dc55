//! Observability: figures of single calls between two processes, for each way that their tensors can take, and trace spans that
//! connect across processes.
#![allow(missing_docs, reason = "a test")]

mod copies;
mod failures;
mod pipes;
mod scene;
mod spans;
mod streams;
mod times;

/// What this binary does when a test of it starts it again.
#[test]
fn child() {
    match tensorpipe_tests::role().as_deref() {
        None => {}
        Some("server") => scene::play(),
        Some("relay") => spans::play(),
        Some(other) => panic!("no role {other}"),
    }
}
