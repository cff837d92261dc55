//! What the tests of this package share: a second process that a test drives, and what it costs.

mod child;
mod cost;
mod filter;
mod peer;
mod waiting;

pub use child::{Child, NOBODY, can_start_by, role, say};
pub use cost::{descriptors, resident};
pub use filter::{Fate, allow_only, forbid};
pub use peer::{Peer, check};
pub use waiting::{alone, eventually, runtime, soon};
