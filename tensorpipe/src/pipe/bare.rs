//! Messages of metadata alone: their bytes go straight among those to be sent.
//!
//! They leave at once, with the next turn of whoever drives, or, where the handler writes and more calls of it follow,
//! together with what it writes then. Invariant: whoever leaves bytes behind has somebody come for them: the background task,
//! or whoever calls the handler.

use super::core::Core;
use super::io::Io;
use super::shared::Shared;
use super::write::{Queued, When, left_in_part};
use crate::sync::{Arc, MutexGuard};

/// Puts a message among the bytes to be sent, if nothing is to be sent before it. Returns its number.
pub(super) fn append<'a>(
    core: &'a Core,
    shared: &mut Shared,
    metadata: &[u8],
    when: When,
) -> Option<(u64, MutexGuard<'a, Io>)> {
    if !shared.state.is_next() {
        return None;
    }
    let mut io = core.io.hold()?;
    // What leaves later leaves behind what waits.
    let behind = matches!(when, When::Soon) || core.answers_more();
    let watched = matches!(when, When::Now { watched: true });
    let frames = match behind && !watched {
        true => io.frames_with_room()?,
        false => io.frames_if_clear()?,
    };
    let before = frames.len();
    let id = shared.state.write_bare(metadata, frames)?;
    let len = frames.len() - before;
    io.push_frames(len);
    if !shared.leaving.is_empty() {
        shared.note_left();
    }
    Some((id, io))
}

/// Sees to it that message `id`, which was put there, leaves.
pub(super) fn leave(
    core: &Arc<Core>,
    shared: MutexGuard<'_, Shared>,
    mut io: MutexGuard<'_, Io>,
    id: u64,
    when: When,
) -> Queued {
    let left = |over, drive| Queued { id, over, drive };
    if core.answers_more() && !matches!(when, When::Now { watched: true }) {
        // Whoever calls the handler has a round after this.
        core.io.kick_holding(&io);
        return left(false, false);
    }
    let idle = shared.is_idle();
    drop(shared);
    if let When::Soon = when {
        if io.has_much() && !core.hot.is_costly() {
            return left(false, !io.send_gathered(core) || !idle);
        }
        let tell = io.owe_send();
        drop(io);
        if tell {
            core.poller.wake_background();
        }
        return left(false, !idle);
    }
    let sent = io.send_through(core, id);
    drop(io);
    if !sent {
        left_in_part(core, id, matches!(when, When::Now { watched: true }));
    }
    left(sent, !sent || !idle)
}
