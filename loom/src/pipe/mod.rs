//! A pipe as far as its threads hand over to each other.
//!
//! `hand_over`, `turn`, `poller` and `waiter` are those of `tensorpipe/src/pipe/`. `core` is the smallest pipe around them.

mod core;
pub mod deliveries;
#[path = "../../../tensorpipe/src/pipe/hand_over.rs"]
mod hand_over;
pub mod kicks;
#[expect(dead_code, reason = "the end of the background task is not modelled")]
#[path = "../../../tensorpipe/src/pipe/poller.rs"]
mod poller;
mod shared;
#[path = "../../../tensorpipe/src/pipe/turn.rs"]
mod turn;
#[expect(dead_code, reason = "all operations wait for the same here")]
#[path = "../../../tensorpipe/src/pipe/waiter.rs"]
mod waiter;
pub mod wakes;
