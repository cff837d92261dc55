//! Sends that wait for room: first come, first let in.

use std::collections::{BTreeSet, HashMap};
use std::task::Poll;

use super::SendError;
use crate::rendezvous::key::Key;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct BlockedSends<W> {
    /// Numbers count up, so the smallest has waited longest. Not all that wait stand here.
    queue: BTreeSet<u64>,
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
    /// How it ended; its sender has not looked yet.
    Ended(Result<(), SendError>),
}

impl<W> Default for BlockedSends<W> {
    fn default() -> Self {
        Self {
            queue: BTreeSet::new(),
            senders: HashMap::new(),
            blocked: 0,
            next: 0,
        }
    }
}

impl<W> BlockedSends<W> {
    /// Sends that wait.
    pub(super) fn blocked(&self) -> usize {
        self.blocked
    }

    /// Whether nobody stands in the queue.
    pub(super) fn is_free(&self) -> bool {
        self.queue.is_empty()
    }

    /// Who has waited longest.
    pub(super) fn first(&self) -> Option<(u64, &Key)> {
        let number = self.queue.first()?;
        match self.senders.get(number)? {
            Sender::Blocked { key, .. } => Some((*number, key)),
            Sender::Ended(_) => None,
        }
    }

    /// Somebody waits, in the queue or beside it.
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

    /// What woke it before goes to `stale`.
    pub(super) fn poll(
        &mut self,
        number: u64,
        with: impl FnOnce() -> W,
        stale: &mut Vec<W>,
    ) -> Poll<Result<(), SendError>> {
        match self.senders.get_mut(&number) {
            Some(Sender::Blocked { wake, .. }) => {
                stale.extend(wake.replace(with()));
                Poll::Pending
            }
            _ => match self.senders.remove(&number) {
                Some(Sender::Ended(how)) => Poll::Ready(how),
                // It has looked already.
                _ => Poll::Ready(Ok(())),
            },
        }
    }

    /// Somebody waits no more, by its own wish. Its key, if it was still blocked; else how it had ended.
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
            // It has looked already.
            None => Err(Ok(())),
        }
    }

    /// Somebody need not wait any more, and is told when it looks.
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
    }
}
