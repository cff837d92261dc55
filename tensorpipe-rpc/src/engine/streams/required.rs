//! The channels over one of which a stream's items go, where its caller says so.
//!
//! A channel may find out late that it cannot carry an item: its message is abandoned then, and the call ends with the reason. So the numbers
//! of its messages are kept. Streams without such a wish keep none.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use super::WINDOW;
use crate::lock::lock;

/// See the module's documentation.
pub(crate) struct Required {
    pub(crate) channels: Arc<Vec<String>>,
    /// Numbers of messages, the latest ones: behind one that is not there yet a reader takes no more items than these.
    sent: Mutex<VecDeque<u64>>,
}

impl Required {
    pub(crate) fn new(channels: Arc<Vec<String>>) -> Self {
        Self {
            channels,
            sent: Mutex::default(),
        }
    }

    /// Items are message number `message`.
    pub(super) fn sent_as(&self, message: u64) {
        let mut sent = lock(&self.sent);
        if sent.len() as u64 >= WINDOW.items {
            sent.pop_front();
        }
        sent.push_back(message);
    }

    pub(super) fn has_sent(&self, message: u64) -> bool {
        // They ascend.
        lock(&self.sent).binary_search(&message).is_ok()
    }
}
