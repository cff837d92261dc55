//! What the tests of this package share: a second process that a test drives, and what it costs.

mod child;
mod cost;
mod peer;
mod waiting;

pub use child::{Child, role, say};
pub use cost::{descriptors, resident};
pub use peer::{Peer, check};
pub use waiting::{alone, eventually, runtime, soon};
