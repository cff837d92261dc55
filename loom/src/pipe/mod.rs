//! A pipe as far as its threads hand over to each other.
//!
//! `driver` and `outbound/dispatch` are those of `tensorpipe/src/pipe/`. `core`, `io` and `shared` are the smallest pipe around them, `tasks`
//! those who use it.

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
