//! The identity of the peer: contexts with a token, without one, and with a different one.
#![allow(missing_docs, reason = "a test")]

mod calls;
mod impostors;
mod processes;
mod sessions;
mod tls;
mod tokens;

tensorpipe_tests::child! {
    "keeper" => processes::play_keeper(),
    "visitor" => processes::play_visitor(),
}
