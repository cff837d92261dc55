//! A rendezvous inside one process, and between two of its contexts.
#![allow(missing_docs, reason = "a test")]

mod chaos;
#[path = "../common/mod.rs"]
mod common;
mod hostile;
mod local;
mod remote;
mod runtimes;
mod wakers;

pub(crate) use common::{soon, until};
