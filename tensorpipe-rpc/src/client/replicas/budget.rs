//! The retry budget: how many calls may be retried because a server was overloaded.
//!
//! Each call adds a part of a token; each such retry takes a whole one. So overloaded servers get at most `1 + share` times the
//! calls that were made, plus `reserve`.

use std::sync::atomic::{AtomicU64, Ordering};

/// Tokens are counted in thousandths.
const TOKEN: u64 = 1000;

/// How many calls are retried on another replica because a server was overloaded, or did not take them while its pipe went on. Retries
/// after a server's death do not count:
/// [`Backoff`](super::Backoff) bounds how often servers die.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryBudget {
    /// Retries for each call. Default 0.2.
    pub share: f64,
    /// Further retries at first, or after a time without retries. Default 20. If 0, the share alone counts.
    pub reserve: u32,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self {
            share: 0.2,
            reserve: 20,
        }
    }
}

/// A bucket of tokens.
#[derive(Debug)]
pub(super) struct Budget {
    tokens: AtomicU64,
    per_call: u64,
    most: u64,
}

impl Budget {
    pub(super) fn new(budget: RetryBudget) -> Self {
        let reserve = u64::from(budget.reserve) * TOKEN;
        // Room for one token: shares are saved up until they make a whole one.
        let most = reserve.max(TOKEN);
        Self {
            tokens: AtomicU64::new(reserve),
            // The cast makes 0 of NaN and of negative numbers.
            per_call: (budget.share * TOKEN as f64) as u64,
            most,
        }
    }

    /// Counts a call that is made.
    pub(super) fn deposit(&self) {
        let add = |tokens: u64| {
            (tokens < self.most).then(|| tokens.saturating_add(self.per_call).min(self.most))
        };
        let _ = self
            .tokens
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Takes a token for a retry. Returns `false` if there is none.
    pub(super) fn withdraw(&self) -> bool {
        let take = |tokens: u64| tokens.checked_sub(TOKEN);
        self.tokens
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Holds for any order of calls and retries.
        #[test]
        fn retries_are_a_share_of_the_calls_and_the_reserve(
            share in 0.0..1.0f64,
            reserve in 0u32..50,
            calls in proptest::collection::vec(any::<bool>(), 0..400),
        ) {
            let budget = Budget::new(RetryBudget { share, reserve });
            let (mut made, mut again) = (0u32, 0u32);
            for retry in calls {
                if retry {
                    again += u32::from(budget.withdraw());
                } else {
                    budget.deposit();
                    made += 1;
                }
                prop_assert!(f64::from(again) <= f64::from(reserve) + share * f64::from(made) + 1e-9);
            }
        }
    }

    #[test]
    fn an_overload_uses_it_up_and_calls_fill_it_again() {
        let budget = Budget::new(RetryBudget {
            share: 0.5,
            reserve: 3,
        });
        let spend = || std::iter::from_fn(|| budget.withdraw().then_some(())).count();
        assert_eq!(spend(), 3);
        (0..4).for_each(|_| budget.deposit());
        assert_eq!(spend(), 2);
        (0..1000).for_each(|_| budget.deposit());
        assert_eq!(spend(), 3, "no more than the reserve is kept");
    }

    #[test]
    fn without_a_reserve_there_is_the_share() {
        let budget = Budget::new(RetryBudget {
            share: 0.25,
            reserve: 0,
        });
        assert!(!budget.withdraw());
        (0..4).for_each(|_| budget.deposit());
        assert!(budget.withdraw() && !budget.withdraw());
    }

    #[test]
    fn nonsense_allows_nothing() {
        for share in [f64::NAN, -1.0, f64::NEG_INFINITY] {
            let budget = Budget::new(RetryBudget { share, reserve: 0 });
            (0..100).for_each(|_| budget.deposit());
            assert!(!budget.withdraw());
        }
    }
}
