//! The call engine, one topic a file. Every test runs over tcp and over memory.
#![allow(missing_docs, reason = "a test")]

mod arguments;
mod batch;
mod busy_pipe;
mod callbacks;
mod cancel;
#[path = "../common/mod.rs"]
mod common;
mod context;
#[path = "../conversation/mod.rs"]
mod conversation;
mod deadlines;
mod drops;
mod fairness;
mod handlers;
mod hostile_peers;
mod lab;
mod limits;
mod locked;
mod raw;
mod remote;
mod runtimes;
mod services;
mod shutdown;
mod small_peers;
mod streams;
mod stress;
mod unsuitable;
mod values;
mod wrong_use;
