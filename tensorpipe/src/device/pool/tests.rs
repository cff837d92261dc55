//! Stories of the pool, a plain oracle beside it, and threads that pass its memory around.

use std::collections::VecDeque;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use super::*;
use crate::device::{Buffer, Domain};
use crate::sys::fork::tests::a_child_drops;
use proptest::prelude::*;

fn pool(retain: u64) -> Pool {
    Pool::new(PoolOptions {
        retain,
        ..PoolOptions::default()
    })
}

fn at(buffer: &mut BufferMut) -> usize {
    buffer.as_bytes_mut().unwrap().as_ptr() as usize
}

#[test]
fn classes_are_dense_and_waste_at_most_a_quarter() {
    assert_eq!(
        Class::of(4096),
        Class {
            index: 0,
            size: 4096
        }
    );
    assert_eq!(
        Class::of(4097),
        Class {
            index: 1,
            size: 5120
        }
    );
    let mut last = Class::of(SMALLEST);
    for _ in 0..180 {
        let next = Class::of(last.size + 1);
        assert_eq!(next.index, last.index + 1);
        assert!(next.size > last.size && next.size <= last.size + last.size / 4);
        assert_eq!(Class::of(next.size), next);
        last = next;
    }
    assert_eq!(Class::of(usize::MAX).size, usize::MAX);
}

#[test]
fn the_same_memory_comes_back_last_returned_first() {
    let pool = pool(1 << 30);
    let (mut one, mut two) = (pool.take(3 << 20), pool.take(3 << 20));
    let (first, second) = (at(&mut one), at(&mut two));
    two.as_bytes_mut().unwrap().fill(9);
    drop(one);
    // It comes back only with the last handle derived from it.
    let buffer = two.freeze();
    let part = buffer.slice(5..9);
    drop(buffer);
    assert_eq!(pool.stats().outstanding_bytes, 3 << 20);
    drop(part);
    let mut again = pool.zeroed((3 << 20) - 5);
    assert_eq!(at(&mut again), second);
    assert_eq!(again.len(), (3 << 20) - 5);
    assert!(again.as_bytes_mut().unwrap().iter().all(|byte| *byte == 0));
    assert_eq!(at(&mut pool.take(3 << 20)), first);
    assert_eq!(
        pool.stats(),
        PoolStats {
            taken: 4,
            recycled: 2,
            fresh: 2,
            retained_bytes: 3 << 20,
            outstanding_bytes: 3 << 20,
            ..PoolStats::default()
        }
    );
}

/// A network card would access memory that is gone.
#[test]
fn registrations_last_while_the_memory_is_kept_and_end_before_it() {
    /// The memory's place, and a channel to another thread that hears, when this is dropped, whether the memory is still there.
    struct Registration(usize, Sender<bool>);
    impl Drop for Registration {
        fn drop(&mut self) {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let is_mapped = maps.lines().any(|line| {
                let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
                let bound = |bound| usize::from_str_radix(bound, 16).unwrap();
                (bound(from)..bound(to)).contains(&self.0)
            });
            self.1.send(is_mapped).unwrap();
        }
    }
    let domain = Domain::unique();
    let (ended, hears) = channel();
    let made = std::cell::Cell::new(0);
    let register = |buffer: &Buffer| {
        let at = buffer.as_bytes().unwrap().as_ptr() as usize - buffer.offset();
        let registered = buffer.registered(domain, |place| {
            made.set(made.get() + 1);
            Ok::<_, ()>(Arc::new(Registration(at - place.offset, ended.clone())))
        });
        registered.unwrap().unwrap().clone()
    };
    let pool = pool(1 << 30);
    let takes: [fn(&Pool, usize) -> BufferMut; 2] = [
        |pool, len| pool.take(len),
        |pool, len| pool.try_take_lendable(len).unwrap(),
    ];
    for take in takes {
        made.set(0);
        for _ in 0..2 {
            let buffer = take(&pool, 5 << 20).freeze();
            let whole = register(&buffer);
            assert!(Arc::ptr_eq(&whole, &register(&buffer.slice(10..20))));
            let there = Arc::downgrade(&whole);
            drop((whole, buffer));
            assert_eq!(there.strong_count(), 1, "kept with the memory");
        }
        assert_eq!(made.get(), 1);
        pool.trim(0);
        let is_mapped = hears.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(is_mapped, "the memory is gone already");
    }
    let given = Buffer::from_vec(vec![0u8; 5 << 20]);
    let registered = given.registered(domain, |_| Ok::<_, ()>(Arc::new(())));
    assert!(registered.is_none(), "a program's own");
}

#[test]
fn what_does_not_fit_leaves_oldest_first() {
    let pool = pool(20_000);
    let (a, b, mut c) = (pool.take(8192), pool.take(4096), pool.take(8192));
    let at_c = at(&mut c);
    drop(b);
    drop(a);
    drop(c);
    // b was the oldest: 8192 + 8192 + 4096 are more than 20000.
    assert_eq!(pool.stats().retained_bytes, 16384);
    pool.trim(8192);
    assert_eq!(pool.stats().retained_bytes, 8192);
    let (mut warm, fresh) = (pool.take(8192), pool.take(4096));
    assert_eq!(at(&mut warm), at_c);
    drop((warm, fresh));
    assert_eq!((pool.stats().recycled, pool.stats().fresh), (1, 4));
    drop(pool.take(20_001));
    assert_eq!(pool.stats().outstanding_bytes, 0);
    assert!(pool.stats().retained_bytes <= 20_000);
    pool.trim(0);
    assert_eq!(pool.stats().retained_bytes, 0);
}

#[test]
fn memory_outlives_its_pool_and_short_memory_passes_by() {
    let pool = pool(1 << 20);
    let mut kept = pool.take(100_000);
    drop(pool.take(4095));
    drop(pool.take(0));
    assert_eq!(pool.stats().taken, 1);
    drop(pool);
    kept.as_bytes_mut().unwrap().fill(1);
    assert_eq!(kept.freeze().as_bytes().unwrap()[99_999], 1);
}

#[test]
fn a_refused_size_is_an_error_and_not_counted() {
    let pool = pool(u64::MAX);
    for len in [usize::MAX, isize::MAX as usize, 1 << 60] {
        assert_eq!(pool.try_take(len).unwrap_err().call, "mmap");
        assert_eq!(pool.try_zeroed(len).unwrap_err().call, "mmap");
    }
    assert_eq!(pool.stats(), PoolStats::default());
}

#[derive(Clone, Debug)]
enum Step {
    Take(usize),
    Drop(usize),
    Trim(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1usize..40_000).prop_map(Step::Take),
        3 => any::<usize>().prop_map(Step::Drop),
        1 => (0u64..60_000).prop_map(Step::Trim),
    ];
    proptest::collection::vec(step, 1..120)
}

/// The pool as one would write it without care for speed: one list, oldest first.
#[derive(Default)]
struct Oracle {
    idle: Vec<(usize, u64)>,
    stats: PoolStats,
}

impl Oracle {
    fn take(&mut self, size: u64) {
        self.stats.taken += 1;
        self.stats.outstanding_bytes += size;
        match self.idle.iter().rposition(|(_, idle)| *idle == size) {
            Some(i) => {
                self.idle.remove(i);
                self.stats.recycled += 1;
            }
            None => self.stats.fresh += 1,
        }
    }

    fn give_back(&mut self, at: usize, size: u64, retain: u64) {
        self.stats.outstanding_bytes -= size;
        if size <= retain {
            self.idle.push((at, size));
            self.trim(retain);
        }
    }

    fn trim(&mut self, keep: u64) {
        while self.idle.iter().map(|(_, size)| size).sum::<u64>() > keep {
            self.idle.remove(0);
        }
    }

    fn stats(&self) -> PoolStats {
        PoolStats {
            retained_bytes: self.idle.iter().map(|(_, size)| size).sum(),
            ..self.stats
        }
    }
}

proptest! {
    #[test]
    fn it_does_what_a_plain_list_does(steps in steps(), retain in 0u64..100_000) {
        let pool = pool(retain);
        let mut oracle = Oracle::default();
        let mut held: Vec<(BufferMut, u64)> = Vec::new();
        for step in steps {
            match step {
                Step::Take(len) => {
                    let mut buffer = pool.take(len);
                    prop_assert_eq!(buffer.len(), len);
                    if len >= SMALLEST {
                        let size = Class::of(len).size as u64;
                        let warm = oracle.idle.iter().rev().find(|(_, idle)| *idle == size);
                        if let Some((expected, _)) = warm {
                            prop_assert_eq!(at(&mut buffer), *expected);
                        }
                        oracle.take(size);
                        held.push((buffer, size));
                    }
                }
                Step::Drop(i) if !held.is_empty() => {
                    let (mut buffer, size) = held.swap_remove(i % held.len());
                    oracle.give_back(at(&mut buffer), size, retain);
                    drop(buffer);
                }
                Step::Drop(_) => {}
                Step::Trim(keep) => {
                    oracle.trim(keep);
                    pool.trim(keep);
                }
            }
            prop_assert_eq!(pool.stats(), oracle.stats());
        }
    }
}

#[test]
fn threads_never_share_a_block_and_the_counts_add_up() {
    const TAKES: u64 = 2000;
    let pool = pool(256 << 10);
    let (sender, receiver) = channel::<(BufferMut, u8)>();
    std::thread::scope(|scope| {
        for thread in 1..=4u8 {
            let (pool, sender) = (pool.clone(), sender.clone());
            scope.spawn(move || {
                let mut held = VecDeque::new();
                for i in 0..TAKES as usize {
                    let mut buffer = pool.take(4096 + (i * 7919 * usize::from(thread)) % 30_000);
                    buffer.as_bytes_mut().unwrap().fill(thread);
                    held.push_back(buffer);
                    if held.len() > i % 7 {
                        let buffer = held.pop_front().unwrap();
                        sender.send((buffer, thread)).unwrap();
                    }
                }
                for buffer in held {
                    sender.send((buffer, thread)).unwrap();
                }
            });
        }
        drop(sender);
        // Dropped on another thread than it was taken on; each still holds what its taker wrote.
        for (mut buffer, thread) in receiver {
            assert!(
                buffer
                    .as_bytes_mut()
                    .unwrap()
                    .iter()
                    .all(|byte| *byte == thread)
            );
        }
    });
    let stats = pool.stats();
    assert_eq!((stats.taken, stats.outstanding_bytes), (4 * TAKES, 0));
    assert_eq!(stats.recycled + stats.fresh, stats.taken);
    assert!(stats.recycled > 0 && stats.retained_bytes <= 256 << 10);
}

/// Shared memory counts for a control group as well: a process beyond its limit would be killed.
#[test]
fn a_pool_takes_part_of_what_a_small_process_may_use() {
    let within = |memory| {
        let PoolOptions { retain, lendable } = PoolOptions::within(memory);
        (retain >> 20, lendable >> 20)
    };
    assert_eq!(within(None), (512, 4096));
    assert_eq!(within(Some(64 << 30)), (512, 4096));
    assert_eq!(within(Some(1 << 30)), (128, 512));
    let here = PoolOptions::within(memory::available());
    assert_eq!(PoolOptions::default(), here);
}

#[test]
fn a_forked_child_frees_memory_whoever_has_the_lock() {
    let pool = pool(64 << 20);
    let mut buffer = Some(pool.take(1 << 20));
    let held = pool.shared.lock();
    assert!(a_child_drops(&mut buffer));
    drop(held);
    drop(buffer);
    assert_eq!(pool.stats().retained_bytes, 1 << 20);
}
