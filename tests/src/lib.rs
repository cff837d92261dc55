//! Code that the tests of this package share: a second process that a test drives, its resource usage, an allocator that counts, and test
//! doubles for channels and transports.

mod by_hand;
mod child;
mod cost;
mod counting;
mod double;
mod filter;
mod peer;
mod table;
mod waiting;

pub use by_hand::answers;
pub use child::{Child, End, NOBODY, can_start_by, role, say};
pub use cost::{
    descriptors, forget_peak, is_sanitized, make_code_resident, peak_resident, resident,
};
pub use counting::Counting;
pub use double::{Double, Over, Says};
pub use filter::{Fate, Made, Use, allow_only, forbid, watch};
pub use peer::{Peer, check, over, pair};
pub use table::{Judged, judge, judge_at_once, tidy};
pub use waiting::{alone, eventually, runtime, soon};
