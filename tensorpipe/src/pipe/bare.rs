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

/// A message that was put among the bytes to be sent.
pub(super) struct Appended<'a> {
    pub(super) id: u64,
    io: MutexGuard<'a, Io>,
    /// Nothing was there before it.
    alone: bool,
}

/// Puts a message among the bytes to be sent, if nothing is to be sent before it but these.
pub(super) fn append<'a>(
    core: &'a Core,
    shared: &mut Shared,
    metadata: &[u8],
    when: When,
) -> Option<Appended<'a>> {
    if !shared.state.is_next() {
        return None;
    }
    let mut io = core.io.hold()?;
    let alone = io.frames_if_clear().is_some();
    let frames = match when {
        // When it is over is known of one that is alone.
        When::Now { watched: true } if !alone => return None,
        _ => io.frames_with_room()?,
    };
    let before = frames.len();
    let id = shared.state.write_bare(metadata, frames)?;
    let len = frames.len() - before;
    io.push_frames(len);
    if !shared.leaving.is_empty() {
        shared.note_left();
    }
    Some(Appended { id, io, alone })
}

/// Sees to it that it leaves.
pub(super) fn leave(
    core: &Arc<Core>,
    shared: MutexGuard<'_, Shared>,
    appended: Appended<'_>,
    when: When,
) -> Queued {
    let Appended { id, mut io, alone } = appended;
    let left = |over, drive| Queued { id, over, drive };
    let watched = matches!(when, When::Now { watched: true });
    if core.answers_more() && !watched {
        // Whoever calls the handler has a round after this.
        core.io.kick_holding(&io);
        return left(false, false);
    }
    let idle = shared.is_idle();
    drop(shared);
    if let When::Soon = when
        && !io.has_much(core.hot.is_costly())
    {
        // As long as it is owed, nobody has sent since somebody was told.
        let tell = io.owe_send();
        drop(io);
        if tell {
            core.poller.wake_background();
        }
        return left(false, !idle);
    }
    if !alone {
        let sent = io.send_gathered(core);
        return left(false, !sent || !idle);
    }
    let sent = io.send_through(core, id);
    if !sent {
        // Before anybody else can send the rest of it.
        left_in_part(core, id, watched);
    }
    drop(io);
    left(sent, !sent || !idle)
}
