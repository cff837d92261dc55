//! Whatever other processes do, the table's memory is bounded.

use std::collections::HashMap;

use super::super::{ReceiveMode, Table};
use super::stories::poll;
use super::{key, table, value};
use crate::rendezvous::limits::{LENT, REMEMBERED};
use crate::rendezvous::{RecvError, SendError, Stats};

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

#[test]
fn who_never_confirms_is_not_lent_without_end() {
    let mut table = table(1, 1);
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
