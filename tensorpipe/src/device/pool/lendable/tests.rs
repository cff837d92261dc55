//! Stories of memory that is lent: when it is used again, when it is not, and what is handed out when there is none.

use super::super::{Pool, PoolOptions};
use super::*;
use crate::device::Buffer;
use crate::sys::fork::tests::a_child_drops;
use crate::sys::ledger::{Debts, Entry, Ledger};

fn pool(retain: u64, lendable: u64) -> Pool {
    Pool::new(PoolOptions { retain, lendable })
}

fn take(pool: &Pool, len: usize) -> BufferMut {
    pool.try_take_lendable(len).unwrap()
}

fn at(buffer: &mut BufferMut) -> usize {
    buffer.as_bytes_mut().unwrap().as_ptr().addr()
}

fn block(buffer: &Buffer) -> &LendableBlock {
    buffer.memory().as_any().downcast_ref().unwrap()
}

fn parties() -> (Arc<Ledger>, Debts) {
    let ledger = Ledger::new().unwrap();
    let debts = Debts::map(ledger.fd()).unwrap();
    (ledger, debts)
}

/// Lends `buffer`, and takes it at the other side.
fn lend(buffer: &Buffer, (ledger, debts): &(Arc<Ledger>, Debts)) -> Entry {
    let (entry, _) = block(buffer).lend(ledger, 0..buffer.len()).unwrap();
    assert!(debts.take(entry));
    entry
}

#[test]
fn pieces_are_as_long_as_asked_for_and_waste_little() {
    assert_eq!(layout(1), Some((4096, SLAB)));
    assert_eq!(layout(300_000), Some((340 << 10, SLAB)), "six in a segment");
    assert_eq!(layout(700_000), Some((1 << 20, SLAB)), "two in a segment");
    assert_eq!(layout(1 << 20), Some((1 << 20, SLAB)));
    assert_eq!(layout((1 << 20) + 1), Some((SLAB, SLAB)));
    assert_eq!(layout((4 << 20) + 1), Some((6 << 20, 6 << 20)));
    assert_eq!(layout(256 << 20), Some((256 << 20, 256 << 20)));
    assert_eq!(layout(usize::MAX), None);
    for len in [5000, 70_000, 1 << 20, 3 << 20, 100 << 20] {
        let (piece, segment) = layout(len).unwrap();
        assert!(piece >= len && segment >= piece && segment.is_multiple_of(SLAB));
    }
}

#[test]
fn the_same_memory_comes_back_and_is_counted() {
    let pool = pool(64 << 20, 64 << 20);
    let mut one = take(&pool, 5 << 20);
    let first = at(&mut one);
    one.as_bytes_mut().unwrap().fill(9);
    drop(one);
    let mut again = pool.try_zeroed_lendable(5 << 20).unwrap();
    assert_eq!(at(&mut again), first);
    assert!(again.as_bytes_mut().unwrap().iter().all(|byte| *byte == 0));
    let small: Vec<_> = (0..3).map(|_| take(&pool, 500_000)).collect();
    let stats = pool.stats().lendable;
    assert_eq!((stats.taken, stats.recycled, stats.fallbacks), (5, 3, 0));
    assert_eq!((stats.segments, stats.mapped_bytes), (2, 8 << 20));
    let outstanding = (6 << 20) + 3 * Class::of(500_000).size as u64;
    assert_eq!(stats.outstanding_bytes, outstanding);
    drop((again, small));
    assert_eq!(pool.stats().lendable.outstanding_bytes, 0);
    pool.trim(0);
    let stats = pool.stats().lendable;
    assert_eq!((stats.segments, stats.mapped_bytes), (0, 0));
    assert_eq!((stats.reserved_bytes, stats.huge_bytes), (0, 0));
}

#[test]
fn unused_memory_is_not_thrown_away_for_what_has_no_room_all_the_same() {
    let pool = pool(64 << 20, 8 << 20);
    let (one, other) = (take(&pool, 3 << 20), take(&pool, 3 << 20));
    drop(one);
    drop(take(&pool, 5 << 20));
    let stats = pool.stats().lendable;
    assert_eq!((stats.mapped_bytes, stats.fallbacks), (8 << 20, 1));
    drop((take(&pool, 3 << 20), other));
    assert_eq!(pool.stats().lendable.recycled, 1);
    drop(take(&pool, 5 << 20));
    let stats = pool.stats().lendable;
    assert_eq!((stats.mapped_bytes, stats.fallbacks), (6 << 20, 1));
}

#[test]
fn memory_that_is_lent_is_not_used_again_before_it_is_back() {
    let (pool, parties) = (pool(64 << 20, 64 << 20), parties());
    let mut buffer = take(&pool, 3 << 20);
    let first = at(&mut buffer);
    buffer.as_bytes_mut().unwrap().fill(5);
    let buffer = buffer.freeze();
    let entry = lend(&buffer, &parties);
    drop(buffer);
    assert_eq!(pool.stats().lendable.lent_bytes, 4 << 20);
    let mut other = take(&pool, 3 << 20);
    assert_ne!(at(&mut other), first);
    parties.1.give_back(entry);
    assert_eq!(at(&mut take(&pool, 3 << 20)), first);
    assert_eq!(pool.stats().lendable.lent_bytes, 0);
}

#[test]
fn writing_to_lent_memory_copies_it_into_memory_of_the_same_sort() {
    let (pool, parties) = (pool(64 << 20, 64 << 20), parties());
    let mut buffer = take(&pool, 100_000).freeze();
    let first = buffer.as_bytes().unwrap().as_ptr();
    let entry = lend(&buffer, &parties);
    assert!(buffer.as_bytes_mut().is_none());
    buffer.make_mut().unwrap().fill(1);
    assert_ne!(buffer.as_bytes().unwrap().as_ptr(), first);
    assert!(
        block(&buffer).lend(&parties.0, 0..1).is_some(),
        "lendable, too"
    );
    // Exclusive again as soon as it is back, without a copy.
    let mut buffer = take(&pool, 100_000).freeze();
    let second = lend(&buffer, &parties);
    parties.1.give_back(second);
    parties.1.give_back(entry);
    let here = buffer.as_bytes().unwrap().as_ptr();
    assert_eq!(buffer.make_mut().unwrap().as_ptr(), here);
}

#[test]
fn what_is_lent_cannot_be_received_into() {
    let (pool, parties) = (pool(64 << 20, 64 << 20), parties());
    let buffer = take(&pool, 100_000).freeze();
    let entry = lend(&buffer, &parties);
    let memory = buffer.memory().clone();
    drop(buffer);
    let memory = BufferMut::from_memory(memory, 100_000).unwrap_err();
    parties.1.give_back(entry);
    assert!(BufferMut::from_memory(memory, 100_000).is_ok());
}

#[test]
fn a_borrower_that_hoards_makes_the_pool_fall_back_and_a_dead_one_gives_everything_back() {
    let (pool, parties) = (pool(64 << 20, 16 << 20), parties());
    for _ in 0..4 {
        let buffer = take(&pool, 4 << 20).freeze();
        lend(&buffer, &parties);
    }
    let ordinary = take(&pool, 4 << 20).freeze();
    assert!(!ordinary.memory().as_any().is::<LendableBlock>());
    let stats = pool.stats().lendable;
    assert_eq!((stats.fallbacks, stats.lent_bytes), (1, 16 << 20));
    assert!(stats.mapped_bytes <= 16 << 20);
    // Its process is gone.
    parties.0.close();
    let lendable = take(&pool, 4 << 20).freeze();
    assert!(lendable.memory().as_any().is::<LendableBlock>());
    assert_eq!(pool.stats().lendable.lent_bytes, 0);
}

#[test]
fn unused_segments_make_room_for_others_and_leave_oldest_first() {
    let pool = pool(8 << 20, 8 << 20);
    drop(take(&pool, 4 << 20));
    drop(take(&pool, 2 << 20));
    let held = take(&pool, 6 << 20);
    let stats = pool.stats().lendable;
    assert_eq!((stats.fallbacks, stats.mapped_bytes), (0, 8 << 20));
    assert_eq!(stats.segments, 2, "the older one has left");
    drop(held);
    assert_eq!(take(&pool, 9 << 20).len(), 9 << 20, "as ordinary memory");
    assert_eq!(pool.stats().lendable.fallbacks, 1);
    let none = Pool::new(PoolOptions {
        lendable: 0,
        ..PoolOptions::default()
    });
    drop(take(&none, 1 << 20));
    assert_eq!(none.stats().lendable, LendableStats::default());
}

/// No look at the statistics before the end: that would find out by itself what is back.
#[test]
fn what_was_lent_is_stale_once_it_was_back_for_a_while() {
    let (pool, parties) = (pool(64 << 20, 64 << 20), parties());
    let buffer = take(&pool, 3 << 20).freeze();
    let entry = lend(&buffer, &parties);
    drop(buffer);
    (0..3).for_each(|_| pool.trim_stale());
    let mapped = lock(&pool.lendables.state).stats.mapped_bytes;
    assert_eq!(mapped, 4 << 20, "it is lent");
    parties.1.give_back(entry);
    (0..2).for_each(|_| pool.trim_stale());
    assert_eq!(pool.stats().lendable.mapped_bytes, 0);
}

/// What goes on needs two at a time, which come back one turn after they were let go of: never the one that was lent last.
#[test]
fn what_a_burst_made_is_stale_though_its_size_is_lent_again_and_again() {
    let (pool, parties) = (pool(64 << 20, 64 << 20), parties());
    let lent = |pool: &Pool| lend(&take(pool, 1 << 20).freeze(), &parties);
    let kept: Vec<_> = (0..20).map(|_| lent(&pool)).collect();
    let burst: Vec<_> = (0..20).map(|_| lent(&pool)).collect();
    let mut last = lent(&pool);
    burst
        .into_iter()
        .for_each(|entry| parties.1.give_back(entry));
    let mut goes_on = |turns: usize| {
        for _ in 0..turns {
            let next = lent(&pool);
            parties.1.give_back(std::mem::replace(&mut last, next));
        }
        pool.trim_stale();
        lock(&pool.lendables.state).stats.segments
    };
    goes_on(100);
    goes_on(100);
    let segments = goes_on(100);
    assert!(segments <= 10 + 4, "{segments}: what is kept takes 10");
    kept.into_iter()
        .for_each(|entry| parties.1.give_back(entry));
    goes_on(100);
    let segments = goes_on(100);
    assert!(segments <= 2, "{segments}");
}

#[test]
fn without_its_pool_memory_is_unmapped_and_a_borrower_keeps_it() {
    let (pool, parties) = (pool(64 << 20, 64 << 20), parties());
    let mut buffer = take(&pool, 3 << 20);
    buffer.as_bytes_mut().unwrap().fill(7);
    let buffer = buffer.freeze();
    let fd = block(&buffer).place().unwrap().0.fd();
    let foreign = crate::sys::segment::Foreign::map(fd).unwrap();
    lend(&buffer, &parties);
    drop((pool, buffer));
    assert!(foreign.bytes(0..3 << 20).iter().all(|byte| *byte == 7));
}

#[test]
fn a_forked_child_lets_go_of_memory_whoever_has_the_lock() {
    let pool = pool(64 << 20, 64 << 20);
    let mut buffer = Some(take(&pool, 100_000));
    let held = lock(&pool.lendables.state);
    assert!(a_child_drops(&mut buffer));
    drop(held);
    assert!(
        pool.stats().lendable.outstanding_bytes > 0,
        "its parent has it"
    );
}
