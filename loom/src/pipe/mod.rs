//! A pipe as far as its threads hand over to each other.
//!
//! `driver`, `bare` and `leaving` are those of `tensorpipe/src/pipe/`. `core`, `io` and `shared` are the smallest pipe around
//! them, `tasks` those who use it.

#[path = "../../../tensorpipe/src/pipe/bare.rs"]
mod bare;
mod core;
pub mod deliveries;
mod driver;
mod io;
pub mod kicks;
#[path = "../../../tensorpipe/src/pipe/leaving.rs"]
mod leaving;
pub mod polls;
mod shared;
mod tasks;
pub mod wakes;
