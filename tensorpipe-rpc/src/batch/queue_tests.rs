//! Stories on a test clock, and random steps that check the invariants.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const MS: Duration = Duration::from_millis(1);

/// A queue with a clock that only this test moves.
struct Bench {
    queue: BatchQueue<&'static str, u32>,
    now: Instant,
}

impl Bench {
    fn new(max_size: u64, max_wait: Duration, concurrency: usize) -> Self {
        let rules = Rules {
            max_size,
            max_wait,
            concurrency,
        };
        Self {
            queue: BatchQueue::new(rules),
            now: Instant::now(),
        }
    }

    fn join(&mut self, key: &'static str, rows: u64, call: u32) -> BatchSlot {
        self.queue.join(self.now, key, rows, false, None, call)
    }

    /// Adds a call with this much time before its deadline.
    fn hurried(&mut self, left: Duration, call: u32) -> BatchSlot {
        let deadline = Some(self.now + left);
        self.queue.join(self.now, "k", 1, false, deadline, call)
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// The calls of each batch that runs now.
    fn runs(&mut self) -> Vec<Vec<u32>> {
        let mut runs = Vec::new();
        assert!(self.queue.start_dispatch(self.now));
        while let Some(batch) = self.queue.next() {
            runs.push(batch.into_iter().map(|(_, call)| call).collect());
        }
        runs
    }
}

#[test]
fn a_batch_runs_when_it_is_full_and_else_when_its_first_call_has_waited() {
    let mut bench = Bench::new(4, 2 * MS, 9);
    bench.join("k", 1, 1);
    bench.join("k", 2, 2);
    assert!(bench.runs().is_empty());
    bench.join("k", 1, 3);
    assert_eq!(bench.runs(), [[1, 2, 3]]);

    let first = bench.join("k", 1, 4);
    assert_eq!(first.due, bench.now + 2 * MS);
    bench.pass(MS);
    bench.join("k", 1, 5);
    assert!(bench.runs().is_empty());
    bench.pass(MS);
    assert_eq!(bench.runs(), [[4, 5]]);
    assert_eq!((bench.queue.waiting(), bench.queue.running()), (0, 2));
}

/// Another thread has read the clock later, and was here first.
#[test]
fn a_call_that_fills_a_batch_runs_it_though_it_comes_with_an_earlier_time() {
    for (rows, runs) in [(1, vec![1, 2]), (2, vec![1])] {
        let mut bench = Bench::new(4, 10 * MS, 1);
        let earlier = bench.now;
        bench.pass(MS);
        bench.join("k", 3, 1);
        bench.now = earlier;
        bench.join("k", rows, 2);
        assert_eq!(bench.runs(), [runs]);
    }
}

#[test]
fn what_does_not_fit_opens_the_next_batch_and_what_fits_none_runs_alone() {
    let mut bench = Bench::new(4, 2 * MS, 9);
    bench.join("k", 3, 1);
    bench.join("k", 2, 2);
    assert_eq!(bench.runs(), [[1]], "it takes no more");
    bench.join("k", 9, 3);
    bench.join("k", 1, 4);
    assert_eq!(bench.runs(), [[3]], "and closed nobody else's batch");
    bench.pass(2 * MS);
    assert_eq!(bench.runs(), [[2, 4]]);
    let now = bench.now;
    bench.queue.join(now, "k", 1, true, None, 5);
    bench.join("k", 1, 6);
    assert_eq!(bench.runs(), [[5]]);
}

#[test]
fn calls_without_rows_fill_a_batch_too() {
    let mut bench = Bench::new(3, MS, 1);
    for call in 0..3 {
        bench.join("k", 0, call);
    }
    assert_eq!(bench.runs(), [[0, 1, 2]]);
}

#[test]
fn another_key_is_another_batch() {
    let mut bench = Bench::new(2, 2 * MS, 9);
    bench.join("a", 1, 1);
    bench.join("b", 1, 2);
    assert!(bench.runs().is_empty());
    bench.join("b", 1, 3);
    assert_eq!(bench.runs(), [[2, 3]]);
    bench.pass(2 * MS);
    assert_eq!(bench.runs(), [[1]]);
}

#[test]
fn beyond_its_concurrency_it_goes_on_gathering() {
    let mut bench = Bench::new(4, Duration::ZERO, 1);
    bench.join("k", 1, 1);
    assert_eq!(bench.runs(), [[1]], "nothing runs: no wait");
    for call in 2..=6 {
        bench.join("k", 1, call);
    }
    assert!(bench.runs().is_empty());
    bench.queue.ended(Some(MS));
    assert_eq!(bench.runs(), [[2, 3, 4, 5]]);
    bench.queue.ended(None);
    assert_eq!(bench.runs(), [[6]]);
}

#[test]
fn who_leaves_makes_room_and_its_haste_goes_with_it() {
    let mut bench = Bench::new(3, 10 * MS, 1);
    let hurried = bench.hurried(4 * MS, 1);
    bench.join("k", 1, 2);
    assert_eq!(hurried.due, bench.now + 2 * MS);
    assert_eq!(bench.queue.leave(hurried.number), Some(1));
    assert_eq!(bench.queue.leave(hurried.number), None);
    bench.pass(2 * MS);
    assert!(bench.runs().is_empty(), "the other one may wait");
    bench.join("k", 1, 3);
    assert!(bench.runs().is_empty(), "two rows, not three");
    bench.pass(8 * MS);
    assert_eq!(bench.runs(), [[2, 3]]);

    let only = bench.join("k", 1, 4);
    assert_eq!(bench.queue.leave(only.number), Some(4));
    assert_eq!(bench.queue.waiting(), 0);
    let ran = bench.join("k", 5, 5);
    bench.queue.ended(None);
    assert_eq!(bench.runs(), [[5]]);
    assert_eq!(bench.queue.leave(ran.number), None, "it runs");
}

#[test]
fn a_deadline_leaves_time_for_the_run() {
    let mut bench = Bench::new(9, 10 * MS, 1);
    bench.join("k", 1, 1);
    bench.pass(MS);
    let hurried = bench.hurried(8 * MS, 2);
    assert_eq!(hurried.due, bench.now + 4 * MS);
    bench.pass(4 * MS);
    assert_eq!(bench.runs(), [[1, 2]], "all of it goes early");

    bench.queue.ended(Some(6 * MS));
    let hurried = bench.hurried(8 * MS, 3);
    assert_eq!(hurried.due, bench.now + MS);
    let late = bench.hurried(5 * MS, 4);
    assert_eq!(late.due, bench.now, "at once");
    assert_eq!(bench.runs(), [[3, 4]]);
    let unhurried = bench.hurried(1000 * MS, 5);
    assert_eq!(unhurried.due, bench.now + 10 * MS);
}

#[test]
fn who_asks_while_another_one_does_is_heard() {
    let mut bench = Bench::new(9, 2 * MS, 9);
    let slot = bench.join("k", 1, 1);
    assert!(bench.queue.start_dispatch(bench.now));
    assert!(
        !bench.queue.start_dispatch(slot.due),
        "its timer, on another thread"
    );
    assert!(
        !bench.queue.start_dispatch(bench.now),
        "which is not forgotten"
    );
    assert_eq!(bench.queue.next(), Some(vec![(slot.number, 1)]));
    assert_eq!(bench.queue.next(), None);
    assert!(
        bench.queue.start_dispatch(bench.now),
        "nobody is at it any more"
    );
}

#[test]
fn the_batch_that_was_due_first_runs_first() {
    let mut bench = Bench::new(2, 2 * MS, 1);
    bench.join("k", 2, 0);
    assert_eq!(bench.runs(), [[0]]);
    bench.join("a", 1, 1);
    bench.pass(3 * MS);
    bench.join("b", 2, 2);
    bench.join("b", 2, 3);
    for wanted in [1, 2, 3] {
        bench.queue.ended(None);
        assert_eq!(bench.runs(), [[wanted]]);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Join {
        key: u8,
        rows: u64,
        exclusive: bool,
        left_us: Option<u64>,
    },
    Leave(prop::sample::Index),
    Pass(u64),
    End(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let rows = prop_oneof![8 => 0..5u64, 1 => 5..20u64, 1 => Just(u64::MAX)];
    let left = prop::option::of(0..8000u64);
    prop_oneof![
        6 => (0..3u8, rows, prop::bool::weighted(0.05), left).prop_map(
            |(key, rows, exclusive, left_us)| Step::Join { key, rows, exclusive, left_us }
        ),
        2 => any::<prop::sample::Index>().prop_map(Step::Leave),
        3 => (0..3000u64).prop_map(Step::Pass),
        3 => (0..3000u64).prop_map(Step::End),
    ]
}

proptest! {
    #[test]
    fn whatever_happens(
        max_size in 1..8u64,
        wait_us in 0..4000u64,
        concurrency in 1..4usize,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let max_wait = Duration::from_micros(wait_us);
        let rules = Rules { max_size, max_wait, concurrency };
        let mut queue = BatchQueue::new(rules);
        let mut now = Instant::now();
        // The waiting calls, by slot: key, rows, whether alone, and when they are due.
        let mut waiting: HashMap<u64, (u8, u64, bool, Instant)> = HashMap::new();
        let mut slots = Vec::new();
        let mut running = 0;
        for step in steps {
            match step {
                Step::Join { key, rows, exclusive, left_us } => {
                    let deadline = left_us.map(|left| now + Duration::from_micros(left));
                    let slot = queue.join(now, key, rows, exclusive, deadline, ());
                    prop_assert!(slot.due >= now && slot.due <= now + max_wait);
                    prop_assert!(deadline.is_none_or(|at| slot.due <= at));
                    waiting.insert(slot.number, (key, rows, exclusive, slot.due));
                    slots.push(slot.number);
                }
                Step::Leave(which) if !slots.is_empty() => {
                    let slot = slots[which.index(slots.len())];
                    let waited = waiting.remove(&slot).is_some();
                    prop_assert_eq!(queue.leave(slot).is_some(), waited);
                }
                Step::Pass(us) => now += Duration::from_micros(us),
                Step::End(us) if running > 0 => {
                    running -= 1;
                    queue.ended(us.is_multiple_of(2).then(|| Duration::from_micros(us)));
                }
                Step::Leave(_) | Step::End(_) => {}
            }
            prop_assert!(queue.start_dispatch(now));
            while let Some(batch) = queue.next() {
                running += 1;
                prop_assert!(running <= concurrency);
                let calls: Option<Vec<_>> =
                    batch.iter().map(|(slot, ())| waiting.remove(slot)).collect();
                let calls = calls.expect("each runs once, and none that left");
                prop_assert!(!calls.is_empty());
                let rows = |call: &(u8, u64, bool, Instant)| call.1.max(1);
                if calls.len() > 1 {
                    prop_assert!(calls.iter().map(rows).sum::<u64>() <= max_size);
                    prop_assert!(calls.iter().all(|call| call.0 == calls[0].0 && !call.2));
                }
            }
            if running < concurrency {
                prop_assert!(waiting.values().all(|call| call.3 > now), "one is late");
            }
            prop_assert_eq!(queue.waiting(), waiting.len());
            prop_assert_eq!(queue.running(), running);
            prop_assert_eq!(queue.due.len(), queue.groups.len());
            prop_assert!(queue.open.len() <= queue.groups.len());
            prop_assert!(queue.groups.values().all(|group| !group.members.is_empty()));
        }
    }
}
