//! A pipe, reduced to the hand-overs between its threads.
//!
//! `driver` and `outbound/dispatch` are the real files of `tensorpipe/src/pipe/`. `core`, `io` and `shared` form a minimal pipe around
//! them, and `tasks` has the tasks that use it.

mod core;
pub mod deliveries;
#[expect(
    unreachable_pub,
    dead_code,
    reason = "there an engine names what the models do not"
)]
#[path = "../../../tensorpipe/src/pipe/outbound/dispatch.rs"]
mod dispatch;
mod driver;
mod io;
pub mod kicks;
pub mod polls;
mod shared;
mod tasks;
pub mod wakes;
