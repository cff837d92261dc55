//! Observability: figures of single calls between two processes, for each way that their tensors can take, and trace spans that
//! connect across processes.
#![allow(missing_docs, reason = "a test")]

mod copies;
mod failures;
mod scene;
mod spans;
mod streams;
mod times;

tensorpipe_tests::child! {
    "server" => scene::play(),
    "relay" => spans::play(),
}
