//! Services on the simulated network: what calls meet on links that delay, stall and are cut, and with peers that die. Hours pass in
//! milliseconds, and each run is the one that its seed gives.
#![allow(missing_docs, reason = "a test")]

mod clock;
mod cuts;
mod deadlines;
mod deaths;
mod partitions;
mod rendezvous;
mod scene;
mod seeds;
