//! What calls can do, between processes that end whenever they like: streams, references, calls back.
#![allow(missing_docs, reason = "a test")]

mod back;
mod blocked;
mod forked;
mod references;
mod required;
mod streams;
mod unsent;
mod works;

tensorpipe_tests::child! {
    "server" => works::serve(),
    "reader" => streams::read(),
    "feeder" => streams::feed(),
    "blocker" => blocked::serve(),
    "holder" => references::hold(),
    "called" => back::be_called(),
}
