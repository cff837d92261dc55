//! A pipe as far as its threads hand over to each other.
//!
//! `awaiting`, `bare`, `hand_over`, `hot`, `leaving`, `turn`, `poller` and `waiter` are those of `tensorpipe/src/pipe/`. `core`, `io`, `shared` and
//! `spin` are the smallest pipe around them, `tasks` those who use it.

#[expect(dead_code, unreachable_pub, reason = "applications use it, too")]
#[path = "../../../tensorpipe/src/pipe/awaiting.rs"]
mod awaiting;
#[path = "../../../tensorpipe/src/pipe/bare.rs"]
mod bare;
mod core;
pub mod deliveries;
#[path = "../../../tensorpipe/src/pipe/driver/drive.rs"]
mod hand_over;
#[expect(dead_code, reason = "looks that are system calls are a matter of cost")]
#[path = "../../../tensorpipe/src/pipe/driver/busy_poll.rs"]
mod hot;
mod io;
pub mod kicks;
#[path = "../../../tensorpipe/src/pipe/leaving.rs"]
mod leaving;
pub mod looks;
#[expect(dead_code, reason = "the end of the background task is not modelled")]
#[path = "../../../tensorpipe/src/pipe/driver/wakers.rs"]
mod poller;
mod shared;
mod spin;
mod tasks;
#[path = "../../../tensorpipe/src/pipe/driver/delivery_lock.rs"]
mod turn;
#[expect(dead_code, reason = "all operations wait for the same here")]
#[path = "../../../tensorpipe/src/pipe/driver/waiter.rs"]
mod waiter;
pub mod wakes;
