//! Answers that wait for the next message, since whoever reads most likely writes soon. Where it computes instead, they leave
//! without it.
//!
//! Invariant: while one waits, a task is there that comes for it.

use tokio::time::sleep;

use crate::pipe::core::Core;
use crate::pipe::driver::tuning::DELAYED_ACK;
use crate::pipe::shared::Shared;
use crate::proto::OpId;
use crate::sync::{Arc, Weak, lock};

/// Says this to the peer's lane, with the next message if there is one soon.
pub(in crate::pipe) fn delay_ack(
    core: &Arc<Core>,
    shared: &mut Shared,
    op: OpId,
    body: &'static [u8],
) {
    shared.state.channel_late(op, body);
    shared.delayed_acks.more = true;
    if !std::mem::replace(&mut shared.delayed_acks.is_watched, true) {
        core.runtime.spawn(come_for_it(Arc::downgrade(core)));
    }
}

async fn come_for_it(core: Weak<Core>) {
    loop {
        sleep(DELAYED_ACK).await;
        let Some(core) = core.upgrade() else { return };
        let waits = {
            let mut shared = lock(&core.shared);
            if !std::mem::take(&mut shared.delayed_acks.more) {
                shared.delayed_acks.is_watched = false;
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
