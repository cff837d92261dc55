//! The state of the model's pipe that its short lock guards.

use std::collections::{BTreeMap, VecDeque};

use super::driver::Waiting;

#[derive(Default)]
pub(super) struct Shared {
    /// Operations to be woken when something has changed.
    pub(super) waiting: Waiting,
    /// How many of them stood there so far.
    pub(super) waited: u64,
    /// Messages that have come in.
    pub(super) received: u32,
    /// Received messages that the handler, if there is one, has not got yet.
    pub(super) deliveries: VecDeque<u32>,
    pub(super) state: State,
    /// Writes whose outcome may still be asked for, and their outcomes.
    pub(super) writes: BTreeMap<u64, Option<Result<(), Error>>>,
    /// Why the pipe ended; never set in a model.
    pub(super) ended: Option<Error>,
}

/// Stand-in for the error with which a pipe ends.
#[derive(Clone, Debug)]
pub(super) struct Error;

impl Shared {
    pub(super) fn is_idle(&self) -> bool {
        true
    }

    /// Whether a channel's lane has work: never here.
    pub(super) fn has_work(&self) -> bool {
        false
    }

    /// The rest of a message has left.
    pub(super) fn written(&mut self, message: u64) {
        let in_part = self.state.in_part.take_if(|in_part| *in_part == message);
        if let (Some(_), Some(watched)) = (in_part, self.writes.get_mut(&message)) {
            *watched = Some(Ok(()));
        }
    }
}

/// Stand-in for the protocol's state.
#[derive(Default)]
pub(super) struct State {
    next: u64,
    /// The message that has left in part.
    pub(super) in_part: Option<u64>,
}

impl State {
    pub(super) fn is_next(&self) -> bool {
        true
    }

    /// The number of the next message.
    pub(super) fn write(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    pub(super) fn sent_in_part(&mut self, message: u64) {
        self.in_part = Some(message);
    }
}
