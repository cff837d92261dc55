//! Whatever other processes do, the table's memory is bounded.

use std::collections::HashMap;

use super::super::{ReceiveMode, Table};
use super::stories::poll;
use super::{key, table, value};
use crate::rendezvous::limits::{LENT, REMEMBERED};
use crate::rendezvous::{Key, RecvError, SendError, Stats};

#[test]
fn what_was_received_is_remembered_up_to_a_bound() {
    let mut table = table(10, 10);
    for i in 0..REMEMBERED as u64 + 5 {
        table.send(&key(i, i / 100), value(1)).unwrap();
        let place = table.recv(&key(i, i / 100), ReceiveMode::Take).unwrap();
        poll(&mut table, &key(i, i / 100), place, 1)
            .unwrap()
            .unwrap();
    }
    let known: usize = table.steps.values().map(HashMap::len).sum();
    assert_eq!((known, table.received.len()), (REMEMBERED, REMEMBERED));
    assert!(matches!(
        table.send(&key(5, 0), value(1)),
        Err(SendError::AlreadySent(_))
    ));
}

/// Sends and receives values of these names. Returns how many keys are known afterwards.
fn pass(table: &mut Table<u32>, names: std::ops::Range<u64>) -> usize {
    for name in names {
        let key = key(name, 0);
        table.send(&key, value(1)).unwrap();
        let place = table.recv(&key, ReceiveMode::Take).unwrap();
        poll(table, &key, place, 1).unwrap().unwrap();
    }
    table.steps[&0].len()
}

#[test]
fn whoever_comes_too_late_keeps_no_key_for_ever() {
    let mut table = table(u64::MAX, usize::MAX);
    let late = key(u64::MAX, 0);
    table.send(&late, value(1)).unwrap();
    let place = table.recv(&late, ReceiveMode::Lend).unwrap();
    poll(&mut table, &late, place, 1).unwrap().unwrap();
    // A second receive waits, and has not polled yet when the first one confirms.
    let place = table.recv(&late, ReceiveMode::Lend).unwrap();
    table.confirm(&late);
    let many = REMEMBERED as u64;
    assert_eq!(pass(&mut table, 0..2 * many), REMEMBERED + 1);
    table.withdraw(&late, place);
    assert!(pass(&mut table, 2 * many..4 * many) <= REMEMBERED + 1);
    assert!(!table.steps[&0].contains_key(&late));
}

#[test]
fn of_finished_steps_little_is_kept() {
    let mut table = table(10, 10);
    let mut receive = |i, step| {
        table.send(&key(i, step), value(1)).unwrap();
        let place = table.recv(&key(i, step), ReceiveMode::Take).unwrap();
        poll(&mut table, &key(i, step), place, 1).unwrap().unwrap();
        if step > 0 {
            table.finish(step);
        }
        table.received.len()
    };
    // A step that is never finished.
    for i in 0..100 {
        receive(i, 0);
    }
    let most = (1..5000).map(|step| receive(step, step)).max();
    assert!(most < Some(300), "{most:?}");
    // Keys of a step that goes on are still remembered.
    assert!(matches!(
        table.send(&key(5, 0), value(1)),
        Err(SendError::AlreadySent(_))
    ));
}

/// A receive of a process of this name.
fn asked(table: &mut Table<u32>, consumer: &str, tensor: u64) -> (Key, u64) {
    let key = Key::new("a", 1, consumer, &tensor.to_string(), 0).unwrap();
    let place = table.recv(&key, ReceiveMode::Lend).unwrap();
    (key, place)
}

#[test]
fn who_asks_ahead_and_never_confirms_is_lent_no_more_than_the_bound_and_one_value() {
    let mut table = table(10, 100);
    let asked: Vec<_> = (0..20).map(|i| asked(&mut table, "b", i)).collect();
    // All are sent before any receive polls.
    let sent = asked.iter().map(|(key, _)| table.send(key, value(4)));
    let sent: Vec<_> = sent.map(|sent| sent.is_ok()).collect();
    assert_eq!(sent, (0..20).map(|i| i < 3).collect::<Vec<_>>());
    assert_eq!((table.stats().bytes, table.stats().waiting), (12, 20));
    // It gives a place up, which changes nothing.
    table.withdraw(&asked[0].0, asked[0].1);
    let error = table.send(&asked[3].0, value(4)).unwrap_err();
    assert!(matches!(error, SendError::Full { held: 12, .. }), "{error}");
    let (key, place) = &asked[1];
    assert_eq!(poll(&mut table, key, *place, 1).unwrap().unwrap(), 4);
    table.confirm(key);
    table.send(&asked[3].0, value(4)).unwrap();
    table.finish(0);
    assert_eq!(table.stats(), Stats::default());
    assert_eq!((table.lent_bytes, table.consumers["b"]), (0, 0));
}

#[test]
fn who_never_confirms_stops_nobody_else() {
    let mut table = table(10, 100);
    let (never, _) = asked(&mut table, "never", 0);
    table.send(&never, value(30)).unwrap();
    for i in 0..5 {
        // Each is as large as all the bound.
        let (key, place) = asked(&mut table, "b", i);
        table.send(&key, value(10)).unwrap();
        let (next, _) = asked(&mut table, "b", i + 1);
        let error = table.send(&next, value(0)).unwrap_err();
        assert!(matches!(error, SendError::Full { .. }), "{error}");
        assert_eq!(poll(&mut table, &key, place, 1).unwrap().unwrap(), 10);
        table.confirm(&key);
    }
    let here = Key::new("a", 1, "a", "own", 0).unwrap();
    table.recv(&here, ReceiveMode::Take).unwrap();
    table.send(&here, value(100)).unwrap();
}

#[test]
fn a_send_that_waits_for_a_confirmation_is_let_in_by_it() {
    let mut table = table(10, 100);
    let (first, place) = asked(&mut table, "b", 0);
    table.send(&first, value(10)).unwrap();
    poll(&mut table, &first, place, 1).unwrap().unwrap();
    // The receive comes before the send, after it, and before one that is given up.
    let (before, early) = asked(&mut table, "b", 1);
    let sends = table.send_or_block(&before, value(11)).unwrap().unwrap();
    let after = key(2, 0);
    let other = table.send_or_block(&after, value(11)).unwrap().unwrap();
    let late = table.recv(&after, ReceiveMode::Lend).unwrap();
    let (given_up, stays) = asked(&mut table, "b", 3);
    let gone = table.send_or_block(&given_up, value(1)).unwrap().unwrap();
    // And one whose receive is given up.
    let (alone, leaves) = asked(&mut table, "b", 4);
    let stuck = table.send_or_block(&alone, value(12)).unwrap().unwrap();
    table.withdraw(&alone, leaves);
    assert!(table.cancel_blocked(gone).is_none());
    assert!(table.poll_blocked(sends, &mut Some(2)).is_pending());
    assert!(table.poll_blocked(other, &mut Some(3)).is_pending());
    assert!(poll(&mut table, &before, early, 4).is_none());
    assert!(poll(&mut table, &given_up, stays, 5).is_none());
    assert_eq!((table.stats().blocked, table.stats().bytes), (3, 10));
    drop(table.take_deferred());
    table.confirm(&first);
    assert_eq!(table.take_deferred().wakes, [2, 4]);
    assert_eq!(poll(&mut table, &before, early, 4).unwrap().unwrap(), 11);
    assert!(poll(&mut table, &after, late, 6).is_none());
    table.confirm(&before);
    assert_eq!(table.take_deferred().wakes, [3, 6]);
    assert_eq!(poll(&mut table, &after, late, 6).unwrap().unwrap(), 11);
    table.confirm(&after);
    assert_eq!((table.stats().blocked, table.stats().bytes), (1, 0));
    assert!(table.poll_blocked(stuck, &mut Some(7)).is_pending());
    table.send(&given_up, value(1)).unwrap();
    assert_eq!(poll(&mut table, &given_up, stays, 5).unwrap().unwrap(), 1);
}

#[test]
fn who_never_confirms_is_not_lent_without_end() {
    let mut table = table(u64::MAX, 1);
    let lend = |table: &mut Table<u32>, name: u64| {
        let key = key(name, 0);
        let place = table.recv(&key, ReceiveMode::Lend)?;
        // Accepted whatever the bound, because a receive waits for it.
        table.send(&key, value(1)).unwrap();
        poll(table, &key, place, 1).unwrap().map(drop)
    };
    for name in 0..LENT as u64 {
        lend(&mut table, name).unwrap();
    }
    let error = lend(&mut table, LENT as u64).unwrap_err();
    assert!(
        matches!(error, RecvError::Unconfirmed { values: LENT }),
        "{error}"
    );
    assert_eq!(table.stats().values, LENT);
    let full = table.send(&key(LENT as u64, 0), value(1)).unwrap_err();
    assert!(matches!(full, SendError::Full { .. }), "{full}");
    // A lent value can be asked for again. Its confirmation makes room.
    let again = table.recv(&key(3, 0), ReceiveMode::Lend).unwrap();
    assert_eq!(poll(&mut table, &key(3, 0), again, 1).unwrap().unwrap(), 1);
    table.confirm(&key(3, 0));
    lend(&mut table, LENT as u64).unwrap();
    assert!(lend(&mut table, LENT as u64 + 1).is_err());
    table.finish(0);
    assert_eq!(table.stats(), Stats::default());
    let key = key(1, 1);
    table.send(&key, value(1)).unwrap();
    let place = table.recv(&key, ReceiveMode::Lend).unwrap();
    assert_eq!(poll(&mut table, &key, place, 1).unwrap().unwrap(), 1);
}
