//! The receiving end of a stream: items in the order of their messages, even if a later message is complete first.
//!
//! Grants beyond [`INITIAL_WINDOW`], and bytes that came beyond it, take room from the connection's [`UnreadBudget`]. Invariant:
//! `taken` is never less than [`State::needed`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use serde::de::DeserializeOwned;
use tensorpipe::Incoming;

use super::unread::UnreadBudget;
use super::{INITIAL_WINDOW, Tally};
use crate::caught::wake;
use crate::codec::{Arguments, DecodeError};
use crate::header::Header;
use crate::lock::{Mutex, lock};

/// See the module's documentation.
pub(crate) struct Inbox {
    state: Mutex<State>,
    window: Tally,
    unread: Arc<UnreadBudget>,
}

#[derive(Default)]
struct State {
    messages: VecDeque<Entry>,
    /// How many of `messages` have bytes on their way.
    incomplete: usize,
    received: Tally,
    consumed: Tally,
    /// `allowed` is the sender's last grant; `at` is what was consumed when it was given.
    allowed: Tally,
    at: Tally,
    /// Bytes taken from the connection's budget.
    taken: u64,
    /// The last message, if there is no room for it. The sender is granted no bytes then, so no message follows it.
    held: Option<HeldMessage>,
    finished: bool,
    closed: bool,
    waker: Option<Waker>,
}

/// A message for which there is no room.
struct HeldMessage {
    /// `None` from its announcement until [`Inbox::hold`].
    message: Option<ItemsMessage>,
    /// By how many bytes it exceeds the grant.
    excess: u64,
}

struct Entry {
    message: u64,
    size: Tally,
    body: Option<Arguments>,
}

/// A message of items that is not read yet.
#[derive(Debug)]
pub(crate) struct ItemsMessage {
    pub(crate) header: Header,
    pub(crate) incoming: Incoming,
}

impl State {
    /// Bytes that are unread or may still come, less those that the stream has to itself and those of a held message.
    fn needed(&self) -> u64 {
        let may_come = match self.finished {
            true => self.received.bytes,
            false => self.received.bytes.max(self.allowed.bytes),
        };
        let excess = self.held.as_ref().map_or(0, |held| held.excess);
        let ahead = may_come.saturating_sub(self.consumed.bytes);
        ahead
            .saturating_sub(excess)
            .saturating_sub(INITIAL_WINDOW.bytes)
    }

    /// The held message and its excess. `None` also if it is about to be held.
    fn take_held(&mut self) -> Option<(ItemsMessage, u64)> {
        let HeldMessage { message, excess } = self.held.as_mut()?;
        let taken = (message.take()?, *excess);
        self.held = None;
        Some(taken)
    }
}

/// The items of one message, decoded one after another.
#[derive(Debug)]
pub(crate) struct Batch {
    items: Arguments,
    left: u64,
    size: Tally,
}

impl Batch {
    /// The next item; `None` after the last one.
    pub(crate) fn next<T: DeserializeOwned>(&mut self) -> Option<Result<T, DecodeError>> {
        self.left = self.left.checked_sub(1)?;
        Some(self.items.item(self.left == 0))
    }
}

/// What a reader finds.
#[derive(Debug)]
pub(crate) enum Received {
    Items(Batch),
    /// No items are left, and none will come.
    Finished,
    /// The stream is closed.
    Closed,
    /// The next message waits at its sender: the caller is to read it now.
    Held(Box<ItemsMessage>),
    /// No items yet.
    Nothing,
}

/// What becomes of a message of items.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Announced {
    /// The engine is to read it.
    Wanted,
    /// Nobody reads it.
    Unwanted,
    /// Somebody reads it, but the budget has no room: the engine is to hold it.
    NoRoom,
}

impl Inbox {
    pub(super) fn new(window: Tally, unread: Arc<UnreadBudget>) -> Self {
        Self {
            state: Mutex::new(State {
                allowed: INITIAL_WINDOW,
                ..State::default()
            }),
            window,
            unread,
        }
    }

    /// The peer announces a message of items; `is_here` if all of it is here. `None` if the peer sent more than it was granted, or
    /// a message without items.
    pub(crate) fn announced(&self, message: u64, size: Tally, is_here: bool) -> Option<Announced> {
        let mut state = lock(&self.state);
        if state.closed {
            return Some(Announced::Unwanted);
        }
        let items = state.received.items.checked_add(size.items)?;
        let over = items > state.allowed.items || state.received.bytes >= state.allowed.bytes;
        if size.items == 0 || over || state.finished {
            return None;
        }
        state.received.items = items;
        state.received.bytes = state.received.bytes.saturating_add(size.bytes);
        state.incomplete += 1;
        let is_awaited = state.messages.is_empty() && state.waker.is_some();
        state.messages.push_back(Entry {
            message,
            size,
            body: None,
        });
        let excess = state.needed().saturating_sub(state.taken);
        if is_here || is_awaited {
            self.unread.force_acquire(excess);
        } else if excess > 0 && !self.unread.try_acquire(excess) {
            // Set at once: a grant before `hold` would let another message follow.
            state.held = Some(HeldMessage {
                message: None,
                excess,
            });
            return Some(Announced::NoRoom);
        }
        state.taken += excess;
        Some(Announced::Wanted)
    }

    /// Holds the message that was announced with [`Announced::NoRoom`], to be read later. Returns `false` if the stream was closed
    /// meanwhile.
    pub(super) fn hold(&self, message: ItemsMessage) -> bool {
        let mut state = lock(&self.state);
        let Some(held) = &mut state.held else {
            // Dropping a message may call the pipe: not under the lock.
            drop(state);
            drop(message);
            return false;
        };
        held.message = Some(message);
        // Its reader may have begun to wait for it.
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            wake(waker);
        }
        true
    }

    /// The held message, if the budget now has room for it. `Some(None)`: it has none. `None`: no message is held.
    pub(super) fn unhold(&self) -> Option<Option<Box<ItemsMessage>>> {
        let mut state = lock(&self.state);
        let (message, excess) = state.take_held()?;
        if !self.unread.try_acquire(excess) {
            state.held = Some(HeldMessage {
                message: Some(message),
                excess,
            });
            return Some(None);
        }
        state.taken += excess;
        self.unread.release_held();
        Some(Some(Box::new(message)))
    }

    /// Changes the state, and wakes the reader that waits for that.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let (result, waker) = {
            let mut state = lock(&self.state);
            (change(&mut state), state.waker.take())
        };
        if let Some(waker) = waker {
            wake(waker);
        }
        result
    }

    /// All of a message is here.
    pub(super) fn complete(&self, message: u64, body: Arguments) {
        self.change(|state| {
            // From the back: the newest message is the likeliest.
            let mut entries = state.messages.iter_mut().rev();
            if let Some(entry) = entries.find(|entry| entry.message == message) {
                entry.body = Some(body);
                state.incomplete -= 1;
            }
        });
    }

    /// The peer sends nothing after the messages announced so far.
    pub(super) fn finish(&self) {
        self.change(|state| {
            state.finished = true;
            self.keep_needed(state);
        });
    }

    /// Whether the bytes of a message are still on their way.
    pub(crate) fn is_incomplete(&self) -> bool {
        lock(&self.state).incomplete > 0
    }

    /// The next items. If there are none, wakes `waker`, where given, when there are some.
    pub(crate) fn take(&self, waker: Option<&Waker>) -> Received {
        // A waker is somebody else's code, also when it is cloned or dropped: not under the lock.
        let mut cloned = None;
        loop {
            let mut state = lock(&self.state);
            if let Some(received) = self.take_now(&mut state) {
                return received;
            }
            match (&state.waker, waker) {
                (Some(known), Some(waker)) if known.will_wake(waker) => {}
                (_, Some(waker)) if cloned.is_none() => {
                    drop(state);
                    cloned = Some(waker.clone());
                    continue;
                }
                _ => std::mem::swap(&mut state.waker, &mut cloned),
            }
            return Received::Nothing;
        }
    }

    /// As [`take`](Self::take). `None` if the reader has to wait.
    fn take_now(&self, state: &mut State) -> Option<Received> {
        match state.messages.pop_front() {
            Some(Entry {
                size,
                body: Some(items),
                ..
            }) => {
                let left = size.items;
                return Some(Received::Items(Batch { items, left, size }));
            }
            Some(entry) => {
                let is_last = state.messages.is_empty();
                state.messages.push_front(entry);
                if is_last && let Some((message, excess)) = state.take_held() {
                    self.unread.force_acquire(excess);
                    self.unread.release_held();
                    state.taken += excess;
                    return Some(Received::Held(Box::new(message)));
                }
            }
            None if state.closed => return Some(Received::Closed),
            None if state.finished => return Some(Received::Finished),
            None => {}
        }
        None
    }

    /// The application has consumed a batch. Returns the grant to send to the peer, if one is due.
    pub(crate) fn consumed(&self, batch: &Batch) -> Option<Tally> {
        let mut state = lock(&self.state);
        state.consumed.items += batch.size.items;
        state.consumed.bytes = state.consumed.bytes.saturating_add(batch.size.bytes);
        self.keep_needed(&mut state);
        if state.finished || state.closed {
            return None;
        }
        // A new grant is due once half of the last one is consumed: early enough, and not for each item.
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
        state.allowed.items = allowed.items.max(consumed.items + self.window.items);
        if state.held.is_none() {
            // Beyond its own window, the stream gets as much as the budget has left.
            let most = self.window.bytes.saturating_sub(INITIAL_WINDOW.bytes);
            let wanted = most.saturating_sub(state.taken);
            state.taken += self.unread.acquire_up_to(wanted);
            let ahead = INITIAL_WINDOW.bytes + state.taken;
            state.allowed.bytes = allowed.bytes.max(consumed.bytes.saturating_add(ahead));
        }
        Some(state.allowed)
    }

    /// Gives back bytes that are no longer needed.
    fn keep_needed(&self, state: &mut State) {
        let needed = state.needed();
        self.unread.release(state.taken.saturating_sub(needed));
        state.taken = state.taken.min(needed);
    }

    /// Nobody reads any more. Returns the numbers of messages that are on their way.
    pub(super) fn close(&self) -> Vec<u64> {
        let (mut messages, held) = self.change(|state| {
            state.closed = true;
            state.incomplete = 0;
            self.unread.release(std::mem::take(&mut state.taken));
            (std::mem::take(&mut state.messages), state.held.take())
        });
        if let Some(held) = held {
            // The held message is the last one, and was never read.
            messages.pop_back();
            if held.message.is_some() {
                self.unread.release_held();
            }
        }
        let incomplete = messages.iter().filter(|entry| entry.body.is_none());
        incomplete.map(|entry| entry.message).collect()
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
#[path = "inbox_tests.rs"]
mod tests;
