//! Named channels: a stream's items must travel over one of them, where its caller says so.
//!
//! A channel may find out late that it cannot carry an item. The item's message is then abandoned, and the call ends with the
//! reason. So this keeps the numbers of the stream's messages. Streams without such a requirement keep none.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use super::WINDOW;
use crate::lock::lock;

/// See the module's documentation.
pub(crate) struct Required {
    pub(crate) channels: Arc<Vec<String>>,
    /// The numbers of the latest messages. A reader takes no more items than these beyond one that is not there yet.
    sent: Mutex<VecDeque<u64>>,
}

impl Required {
    pub(crate) fn new(channels: Arc<Vec<String>>) -> Self {
        Self {
            channels,
            sent: Mutex::default(),
        }
    }

    /// Items were sent as message number `message`.
    pub(super) fn sent_as(&self, message: u64) {
        let mut sent = lock(&self.sent);
        if sent.len() as u64 >= WINDOW.items {
            sent.pop_front();
        }
        sent.push_back(message);
    }

    pub(super) fn has_sent(&self, message: u64) -> bool {
        // The numbers ascend.
        lock(&self.sent).binary_search(&message).is_ok()
    }
}
