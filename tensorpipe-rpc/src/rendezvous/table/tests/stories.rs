//! Stories, step by step.

use std::task::Poll;

use super::super::{ReceiveMode, Table};
use super::{key, table, value};
use crate::rendezvous::{Key, RecvError, SendError, Stats};

/// The size of the received value, or the error; `None` if the receive still waits.
pub(super) fn poll(
    table: &mut Table<u32>,
    key: &Key,
    place: u64,
    wake: u32,
) -> Option<Result<u64, RecvError>> {
    match table.poll(key, place, &mut Some(wake)) {
        Poll::Ready(given) => Some(given.map(|value| value.byte_len())),
        Poll::Pending => None,
    }
}

#[test]
fn what_is_lent_leaves_when_that_is_confirmed() {
    let mut table = table(10, 10);
    let key = key(1, 0);
    table.send(&key, value(10)).unwrap();
    table.confirm(&key);
    assert_eq!(table.stats().bytes, 10, "it was not lent yet");
    for _ in 0..2 {
        // The second receive follows a first one that never confirmed.
        let place = table.recv(&key, ReceiveMode::Lend).unwrap();
        let lent = table.poll(&key, place, &mut Some(1));
        assert!(matches!(lent, Poll::Ready(Ok(_))));
        assert_eq!(table.stats().bytes, 10, "it counts while it is on its way");
    }
    let late = table.recv(&key, ReceiveMode::Lend).unwrap();
    table.confirm(&key);
    assert_eq!((table.stats().bytes, table.stats().values), (0, 0));
    assert!(matches!(
        poll(&mut table, &key, late, 2),
        Some(Err(RecvError::Received(_)))
    ));
    assert!(matches!(
        table.recv(&key, ReceiveMode::Take),
        Err(RecvError::Received(_))
    ));
    assert_eq!(table.stats(), Stats::default());
}

#[test]
fn the_last_who_asks_to_be_lent_a_value_has_the_place() {
    let mut table = table(10, 10);
    let key = key(1, 0);
    let first = table.recv(&key, ReceiveMode::Lend).unwrap();
    assert!(poll(&mut table, &key, first, 1).is_none());
    let second = table.recv(&key, ReceiveMode::Lend).unwrap();
    assert_eq!(table.take_deferred().wakes, [1]);
    assert!(matches!(
        poll(&mut table, &key, first, 1),
        Some(Err(RecvError::Awaited(_)))
    ));
    // The first receive has lost its place, so its withdrawal changes nothing.
    table.withdraw(&key, first);
    assert!(poll(&mut table, &key, second, 2).is_none());
    table.send(&key, value(3)).unwrap();
    assert_eq!(table.take_deferred().wakes, [2]);
    assert_eq!(poll(&mut table, &key, second, 2).unwrap().unwrap(), 3);
    // The second receive may already be gone when the first one notices that it lost its place.
    let other = super::key(3, 0);
    let first = table.recv(&other, ReceiveMode::Lend).unwrap();
    let second = table.recv(&other, ReceiveMode::Lend).unwrap();
    table.withdraw(&other, second);
    assert!(matches!(
        poll(&mut table, &other, first, 1),
        Some(Err(RecvError::Awaited(_)))
    ));
    // A receive of this process keeps its place against all others.
    let own = super::key(2, 0);
    table.recv(&own, ReceiveMode::Take).unwrap();
    assert!(matches!(
        table.recv(&own, ReceiveMode::Lend),
        Err(RecvError::Awaited(_))
    ));
}

#[test]
fn beyond_the_bound_a_send_is_refused_or_waits_in_its_turn() {
    let mut table = table(10, 10);
    let keys: Vec<_> = (0..5).map(|i| key(i, 0)).collect();
    table.send(&keys[0], value(6)).unwrap();
    let Err(SendError::Full {
        held,
        values,
        bytes,
    }) = table.send(&keys[1], value(5))
    else {
        panic!("11 bytes are held");
    };
    assert_eq!((held, values, bytes), (6, 1, 5));
    let large = table.send_or_block(&keys[1], value(5)).unwrap().unwrap();
    // There is room for it, but another send waits in front of it.
    assert!(matches!(
        table.send(&keys[2], value(1)),
        Err(SendError::Full { .. })
    ));
    let small = table.send_or_block(&keys[2], value(1)).unwrap().unwrap();
    assert!(table.poll_blocked(large, &mut Some(1)).is_pending());
    assert!(table.poll_blocked(small, &mut Some(2)).is_pending());
    assert_eq!(table.stats().blocked, 2);

    let place = table.recv(&keys[0], ReceiveMode::Take).unwrap();
    poll(&mut table, &keys[0], place, 3).unwrap().unwrap();
    assert_eq!(table.take_deferred().wakes, [1, 2]);
    assert!(matches!(
        table.poll_blocked(large, &mut Some(1)),
        Poll::Ready(Ok(()))
    ));
    assert!(matches!(
        table.poll_blocked(small, &mut Some(2)),
        Poll::Ready(Ok(()))
    ));
    assert_eq!((table.stats().bytes, table.stats().blocked), (6, 0));
}

#[test]
fn what_somebody_waits_for_is_let_in_whatever_the_bound() {
    let mut table = table(10, 1);
    table.send(&key(0, 0), value(10)).unwrap();
    // The receive comes before the send.
    let asked = key(1, 0);
    let place = table.recv(&asked, ReceiveMode::Take).unwrap();
    table.send(&asked, value(50)).unwrap();
    assert_eq!(poll(&mut table, &asked, place, 1).unwrap().unwrap(), 50);
    // The receive comes while the send waits for room, behind another one.
    let first = table.send_or_block(&key(2, 0), value(1)).unwrap().unwrap();
    let second = table.send_or_block(&key(3, 0), value(50)).unwrap().unwrap();
    assert!(table.poll_blocked(first, &mut Some(1)).is_pending());
    assert!(table.poll_blocked(second, &mut Some(2)).is_pending());
    let place = table.recv(&key(3, 0), ReceiveMode::Take).unwrap();
    assert_eq!(table.take_deferred().wakes, [2]);
    assert!(matches!(
        table.poll_blocked(second, &mut Some(2)),
        Poll::Ready(Ok(()))
    ));
    assert_eq!(poll(&mut table, &key(3, 0), place, 3).unwrap().unwrap(), 50);
    assert!(table.poll_blocked(first, &mut Some(1)).is_pending());
}

#[test]
fn what_is_larger_than_all_the_room_holds_nobody_up() {
    let mut table = table(10, 10);
    let huge = table.send_or_block(&key(0, 0), value(11)).unwrap().unwrap();
    table.send(&key(1, 0), value(10)).unwrap();
    assert!(table.poll_blocked(huge, &mut Some(1)).is_pending());
    let place = table.recv(&key(0, 0), ReceiveMode::Take).unwrap();
    assert_eq!(poll(&mut table, &key(0, 0), place, 2).unwrap().unwrap(), 11);
}

#[test]
fn a_send_that_waits_no_more_leaves_nothing_and_lets_others_in() {
    let mut table = table(10, 10);
    table.send(&key(0, 0), value(5)).unwrap();
    let large = table.send_or_block(&key(1, 0), value(6)).unwrap().unwrap();
    let small = table.send_or_block(&key(2, 0), value(5)).unwrap().unwrap();
    assert!(table.poll_blocked(small, &mut Some(1)).is_pending());
    assert!(table.cancel_blocked(large).is_none(), "it was not let in");
    assert_eq!(table.take_deferred().wakes, [1]);
    assert!(
        matches!(table.cancel_blocked(small), Some(Ok(()))),
        "it was"
    );
    assert_eq!((table.stats().bytes, table.stats().blocked), (10, 0));
    // The key is free again.
    let again = table.send_or_block(&key(1, 0), value(6)).unwrap();
    assert!(again.is_some());
}

#[test]
fn a_finished_step_is_swept() {
    let mut table = table(10, 10);
    table.send(&key(0, 7), value(5)).unwrap();
    table.send(&key(0, 8), value(4)).unwrap();
    let waits = table.recv(&key(1, 7), ReceiveMode::Take).unwrap();
    assert!(poll(&mut table, &key(1, 7), waits, 1).is_none());
    let blocked = table.send_or_block(&key(2, 7), value(5)).unwrap().unwrap();
    let other = table.send_or_block(&key(2, 8), value(5)).unwrap().unwrap();
    assert!(table.poll_blocked(blocked, &mut Some(2)).is_pending());
    assert!(table.poll_blocked(other, &mut Some(3)).is_pending());
    table.finish(7);
    let mut wakes = table.take_deferred().wakes;
    wakes.sort_unstable();
    assert_eq!(wakes, [1, 2, 3], "there is room now");
    assert!(matches!(
        poll(&mut table, &key(1, 7), waits, 1),
        Some(Err(RecvError::Finished { step: 7 }))
    ));
    assert!(matches!(
        table.poll_blocked(blocked, &mut Some(2)),
        Poll::Ready(Err(SendError::Finished { step: 7 }))
    ));
    assert!(matches!(
        table.poll_blocked(other, &mut Some(3)),
        Poll::Ready(Ok(()))
    ));
    // A late send gets the error.
    assert!(matches!(
        table.send(&key(3, 7), value(1)),
        Err(SendError::Finished { step: 7 })
    ));
    assert!(matches!(
        table.recv(&key(0, 7), ReceiveMode::Take),
        Err(RecvError::Finished { step: 7 })
    ));
    assert_eq!((table.stats().bytes, table.stats().values), (9, 2));
}
