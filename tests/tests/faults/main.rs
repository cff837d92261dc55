//! Two processes, one of which dies at a named point: the other gets a typed error for everything that is pending and
//! everything that comes later, soon, and keeps nothing.
//!
//! The network cut (a cable, not a process) is the stopped process here: to this side both are silence. A cut made with
//! network namespaces would need root.
#![allow(missing_docs, reason = "a test")]

mod batches;
mod calls;
mod handshakes;
mod open_pipes;
mod scene;
mod signals;

tensorpipe_tests::child! {
    "pipe" => scene::play(),
    "batches" => batches::play(),
    "calls" => calls::play(),
    "sigpipe" => signals::play(),
}
