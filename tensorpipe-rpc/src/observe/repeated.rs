//! What fails once a call is told once: a server that is overloaded, or a peer that sends nonsense, would fill a log otherwise.
//!
//! The first of a kind is told, those that follow within [`EVERY`] are counted, and told together at its end.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use tensorpipe::fork::PerProcess;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::lock::lock;

/// How long those like the first are counted.
const EVERY: Duration = Duration::from_secs(10);

/// What happened, how, and to which method: names that this process was built with, so that there are few of them.
pub(crate) type Kind = (&'static str, &'static str, &'static str);

/// By kind: when its first was told, and how many more there were since.
type Counts = Mutex<HashMap<Kind, (Instant, u64)>>;

fn counted() -> &'static Counts {
    static COUNTED: PerProcess<Counts> = PerProcess::new();
    COUNTED.get(Counts::default)
}

/// Whether this is the first of its kind, to be told; else it is counted.
pub(crate) fn is_first(kind: Kind) -> bool {
    if let Some((first, more)) = lock(counted()).get_mut(&kind) {
        if first.elapsed() <= 2 * EVERY {
            *more += 1;
            return false;
        }
        // The runtime that was to tell the others rests.
        *first = Instant::now();
        return true;
    }
    // Without a runtime nobody could tell the others.
    if let Ok(runtime) = Handle::try_current() {
        lock(counted()).insert(kind, (Instant::now(), 0));
        let counting = Counting(kind);
        runtime.spawn(async move {
            let _counting = counting;
            tokio::time::sleep(EVERY).await;
        });
    }
    true
}

/// Tells the count in the end, also when its runtime goes first.
struct Counting(Kind);

impl Drop for Counting {
    fn drop(&mut self) {
        let (what, how, method) = self.0;
        let counted = lock(counted()).remove(&self.0);
        if let Some((_, more @ 1..)) = counted {
            let within = EVERY.as_secs();
            tracing::warn!(target: "tensorpipe_rpc", how, method, "{what}: and {more} more within {within} s");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_is_told_and_the_others_together() {
        let (one, other) = (("test", "overloaded", "a"), ("test", "overloaded", "b"));
        let told = (0..92).filter(|_| is_first(one)).count();
        assert_eq!(told, 1);
        let counted_of = |kind| lock(counted()).get(&kind).map(|(_, more)| *more);
        assert_eq!(counted_of(one), Some(91));
        assert!(is_first(other), "another kind");
        tokio::time::sleep(EVERY * 2).await;
        assert_eq!(counted_of(one), None);
        assert!(is_first(one), "again");
    }

    #[test]
    fn a_runtime_that_goes_leaves_no_count_behind() {
        let kind = ("test", "gone", "c");
        let runtime = tokio::runtime::Runtime::new().unwrap();
        assert!(runtime.block_on(async { is_first(kind) }));
        drop(runtime);
        assert!(!lock(counted()).contains_key(&kind));
        assert!(
            is_first(kind) && is_first(kind),
            "nobody would tell the others"
        );
    }
}
