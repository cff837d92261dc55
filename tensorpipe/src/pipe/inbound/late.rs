//! Answers that wait for the next message, since whoever reads most likely writes soon. Where it computes instead, they leave
//! without it.
//!
//! Invariant: while one waits, a task is there that comes for it.

use tokio::time::sleep;

use crate::pipe::core::Core;
use crate::pipe::driver::tuning::DELAYED_ANSWER;
use crate::pipe::shared::Shared;
use crate::proto::OpId;
use crate::sync::{Arc, Weak, lock};

/// Says this to the peer's lane, with the next message if there is one soon.
pub(in crate::pipe) fn answer_late(
    core: &Arc<Core>,
    shared: &mut Shared,
    op: OpId,
    body: &'static [u8],
) {
    shared.state.channel_late(op, body);
    shared.late.more = true;
    if !std::mem::replace(&mut shared.late.is_watched, true) {
        core.runtime.spawn(come_for_it(Arc::downgrade(core)));
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
