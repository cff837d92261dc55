//! Services on the simulated network: what calls meet on links that delay, stall and are cut, and with peers that die. Hours pass in
//! milliseconds, and each run is the one that its seed gives.
#![allow(missing_docs, reason = "a test")]

#[path = "simulated/clock.rs"]
mod clock;
#[path = "simulated/cuts.rs"]
mod cuts;
#[path = "simulated/deaths.rs"]
mod deaths;
#[path = "simulated/partitions.rs"]
mod partitions;
#[path = "simulated/rendezvous.rs"]
mod rendezvous;
#[path = "simulated/scene.rs"]
mod scene;
#[path = "simulated/seeds.rs"]
mod seeds;
