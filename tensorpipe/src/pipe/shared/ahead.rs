//! How much the peer may send ahead: more after one of its messages had to wait, less when it uses none of its credit.

use std::time::Instant;

use super::Shared;
use crate::ambient;
use crate::pipe::credit_ahead::Credit;
use crate::pipe::driver::tuning::CREDIT_KEPT;
use crate::proto::{AHEAD_PART, Carriage, Head};

#[derive(Debug)]
pub(in crate::pipe) struct Ahead {
    credit: Credit,
    /// When to check whether the peer uses what it has earned, and how much had come ahead at the last check.
    check: Option<(Instant, u64)>,
}

impl Ahead {
    pub(super) fn new(credit: Credit) -> Self {
        Self {
            credit,
            check: None,
        }
    }

    /// The peer sends nothing more ahead, and this side counts what it has sent no more.
    pub(super) fn end(&mut self, unfinished: u64) {
        self.credit.lower(unfinished);
        self.check = None;
    }

    #[cfg(test)]
    pub(in crate::pipe) fn credit(&self) -> &Credit {
        &self.credit
    }

    pub(in crate::pipe) fn next_check(&self) -> Option<Instant> {
        self.check.map(|(at, _)| at)
    }
}

impl Shared {
    /// A message has come. If parts of it wait for this side only for lack of credit, the peer gets that credit from now on.
    pub(super) fn earn_ahead(&mut self, head: &Head) {
        let waits = |carriage: &Carriage| matches!(carriage, Carriage::Bulk { ahead: false, .. });
        let parts = head.carriages().iter().filter(|carriage| waits(carriage));
        let bytes = parts.count() as u64 * AHEAD_PART;
        let bytes = bytes.saturating_add(head.sum(waits));
        let (ahead, credit) = (self.state.ahead(), &mut self.ahead.credit);
        if bytes == 0 || bytes > credit.window() {
            return;
        }
        let window = ahead.window;
        // The peer had enough credit, but did not know it yet.
        if ahead.unfinished.saturating_add(bytes) <= window {
            return self.state.announce_ahead();
        }
        credit.raise(bytes.max(window).saturating_mul(2));
        if credit.bytes() <= window {
            return;
        }
        self.state.widen_ahead(credit.bytes());
        self.check_later(ambient::now());
        self.wakers.wake_background();
    }

    /// The peer has finished. What it has sent ahead takes credit until it was read.
    pub(super) fn end_ahead(&mut self, now: Instant) {
        let unfinished = self.state.ahead().unfinished;
        self.ahead.end(unfinished);
        if unfinished > 0 {
            self.check_later(now);
            self.wakers.wake_background();
        }
    }

    /// Takes back what the peer has earned and does not use.
    pub(in crate::pipe) fn tidy_ahead(&mut self, now: Instant) {
        let Some((_, before)) = self.ahead.check.take_if(|(at, _)| *at <= now) else {
            return;
        };
        if self.state.is_fin_received() {
            return self.end_ahead(now);
        }
        let received = self.state.ahead().received;
        if received != before {
            return self.check_later(now);
        }
        if !self.state.narrow_ahead(self.ahead.credit.start()) {
            self.lower_credit(now);
        }
    }

    /// The peer has given up credit, or has finished what it had used of that.
    pub(super) fn lower_credit(&mut self, now: Instant) {
        let ahead = self.state.ahead();
        let (window, promised) = (ahead.window, ahead.promised);
        self.ahead.credit.lower(window.max(promised));
        if self.ahead.credit.bytes() > window {
            self.check_later(now);
        }
    }

    fn check_later(&mut self, now: Instant) {
        let received = self.state.ahead().received;
        self.ahead.check = Some((now + CREDIT_KEPT, received));
    }
}
