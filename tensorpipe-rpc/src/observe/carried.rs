//! What went each way of a call's streams, counted at one of its ends, for a caller who asked.
//!
//! What leaves is counted by items and bytes; how it travelled only its reader knows.

use std::sync::Mutex;

use tensorpipe::MessageStats;

use crate::lock::lock;

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct StreamTraffic {
    sent: Mutex<Counted>,
    came: Mutex<Counted>,
}

/// One way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(super) items: u64,
    pub(super) bytes: u64,
    pub(super) travelled: MessageStats,
}

impl Counted {
    fn add(&mut self, items: u8, bytes: u64, how: MessageStats) {
        self.items += u64::from(items);
        self.bytes = self.bytes.saturating_add(bytes);
        let travelled = &mut self.travelled;
        travelled.streamed = travelled.streamed.saturating_add(how.streamed);
        travelled.copied = travelled.copied.saturating_add(how.copied);
        travelled.copied_by_writer =
            (travelled.copied_by_writer).saturating_add(how.copied_by_writer);
        travelled.channels |= how.channels;
    }
}

impl StreamTraffic {
    /// A message of items is queued.
    pub(crate) fn sent(&self, items: u8, bytes: u64) {
        lock(&self.sent).add(items, bytes, MessageStats::default());
    }

    /// All of a message of items is here, and came like this.
    pub(crate) fn came(&self, items: u8, bytes: u64, how: MessageStats) {
        lock(&self.came).add(items, bytes, how);
    }

    pub(super) fn all_sent(&self) -> Counted {
        *lock(&self.sent)
    }

    pub(super) fn all_came(&self) -> Counted {
        *lock(&self.came)
    }
}
