//! The outcome of a call: from its answer, its deadline or the end of its connection, to a caller that may leave.

use std::future::poll_fn;
use std::task::{Poll, Waker};

use loom::future::block_on;
use loom::thread;

use super::oneshot::Oneshot;
use crate::check;
use crate::sync::Arc;

fn awaited(call: &Oneshot<u32>) -> u32 {
    block_on(poll_fn(|cx| match call.poll(Some(cx.waker())) {
        Some(outcome) => Poll::Ready(outcome),
        None => Poll::Pending,
    }))
}

/// loom reports a caller that would wait for ever.
pub fn whoever_awaits_an_answer_is_woken() {
    check(None, || {
        let call = Arc::new(Oneshot::new());
        let (of_caller, of_peer) = (call.clone(), call);
        let peer = thread::spawn(move || assert_eq!(of_peer.complete(7), None));
        // Another task polled the call before and is gone by now.
        let seen = of_caller.poll(Some(Waker::noop()));
        let outcome = seen.unwrap_or_else(|| awaited(&of_caller));
        assert_eq!(outcome, 7);
        assert!(of_caller.is_done());
        peer.join().unwrap();
    });
}

/// An answer comes while the deadline passes: the call has exactly one outcome.
pub fn one_of_two_outcomes_is_the_call_s() {
    check(3, || {
        let call = Arc::new(Oneshot::new());
        let (by_deadline, by_peer) = (call.clone(), call.clone());
        let deadline = thread::spawn(move || by_deadline.complete(1));
        let peer = thread::spawn(move || by_peer.complete(2));
        let outcome = awaited(&call);
        let back = [deadline.join().unwrap(), peer.join().unwrap()];
        let other = 3 - outcome;
        assert!(back.contains(&Some(other)) && back.contains(&None));
        assert_eq!(call.poll(None), None);
    });
}

/// The caller drops its future while the answer comes: values that the answer refers to are given back, once.
pub fn an_outcome_that_nobody_takes_goes_back() {
    check(None, || {
        let call = Arc::new(Oneshot::new());
        let of_peer = call.clone();
        let peer = thread::spawn(move || of_peer.complete(7));
        let found = call.abandon();
        let back = peer.join().unwrap();
        assert!(found.xor(back) == Some(7), "{found:?}, {back:?}");
    });
}
