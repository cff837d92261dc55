//! How long a message waited for its turn, written into it as it leaves: before, nobody knows.

use std::collections::BTreeMap;
use std::time::Instant;

use super::Shared;
use crate::ambient;
use crate::proto::metadata_at;

/// A message that is to tell how long it waited.
pub(in crate::pipe) struct Stamp {
    /// Where in its metadata.
    at: usize,
    since: Instant,
}

/// Those of messages that have not left, by number: there may be as many as wait.
pub(in crate::pipe) type Stamps = BTreeMap<u64, Stamp>;

impl Shared {
    /// Message number `id` is to tell, `at` in its metadata, how long it has waited since then, unless it has left.
    pub(in crate::pipe) fn stamp(&mut self, id: u64, at: usize, since: Instant) {
        // Of one that was taken back before it left nobody else hears.
        while let Some(first) = self.stamps.first_entry()
            && self.state.has_begun(*first.key())
        {
            first.remove();
        }
        if self.ended.is_none() && !self.state.has_begun(id) {
            self.stamps.insert(id, Stamp { at, since });
        }
    }

    /// Message number `message` begins to leave with `frame`, and what follows.
    pub(in crate::pipe) fn put_stamp(&mut self, message: u64, frame: &mut [u8]) {
        if let Some(Stamp { at, since }) = self.stamps.remove(&message) {
            let from = metadata_at(frame).and_then(|metadata| metadata.checked_add(at));
            if let Some(room) = from.and_then(|from| frame.get_mut(from..)?.first_chunk_mut()) {
                let nanos = ambient::since(since).as_nanos();
                *room = u64::try_from(nanos).unwrap_or(u64::MAX).to_le_bytes();
            }
        }
    }
}
