//! The sending end of a stream: how much more its reader takes.

use std::task::Waker;

use super::{INITIAL_WINDOW, Tally};
use crate::caught::wake;
use crate::lock::{Mutex, lock};

/// See the module's documentation.
pub(crate) struct Credits {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sent: Tally,
    allowed: Tally,
    closed: bool,
    waker: Option<Waker>,
}

/// Whether an item may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendCredit {
    /// As many as this.
    Items(u64),
    /// None before the reader grants more.
    None,
    /// Nobody reads them any more.
    Closed,
}

impl Credits {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                allowed: INITIAL_WINDOW,
                ..State::default()
            }),
        }
    }

    /// How many items may be sent now. Keeps `waker` in any case: wakes it on the next grant, and when the stream is closed.
    pub(crate) fn room(&self, waker: &Waker) -> SendCredit {
        // A waker is somebody else's code, also when it is cloned or dropped: not under the lock.
        let mut cloned = None;
        let state = loop {
            let mut state = lock(&self.state);
            if state.closed {
                return SendCredit::Closed;
            }
            match &state.waker {
                Some(known) if known.will_wake(waker) => {}
                _ if cloned.is_none() => {
                    drop(state);
                    cloned = Some(waker.clone());
                    continue;
                }
                _ => std::mem::swap(&mut state.waker, &mut cloned),
            }
            break state;
        };
        // The last item may exceed the credit left; otherwise an item larger than the window would never be sent.
        if state.sent.bytes >= state.allowed.bytes || state.sent.items >= state.allowed.items {
            return SendCredit::None;
        }
        SendCredit::Items(state.allowed.items - state.sent.items)
    }

    /// A message of `items` items was sent.
    pub(crate) fn sent(&self, items: u64, bytes: u64) {
        let mut state = lock(&self.state);
        state.sent.items += items;
        state.sent.bytes = state.sent.bytes.saturating_add(bytes);
    }

    /// The reader takes `allowed` in all. A grant is never taken back.
    pub(super) fn allow(&self, allowed: Tally) {
        self.change(|state| {
            state.allowed.items = state.allowed.items.max(allowed.items);
            state.allowed.bytes = state.allowed.bytes.max(allowed.bytes);
        });
    }

    /// Nobody reads items any more.
    pub(crate) fn close(&self) {
        self.change(|state| state.closed = true);
    }

    /// Changes the state, and wakes the sender that waits for credit.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let waker = {
            let mut state = lock(&self.state);
            change(&mut state);
            state.waker.take()
        };
        if let Some(waker) = waker {
            wake(waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_may_be_larger_than_what_is_left_but_nothing_follows_it() {
        let credits = Credits::new();
        assert_eq!(
            credits.room(Waker::noop()),
            SendCredit::Items(INITIAL_WINDOW.items)
        );
        credits.sent(1, INITIAL_WINDOW.bytes - 1);
        assert_eq!(
            credits.room(Waker::noop()),
            SendCredit::Items(INITIAL_WINDOW.items - 1)
        );
        credits.sent(1, 1 << 40);
        assert_eq!(credits.room(Waker::noop()), SendCredit::None);
        credits.allow(Tally {
            items: INITIAL_WINDOW.items,
            bytes: INITIAL_WINDOW.bytes + (1 << 40),
        });
        assert_eq!(
            credits.room(Waker::noop()),
            SendCredit::Items(INITIAL_WINDOW.items - 2)
        );
    }

    #[test]
    fn what_was_allowed_is_not_taken_back_and_a_closed_stream_stays_closed() {
        let credits = Credits::new();
        credits.allow(Tally::default());
        assert_eq!(
            credits.room(Waker::noop()),
            SendCredit::Items(INITIAL_WINDOW.items)
        );
        credits.sent(INITIAL_WINDOW.items, 0);
        assert_eq!(credits.room(Waker::noop()), SendCredit::None);
        credits.close();
        credits.allow(Tally {
            items: u64::MAX,
            bytes: u64::MAX,
        });
        assert_eq!(credits.room(Waker::noop()), SendCredit::Closed);
    }
}
