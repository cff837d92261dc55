//! How long a message waited for its turn, written into it as it leaves: before, nobody knows.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::pipe::Pipe;
use crate::pipe::shared::Shared;
use crate::proto::metadata_at;
use crate::sync::lock;

/// A message that is to tell how long it waited.
pub(in crate::pipe) struct Stamp {
    /// Where in its metadata.
    at: usize,
    since: Instant,
}

/// Those of messages that have not left, by number: there may be as many as wait.
pub(in crate::pipe) type Stamps = BTreeMap<u64, Stamp>;

/// How many bytes it takes.
const LEN: usize = 8;

impl Pipe {
    /// If message number `id` of this side's has not begun to leave, has the time since `since` written into its metadata when it does:
    /// at `at`, 8 bytes, in nanoseconds, the lowest first. What is there stays for one that has left, and where there is no room.
    /// It begins to leave as for [`Pipe::when_leaving`].
    pub fn stamp_when_leaving(&self, id: u64, at: usize, since: Instant) {
        let mut shared = lock(&self.core().shared);
        let Shared {
            state,
            stamps,
            ended,
            ..
        } = &mut *shared;
        // Of one that was taken back before it left nobody else hears.
        while let Some(first) = stamps.first_entry()
            && state.has_left(*first.key())
        {
            first.remove();
        }
        if ended.is_none() && !state.has_left(id) {
            stamps.insert(id, Stamp { at, since });
        }
    }
}

/// Message number `message` begins to leave with `frame`, and what follows.
pub(in crate::pipe) fn stamp(stamps: &mut Stamps, message: u64, frame: &mut [u8]) {
    if let Some(Stamp { at, since }) = stamps.remove(&message) {
        put(frame, at, since.elapsed());
    }
}

fn put(frame: &mut [u8], at: usize, waited: Duration) {
    let from = metadata_at(frame).and_then(|metadata| metadata.checked_add(at));
    if let Some(room) = from.and_then(|from| frame.get_mut(from..)?.first_chunk_mut::<LEN>()) {
        let nanos = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        *room = nanos.to_le_bytes();
    }
}
