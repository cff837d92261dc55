//! What the tests of this package share: a second process that a test drives, what it costs, an allocator that counts, and a channel that lies.

mod child;
mod cost;
mod counting;
mod filter;
mod liar;
mod peer;
mod table;
mod waiting;

pub use child::{Child, End, NOBODY, can_start_by, role, say};
pub use cost::{descriptors, forget_peak, make_code_resident, peak_resident, resident};
pub use counting::Counting;
pub use filter::{Fate, Made, Use, allow_only, forbid, watch};
pub use liar::Liar;
pub use peer::{Peer, check};
pub use table::{Judged, judge, judge_at_once, tidy};
pub use waiting::{alone, eventually, runtime, soon};
