//! What the tests of this package share: a second process that a test drives, and what it costs.

mod child;
mod cost;

pub use child::{Child, role, say};
pub use cost::{descriptors, resident};
