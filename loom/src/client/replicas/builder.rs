//! Stand-in for a set's options, with only the fields that the table reads.

use super::balance::Balance;

#[derive(Default)]
pub(super) struct Options {
    pub(super) balance: Balance,
    pub(super) unanswered: u32,
}
