//! What happened, visible: figures of single calls between two processes, over each way that their tensors can take; spans that
//! belong together across processes.
#![allow(missing_docs, reason = "a test")]

#[path = "visible/copies.rs"]
mod copies;
#[path = "visible/pipes.rs"]
mod pipes;
#[path = "visible/scene.rs"]
mod scene;
#[path = "visible/spans.rs"]
mod spans;
#[path = "visible/streams.rs"]
mod streams;
#[path = "visible/times.rs"]
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
