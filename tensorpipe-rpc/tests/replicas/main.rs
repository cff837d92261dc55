//! Clients that survive their servers: inside one process, where each server's runs are counted and each link can be cut.
#![allow(missing_docs, reason = "a test")]

mod chaos;
#[path = "../common/mod.rs"]
mod common;
mod connecting;
mod ends;
mod figures;
mod lab;
mod moving;
mod named;
mod proxy;
mod references;
mod runtimes;
mod streams;
mod suitable;
mod turns;
mod unwell;
