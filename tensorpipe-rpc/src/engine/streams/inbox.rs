//! The receiving end of a stream: items in the order of their messages, whatever the order in which these are complete.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::task::Waker;

use super::{FIRST, Tally};
use crate::codec::Arguments;
use crate::lock::lock;

/// See the module's documentation.
pub(crate) struct Inbox {
    state: Mutex<State>,
    window: Tally,
}

struct State {
    messages: VecDeque<Entry>,
    /// Of `messages`, those whose bytes are on their way.
    incomplete: usize,
    received: Tally,
    consumed: Tally,
    /// What the sender was told, and what was consumed then.
    allowed: Tally,
    at: Tally,
    finished: bool,
    closed: bool,
    waker: Option<Waker>,
}

struct Entry {
    message: u64,
    size: Tally,
    body: Option<Arguments>,
}

/// The items of one message, decoded one after another.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) items: Arguments,
    pub(crate) left: u64,
    size: Tally,
}

/// What a reader finds.
#[derive(Debug)]
pub(crate) enum Received {
    Items(Batch),
    /// None, and none will come.
    Finished,
    /// None: it is not read any more.
    Closed,
    /// None yet.
    Nothing,
}

/// The peer sent more than it was allowed to, or a message without items.
#[derive(Debug)]
pub(crate) struct Excess;

impl Inbox {
    pub(super) fn new(window: Tally) -> Self {
        Self {
            state: Mutex::new(State {
                messages: VecDeque::new(),
                incomplete: 0,
                received: Tally::default(),
                consumed: Tally::default(),
                allowed: FIRST,
                at: Tally::default(),
                finished: false,
                closed: false,
                waker: None,
            }),
            window,
        }
    }

    /// A message of so many items and bytes is announced. Returns whether it is wanted.
    pub(super) fn announced(&self, message: u64, size: Tally) -> Result<bool, Excess> {
        let mut state = lock(&self.state);
        if state.closed {
            return Ok(false);
        }
        let items = state.received.items.checked_add(size.items).ok_or(Excess)?;
        let over = items > state.allowed.items || state.received.bytes >= state.allowed.bytes;
        if size.items == 0 || over || state.finished {
            return Err(Excess);
        }
        state.received.items = items;
        state.received.bytes = state.received.bytes.saturating_add(size.bytes);
        state.incomplete += 1;
        state.messages.push_back(Entry {
            message,
            size,
            body: None,
        });
        Ok(true)
    }

    /// All of a message is here.
    pub(super) fn complete(&self, message: u64, body: Arguments) {
        let waker = {
            let mut state = lock(&self.state);
            // From the back: the newest is the likeliest.
            let entry = state.messages.iter_mut().rev();
            let Some(entry) = entry.into_iter().find(|entry| entry.message == message) else {
                return;
            };
            entry.body = Some(body);
            state.incomplete -= 1;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Nothing comes after what has been announced.
    pub(super) fn finish(&self) {
        let waker = {
            let mut state = lock(&self.state);
            state.finished = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether the bytes of a message are still on their way.
    pub(crate) fn is_incomplete(&self) -> bool {
        lock(&self.state).incomplete > 0
    }

    /// The next items. Otherwise `waker`, if there is one, is woken when there are some.
    pub(crate) fn take(&self, waker: Option<&Waker>) -> Received {
        let mut state = lock(&self.state);
        match state.messages.pop_front() {
            Some(Entry {
                size,
                body: Some(items),
                ..
            }) => {
                return Received::Items(Batch {
                    items,
                    left: size.items,
                    size,
                });
            }
            Some(entry) => state.messages.push_front(entry),
            None if state.closed => return Received::Closed,
            None if state.finished => return Received::Finished,
            None => {}
        }
        match (&mut state.waker, waker) {
            (Some(known), Some(waker)) => known.clone_from(waker),
            (known, waker) => *known = waker.cloned(),
        }
        Received::Nothing
    }

    /// The application has had all of a batch. Returns what the sender is to be told that it may send in all.
    pub(crate) fn consumed(&self, batch: &Batch) -> Option<Tally> {
        let mut state = lock(&self.state);
        state.consumed.items += batch.size.items;
        state.consumed.bytes = state.consumed.bytes.saturating_add(batch.size.bytes);
        if state.finished || state.closed {
            return None;
        }
        // Half of what it was allowed last is gone: told in time, and not for each item.
        let half_gone = |allowed: u64, at: u64, consumed: u64| {
            consumed - at >= (allowed.saturating_sub(at) / 2).max(1)
        };
        let (allowed, at, consumed) = (state.allowed, state.at, state.consumed);
        let due = half_gone(allowed.items, at.items, consumed.items)
            || half_gone(allowed.bytes, at.bytes, consumed.bytes);
        if !due {
            return None;
        }
        state.at = consumed;
        state.allowed = Tally {
            items: allowed.items.max(consumed.items + self.window.items),
            bytes: allowed
                .bytes
                .max(consumed.bytes.saturating_add(self.window.bytes)),
        };
        Some(state.allowed)
    }

    /// Nobody reads any more. Returns the messages that are on their way.
    pub(super) fn close(&self) -> Vec<u64> {
        let (messages, waker) = {
            let mut state = lock(&self.state);
            state.closed = true;
            state.incomplete = 0;
            (std::mem::take(&mut state.messages), state.waker.take())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        let incomplete = messages.iter().filter(|entry| entry.body.is_none());
        incomplete.map(|entry| entry.message).collect()
    }
}

#[cfg(test)]
#[path = "inbox_tests.rs"]
mod tests;
