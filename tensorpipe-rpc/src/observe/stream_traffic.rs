//! The traffic of a call's streams in each direction, counted at one end, if the caller asked.
//!
//! The sender counts items and bytes. Only the reader knows how they travelled.

use std::sync::Mutex;

use tensorpipe::MessageStats;

use crate::lock::lock;

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct StreamTraffic {
    sent: Mutex<Counted>,
    received: Mutex<Counted>,
}

/// The traffic of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(super) items: u64,
    pub(super) bytes: u64,
    pub(super) transfer: MessageStats,
}

impl Counted {
    fn add(&mut self, items: u8, bytes: u64, how: MessageStats) {
        self.items += u64::from(items);
        self.bytes = self.bytes.saturating_add(bytes);
        let transfer = &mut self.transfer;
        transfer.streamed = transfer.streamed.saturating_add(how.streamed);
        transfer.copied = transfer.copied.saturating_add(how.copied);
        transfer.copied_by_writer =
            (transfer.copied_by_writer).saturating_add(how.copied_by_writer);
        transfer.channels |= how.channels;
    }
}

impl StreamTraffic {
    /// A message of items is queued.
    pub(crate) fn sent(&self, items: u8, bytes: u64) {
        lock(&self.sent).add(items, bytes, MessageStats::default());
    }

    /// A message of items is complete. `how` says how it travelled.
    pub(crate) fn received(&self, items: u8, bytes: u64, how: MessageStats) {
        lock(&self.received).add(items, bytes, how);
    }

    pub(super) fn total_sent(&self) -> Counted {
        *lock(&self.sent)
    }

    pub(super) fn total_received(&self) -> Counted {
        *lock(&self.received)
    }
}
