//! When a message leaves, and what is known of it then: shared by the short ways (`bare.rs`, `write.rs`).

use super::core::Core;
use super::io::Io;
use crate::sync::{MutexGuard, lock};

/// When a message should leave.
#[derive(Clone, Copy, Debug)]
pub(super) enum When {
    /// At once, if nothing is before it. Whether anybody wants to know how it ends.
    Now { watched: bool },
    /// With the next turn of whoever drives.
    Soon,
}

/// What became of a message.
pub(super) struct Queued {
    pub(super) id: u64,
    /// Every byte is handed over.
    pub(super) over: bool,
    /// It waits for the caller, or somebody else, to drive.
    pub(super) drive: bool,
}

/// Of a message only a part has left: it is not over, and if `watched` somebody is going to ask how it ends. Said by whoever
/// still has the connection: once others can send the rest, nobody would hear that it is over.
pub(super) fn left_in_part(core: &Core, _: &MutexGuard<'_, Io>, id: u64, watched: bool) {
    let mut shared = lock(&core.shared);
    let ended = shared.ended.clone();
    if ended.is_none() {
        shared.state.left_in_part(id);
        core.has_unwritten();
    }
    if watched {
        shared.writes.insert(id, ended.map(Err));
    }
}
