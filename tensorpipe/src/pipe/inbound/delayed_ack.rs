//! The task that sends delayed acknowledgements of channels if no message takes them along: see `driver/coalesce.rs`.
//!
//! Invariant: while an acknowledgement waits, the task runs.

use tokio::time::sleep;

use crate::pipe::core::Core;
use crate::pipe::driver::tuning::DELAYED_ACK;
use crate::pipe::shared::Shared;
use crate::proto::OpId;
use crate::sync::{Arc, Weak, lock};

/// Sends `body` to the peer's lane, with the next message if there is one soon.
pub(in crate::pipe) fn delay_ack(
    core: &Arc<Core>,
    shared: &mut Shared,
    op: OpId,
    body: &'static [u8],
) {
    shared.state.channel_delayed(op, body);
    if shared.delayed_acks.add() {
        core.runtime.spawn(flush_delayed_acks(Arc::downgrade(core)));
    }
}

async fn flush_delayed_acks(core: Weak<Core>) {
    loop {
        sleep(DELAYED_ACK).await;
        let Some(core) = core.upgrade() else { return };
        let waits = {
            let mut shared = lock(&core.shared);
            if !shared.delayed_acks.tick() {
                return;
            }
            let waits = shared.state.has_delayed();
            shared.state.send_delayed();
            waits
        };
        if waits {
            core.send_out();
        }
    }
}
