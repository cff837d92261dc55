//! The state of the model's pipe that its short lock guards.

use std::collections::VecDeque;
use std::task::Waker;

use super::waiter::Interest;

#[derive(Default)]
pub(super) struct Shared {
    /// Operations to be woken when something has changed.
    pub(super) waiting: Vec<(u64, Interest, Waker)>,
    /// Messages that have come in.
    pub(super) received: u32,
    /// Those of them that are still to be given to the handler, if there is one.
    pub(super) deliveries: VecDeque<u32>,
}
