//! Services on the simulated network: links delay, stall and are cut, and peers die. Hours pass in milliseconds, and the seed determines
//! each run.
#![allow(missing_docs, reason = "a test")]

mod clock;
mod cuts;
mod deadlines;
mod deaths;
mod full;
mod hangs;
mod partitions;
mod questions;
mod real_time;
mod rendezvous;
mod scene;
mod seeds;
mod stories;
