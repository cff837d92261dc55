//! An outcome on its way from the task that completes it to the task that awaits it. Either may be gone.

use std::task::Waker;

use crate::caught::wake;
use crate::lock::{AtomicBool, Mutex, Ordering, lock};

pub(crate) struct Oneshot<T> {
    state: Mutex<State<T>>,
    /// The outcome is here, or was.
    done: AtomicBool,
}

enum State<T> {
    Waiting(Option<Waker>),
    Done(T),
    Taken,
}

impl<T> Oneshot<T> {
    #[inline]
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State::Waiting(None)),
            done: AtomicBool::new(false),
        }
    }

    /// Gives `outcome` back if there is one already, or nobody waits for it.
    pub(crate) fn complete(&self, outcome: T) -> Option<T> {
        let waker = {
            let mut state = lock(&self.state);
            let State::Waiting(waker) = &mut *state else {
                return Some(outcome);
            };
            let waker = waker.take();
            *state = State::Done(outcome);
            self.done.store(true, Ordering::Release);
            waker
        };
        if let Some(waker) = waker {
            wake(waker);
        }
        None
    }

    /// Has whoever waits look for itself.
    pub(crate) fn nudge(&self) {
        let waker = match &mut *lock(&self.state) {
            State::Waiting(waker) => waker.take(),
            State::Done(_) | State::Taken => None,
        };
        if let Some(waker) = waker {
            wake(waker);
        }
    }

    /// Nobody will take the outcome. Returns it if it is here; a later [`complete`](Self::complete) gets its own back.
    pub(crate) fn abandon(&self) -> Option<T> {
        let before = std::mem::replace(&mut *lock(&self.state), State::Taken);
        match before {
            State::Done(outcome) => Some(outcome),
            State::Waiting(_) | State::Taken => None,
        }
    }

    /// Whether the outcome is here, or was. Takes no lock, so the answer may be out of date.
    pub(crate) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Takes the outcome if it is here. Otherwise wakes `waker` when it comes; `None` wakes nobody.
    pub(crate) fn poll(&self, waker: Option<&Waker>) -> Option<T> {
        // A waker is somebody else's code, also when it is cloned or dropped: not under the lock.
        let mut waker = waker.filter(|_| !self.is_done()).cloned();
        let mut state = lock(&self.state);
        match &mut *state {
            State::Waiting(waiting) => {
                std::mem::swap(waiting, &mut waker);
                None
            }
            State::Done(_) => match std::mem::replace(&mut *state, State::Taken) {
                State::Done(outcome) => Some(outcome),
                _ => None,
            },
            State::Taken => None,
        }
    }
}
