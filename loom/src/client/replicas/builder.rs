//! What the table asks of a set's options.

use super::balance::Balance;

#[derive(Default)]
pub(super) struct Options {
    pub(super) balance: Balance,
    pub(super) unanswered: u32,
}
