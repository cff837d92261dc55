//! Sends that wait for room: first come, first let in.
//!
//! A send that has left its queue otherwise, because it was asked for, given up or ended, leaves its number behind there until
//! that is the first: so nothing is searched. Invariant: at most half of the queue are such numbers, or it is short.

use std::collections::{HashMap, VecDeque};
use std::task::Poll;

use super::SendError;
use crate::rendezvous::key::Key;

/// A queue this long is not tidied.
const SHORT: usize = 64;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Room<W> {
    queue: VecDeque<u64>,
    /// Those of the queue that still wait.
    queued: usize,
    senders: HashMap<u64, Sender<W>>,
    blocked: usize,
    next: u64,
}

#[derive(Debug)]
enum Sender<W> {
    Blocked {
        key: Key,
        queued: bool,
        wake: Option<W>,
    },
    /// How it ended; its sender has not looked yet.
    Ended(Result<(), SendError>),
}

impl<W> Default for Room<W> {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            queued: 0,
            senders: HashMap::new(),
            blocked: 0,
            next: 0,
        }
    }
}

impl<W> Room<W> {
    /// Sends that wait.
    pub(super) fn blocked(&self) -> usize {
        self.blocked
    }

    /// Whether nobody stands in the queue.
    pub(super) fn is_free(&self) -> bool {
        self.queued == 0
    }

    /// Who has waited longest.
    pub(super) fn first(&mut self) -> Option<(u64, Key)> {
        while let Some(number) = self.queue.front() {
            if matches!(self.senders.get(number), Some(Sender::Blocked { .. })) {
                break;
            }
            self.queue.pop_front();
        }
        let number = *self.queue.front()?;
        match self.senders.get(&number) {
            Some(Sender::Blocked { key, .. }) => Some((number, key.clone())),
            _ => None,
        }
    }

    /// Somebody waits, in the queue or beside it.
    pub(super) fn enter(&mut self, key: Key, queued: bool) -> u64 {
        let number = self.next;
        self.next += 1;
        self.blocked += 1;
        let wake = None;
        self.senders
            .insert(number, Sender::Blocked { key, queued, wake });
        if queued {
            self.queue.push_back(number);
            self.queued += 1;
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
            Some(Sender::Blocked { key, queued, wake }) => {
                stale.extend(wake);
                self.left(queued);
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
        match std::mem::replace(sender, Sender::Ended(how)) {
            Sender::Blocked { wake, queued, .. } => {
                self.left(queued);
                wake
            }
            ended => {
                *sender = ended;
                None
            }
        }
    }

    fn left(&mut self, queued: bool) {
        self.blocked -= 1;
        if queued {
            self.queued -= 1;
        }
        if self.queue.len() > SHORT.max(2 * self.queued) {
            let senders = &self.senders;
            self.queue
                .retain(|number| matches!(senders.get(number), Some(Sender::Blocked { .. })));
        }
    }
}
