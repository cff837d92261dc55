//! The queue of sends that wait for room, first come, first served.

use std::collections::{BTreeSet, HashMap};
use std::task::Poll;

use super::SendError;
use crate::rendezvous::key::Key;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct BlockedSends<W> {
    /// Numbers count up, so the smallest has waited longest. Sends too large for the bound are not in the queue.
    queue: BTreeSet<u64>,
    /// Sends, in the queue or not, whose values a receive of another process waits for.
    asked: BTreeSet<u64>,
    senders: HashMap<u64, Sender<W>>,
    blocked: usize,
    next: u64,
}

#[derive(Debug)]
enum Sender<W> {
    Blocked {
        key: Key,
        wake: Option<W>,
    },
    /// How the send ended. Its sender has not polled since.
    Ended(Result<(), SendError>),
}

impl<W> Default for BlockedSends<W> {
    fn default() -> Self {
        Self {
            queue: BTreeSet::new(),
            asked: BTreeSet::new(),
            senders: HashMap::new(),
            blocked: 0,
            next: 0,
        }
    }
}

impl<W> BlockedSends<W> {
    /// How many sends wait.
    pub(super) fn blocked(&self) -> usize {
        self.blocked
    }

    /// Whether the queue is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The send that has waited longest.
    pub(super) fn first(&self) -> Option<(u64, &Key)> {
        let number = self.queue.first()?;
        match self.senders.get(number)? {
            Sender::Blocked { key, .. } => Some((*number, key)),
            Sender::Ended(_) => None,
        }
    }

    /// A receive waits for the value of this send.
    pub(super) fn ask(&mut self, number: u64) {
        self.asked.insert(number);
    }

    /// No receive waits for it any more.
    pub(super) fn unask(&mut self, number: u64) {
        self.asked.remove(&number);
    }

    /// The sends whose values a receive waits for, the earliest first.
    pub(super) fn asked(&self) -> Vec<(u64, Key)> {
        let blocked = self.asked.iter().filter_map(|number| {
            let Sender::Blocked { key, .. } = self.senders.get(number)? else {
                return None;
            };
            Some((*number, key.clone()))
        });
        blocked.collect()
    }

    /// Adds a waiting send, in the queue or outside of it.
    pub(super) fn enter(&mut self, key: Key, queued: bool) -> u64 {
        let number = self.next;
        self.next += 1;
        self.blocked += 1;
        let wake = None;
        self.senders.insert(number, Sender::Blocked { key, wake });
        if queued {
            self.queue.insert(number);
        }
        number
    }

    /// Polls a send. If it is blocked, it takes `with`, and its earlier waker goes to `stale`.
    pub(super) fn poll(
        &mut self,
        number: u64,
        with: &mut Option<W>,
        stale: &mut Vec<W>,
    ) -> Poll<Result<(), SendError>> {
        match self.senders.get_mut(&number) {
            Some(Sender::Blocked { wake, .. }) => {
                stale.extend(std::mem::replace(wake, with.take()));
                Poll::Pending
            }
            _ => match self.senders.remove(&number) {
                Some(Sender::Ended(how)) => Poll::Ready(how),
                // It was polled to its end before.
                _ => Poll::Ready(Ok(())),
            },
        }
    }

    /// Removes a send at its sender's wish. Returns its key if it was still blocked; otherwise how it had ended.
    pub(super) fn leave(
        &mut self,
        number: u64,
        stale: &mut Vec<W>,
    ) -> Result<Key, Result<(), SendError>> {
        match self.senders.remove(&number) {
            Some(Sender::Blocked { key, wake }) => {
                stale.extend(wake);
                self.left(number);
                Ok(key)
            }
            Some(Sender::Ended(how)) => Err(how),
            // It was polled to its end before.
            None => Err(Ok(())),
        }
    }

    /// Ends the wait of a send. Its sender gets `how` at its next poll. Returns its waker.
    pub(super) fn end(&mut self, number: u64, how: Result<(), SendError>) -> Option<W> {
        let sender = self.senders.get_mut(&number)?;
        let Sender::Blocked { wake, .. } = sender else {
            return None;
        };
        let wake = wake.take();
        *sender = Sender::Ended(how);
        self.left(number);
        wake
    }

    fn left(&mut self, number: u64) {
        self.blocked -= 1;
        self.queue.remove(&number);
        self.asked.remove(&number);
    }
}
