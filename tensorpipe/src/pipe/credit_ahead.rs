//! What peers may send without this context's go-ahead, over all of its pipes.
//!
//! Credit is a promise, and costs memory when it is used. Memory that comes ahead counts by its credit, and not in the budget. So messages
//! that nobody reads yet take nothing of what others need. All credit together is a quarter of
//! [`Limits::receive_budget`](crate::Limits::receive_budget) at most, and what one host or user has a quarter of that. A pipe begins with
//! [`CREDIT_START`]. It gets more when a message of its had to wait, up to [`Limits::window_ahead`](crate::Limits::window_ahead), and loses
//! that when nothing came ahead for [`CREDIT_KEPT`](crate::pipe::driver::tuning::CREDIT_KEPT).
//!
//! Invariant: `granted.all` is the sum of all [`Credit`]s that exist, and never more than `most`; likewise for each origin.

use std::collections::HashMap;

use crate::address::PeerAddr;
use crate::config::Limits;
use crate::pipe::driver::tuning::CREDIT_START;
use crate::sync::{Arc, Mutex, lock};

#[derive(Debug)]
pub(crate) struct CreditAhead {
    /// The most credit of one pipe.
    pipe: u64,
    most: u64,
    granted: Mutex<Granted>,
}

#[derive(Debug, Default)]
struct Granted {
    all: u64,
    by_origin: HashMap<PeerAddr, u64>,
}

impl CreditAhead {
    /// `devices`: the context has more devices than the CPU. It grants nothing then: where a tensor goes is decided before its
    /// bytes come.
    pub(crate) fn new(limits: &Limits, devices: bool) -> Arc<Self> {
        Arc::new(Self {
            pipe: if devices { 0 } else { limits.window_ahead },
            most: limits.receive_budget / 4,
            granted: Mutex::default(),
        })
    }

    /// Credit for a new pipe; none if others have all.
    pub(crate) fn begin(self: &Arc<Self>, peer: PeerAddr) -> Credit {
        let mut credit = Credit {
            of: self.clone(),
            origin: peer.origin(),
            bytes: 0,
        };
        credit.raise(CREDIT_START);
        credit
    }
}

/// What one pipe's peer may have sent that this side has not finished, in bytes. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Credit {
    of: Arc<CreditAhead>,
    origin: PeerAddr,
    bytes: u64,
}

impl Credit {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The credit that a pipe begins with.
    pub(super) fn start(&self) -> u64 {
        CREDIT_START.min(self.of.pipe)
    }

    /// The most that it may become.
    pub(super) fn window(&self) -> u64 {
        self.of.pipe
    }

    /// Raises it to `bytes`, as far as there is credit left.
    pub(super) fn raise(&mut self, bytes: u64) {
        let mut granted = lock(&self.of.granted);
        let by_origin = granted.by_origin.get(&self.origin).copied().unwrap_or(0);
        let free = (self.of.most - granted.all).min((self.of.most / 4).saturating_sub(by_origin));
        let more = bytes.min(self.of.pipe).saturating_sub(self.bytes).min(free);
        if more == 0 {
            return;
        }
        granted.all += more;
        *granted.by_origin.entry(self.origin).or_default() += more;
        self.bytes += more;
    }

    /// Gives back what is over `bytes`.
    pub(super) fn lower(&mut self, bytes: u64) {
        let less = self.bytes.saturating_sub(bytes);
        if less == 0 {
            return;
        }
        self.bytes -= less;
        let mut granted = lock(&self.of.granted);
        granted.all -= less;
        if let Some(by_origin) = granted.by_origin.get_mut(&self.origin) {
            *by_origin -= less;
            if *by_origin == 0 {
                granted.by_origin.remove(&self.origin);
            }
        }
    }
}

impl Drop for Credit {
    fn drop(&mut self) {
        self.lower(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(last: u8) -> PeerAddr {
        PeerAddr::Socket(([10, 0, 0, last], 4000).into())
    }

    fn credit(budget: u64, window: u64) -> Arc<CreditAhead> {
        let limits = Limits {
            receive_budget: budget,
            window_ahead: window,
            ..Limits::default()
        };
        CreditAhead::new(&limits, false)
    }

    #[test]
    fn a_pipe_earns_up_to_its_window_and_gives_it_back() {
        let all = credit(1 << 30, 4 << 20);
        let mut one = all.begin(host(1));
        assert_eq!(one.bytes(), CREDIT_START);
        one.raise(1 << 20);
        assert_eq!(one.bytes(), 1 << 20);
        one.raise(64 << 20);
        assert_eq!(one.bytes(), 4 << 20, "its window");
        one.raise(1 << 20);
        one.lower(CREDIT_START);
        assert_eq!(
            (one.bytes(), lock(&all.granted).all),
            (CREDIT_START, CREDIT_START)
        );
        drop(one);
        let granted = lock(&all.granted);
        assert!(granted.all == 0 && granted.by_origin.is_empty());
    }

    /// Processes of one host, or connections from one, are one origin.
    #[test]
    fn all_pipes_have_a_quarter_of_the_budget_and_one_origin_a_quarter_of_that() {
        let all = credit(64 << 20, 4 << 20);
        let pipes = |last: u8, count: usize| -> Vec<_> {
            let mut pipes: Vec<_> = (0..count).map(|_| all.begin(host(last))).collect();
            pipes.iter_mut().for_each(|pipe| pipe.raise(4 << 20));
            pipes
        };
        let sum = |pipes: &[Credit]| pipes.iter().map(Credit::bytes).sum::<u64>();
        let mut kept = pipes(1, 3);
        assert_eq!(sum(&kept), 4 << 20);
        for last in 2..=4 {
            kept.extend(pipes(last, 1));
        }
        assert_eq!(sum(&kept), 16 << 20);
        assert_eq!(all.begin(host(5)).bytes(), 0, "nothing is left");
        kept.truncate(3);
        assert_eq!(all.begin(host(5)).bytes(), CREDIT_START);
        // There is enough, and what one pipe gives back the others of its origin get, and no more.
        let given = 3 << 19;
        let left = kept[0].bytes() - given;
        kept[0].lower(left);
        let mut late = all.begin(host(1));
        late.raise(4 << 20);
        assert_eq!(late.bytes(), given);
    }
}
