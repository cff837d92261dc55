//! Answers that wait for the next message, since whoever reads most likely writes soon. Where it computes instead, they leave
//! without it.
//!
//! Invariant: while one waits, a task is there that comes for it.

use tokio::time::sleep;

use super::core::Core;
use super::driver::tuning::DELAYED_ANSWER;
use super::shared::Shared;
use crate::proto::OpId;
use crate::sync::{Arc, Weak, lock};

/// What is known of that task.
#[derive(Debug, Default)]
pub(super) struct Late {
    is_watched: bool,
    /// One waits that did not when it was there last.
    more: bool,
}

#[cfg(test)]
impl Late {
    pub(super) fn is_watched(&self) -> bool {
        self.is_watched
    }
}

impl Shared {
    /// Says this to the peer's lane, with the next message if there is one soon.
    pub(super) fn answer_late(&mut self, core: &Arc<Core>, op: OpId, body: &'static [u8]) {
        self.state.channel_late(op, body);
        self.late.more = true;
        if !std::mem::replace(&mut self.late.is_watched, true) {
            core.runtime.spawn(come_for_it(Arc::downgrade(core)));
        }
    }
}

async fn come_for_it(core: Weak<Core>) {
    loop {
        sleep(DELAYED_ANSWER).await;
        let Some(core) = core.upgrade() else { return };
        let waits = {
            let mut shared = lock(&core.shared);
            if !std::mem::take(&mut shared.late.more) {
                shared.late.is_watched = false;
                return;
            }
            let waits = shared.state.has_late();
            shared.state.send_late();
            waits
        };
        if waits {
            core.send_out();
        }
    }
}
