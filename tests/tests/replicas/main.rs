//! Clients of several server processes, which die or stop. A call moves to another server where that is safe; otherwise it ends with an
//! error that is true about what has run.
#![allow(missing_docs, reason = "a test")]

mod callers;
mod deaths;
mod scene;
mod stuck;

tensorpipe_tests::child! {
    "server" => scene::play(),
    "client" => callers::call(),
}
