//! Writes into a message how long it was queued. This happens as the message leaves: before, the time is not known.

use std::collections::BTreeMap;
use std::time::Instant;

use super::Shared;
use crate::ambient;
use crate::proto::metadata_at;

/// A message that reports how long it was queued.
pub(in crate::pipe) struct Stamp {
    /// The offset in its metadata.
    at: usize,
    since: Instant,
}

/// Stamps of messages that have not left, by message number; as many as there are queued messages.
pub(in crate::pipe) type Stamps = BTreeMap<u64, Stamp>;

impl Shared {
    /// Has message `id` report the time since `since`, at offset `at` of its metadata. Does nothing if the message has begun to leave.
    pub(in crate::pipe) fn stamp(&mut self, id: u64, at: usize, since: Instant) {
        // A message that was cancelled before it left never reaches `put_stamp`: its stamp is dropped here.
        while let Some(first) = self.stamps.first_entry()
            && self.state.has_begun(*first.key())
        {
            first.remove();
        }
        if self.ended.is_none() && !self.state.has_begun(id) {
            self.stamps.insert(id, Stamp { at, since });
        }
    }

    /// Message `message` begins to leave: `frame` is its frame and the bytes behind it.
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
