//! The table under random steps, compared with a simple model.

use std::collections::{HashMap, HashSet};
use std::task::Poll;

use proptest::prelude::*;

use super::super::{ReceiveMode, Stage, Table};
use super::{key, table, value};
use crate::rendezvous::{Key, RecvError};

#[derive(Clone, Debug)]
enum Step {
    Send(u64, u64),
    Park(u64, u64),
    Recv(u64),
    Borrow(u64),
    Poll(usize),
    Withdraw(usize),
    Confirm(u64),
    Look(usize),
    Unpark(usize),
    Finish(u64),
}

/// A receive that has a place, or had one.
#[derive(Clone)]
struct Asked {
    key: Key,
    number: u64,
    wake: u32,
    give: ReceiveMode,
    /// Another receive has the place now.
    is_over: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = 0u64..12;
    let which = 0usize..8;
    let step = prop_oneof![
        4 => (name.clone(), 0u64..8).prop_map(|(name, bytes)| Step::Send(name, bytes)),
        4 => (name.clone(), 0u64..16).prop_map(|(name, bytes)| Step::Park(name, bytes)),
        6 => name.clone().prop_map(Step::Recv),
        3 => name.clone().prop_map(Step::Borrow),
        5 => which.clone().prop_map(Step::Poll),
        2 => which.clone().prop_map(Step::Withdraw),
        2 => name.prop_map(Step::Confirm),
        3 => which.clone().prop_map(Step::Look),
        2 => which.prop_map(Step::Unpark),
        1 => (0u64..4).prop_map(Step::Finish),
    ];
    proptest::collection::vec(step, 0..120)
}

/// Three keys for each step, four steps.
fn named(name: u64) -> Key {
    key(name % 3, name / 3)
}

proptest! {
    /// In any order of steps: a value that was sent is received once, or swept; everything held is counted; every task that can go
    /// on is woken.
    #[test]
    fn nothing_is_lost_and_nothing_comes_twice(steps in steps()) {
        const BYTES: u64 = 15;
        let mut table = table(BYTES, 4);
        // Keys that were sent successfully, at once.
        let mut sent: HashSet<Key> = HashSet::new();
        // The size of the values that were sent last, or wait for room.
        let mut offered: HashMap<Key, u64> = HashMap::new();
        let mut received: HashSet<Key> = HashSet::new();
        let mut finished: HashSet<u64> = HashSet::new();
        let mut places: Vec<Asked> = Vec::new();
        let mut senders: Vec<(Key, u64, u32)> = Vec::new();
        let mut asleep: HashSet<u32> = HashSet::new();
        let mut next = 0;
        for step in steps {
            next += 1;
            match step {
                Step::Send(name, bytes) => {
                    let is_sent = table.send(&named(name), value(bytes)).is_ok();
                    if is_sent {
                        prop_assert!(sent.insert(named(name)), "sent twice");
                        offered.insert(named(name), bytes);
                    }
                }
                Step::Park(name, bytes) => {
                    let parked = table.send_or_block(&named(name), value(bytes));
                    if parked.is_ok() {
                        offered.insert(named(name), bytes);
                    }
                    match parked {
                        Ok(None) => prop_assert!(sent.insert(named(name)), "sent twice"),
                        Ok(Some(number)) => senders.push((named(name), number, next)),
                        Err(_) => {}
                    }
                }
                Step::Recv(name) | Step::Borrow(name) => {
                    let key = named(name);
                    let give = if matches!(step, Step::Recv(_)) { ReceiveMode::Take } else { ReceiveMode::Lend };
                    if let Ok(number) = table.recv(&key, give) {
                        for place in &mut places {
                            if place.key == key && !place.is_over {
                                prop_assert_eq!((place.give, give), (ReceiveMode::Lend, ReceiveMode::Lend));
                                place.is_over = true;
                            }
                        }
                        places.push(Asked { key, number, wake: next, give, is_over: false });
                    }
                }
                Step::Poll(which) if which < places.len() => {
                    let Asked { key, number, wake, give, is_over } = places[which].clone();
                    asleep.remove(&wake);
                    match table.poll(&key, number, &mut Some(wake)) {
                        Poll::Pending => {
                            prop_assert!(!is_over);
                            asleep.insert(wake);
                        }
                        Poll::Ready(given) => {
                            places.remove(which);
                            match given {
                                Ok(value) => {
                                    prop_assert_eq!(offered[&key], value.byte_len());
                                    prop_assert!(!is_over);
                                    prop_assert!(!received.contains(&key), "received twice");
                                    if give == ReceiveMode::Take {
                                        received.insert(key);
                                    }
                                }
                                Err(RecvError::Finished { step }) => prop_assert!(finished.contains(&step)),
                                Err(RecvError::Received(key)) => prop_assert!(received.contains(&key)),
                                Err(RecvError::Awaited(_)) => prop_assert!(is_over),
                                Err(error) => return Err(TestCaseError::fail(error.to_string())),
                            }
                        }
                    }
                }
                Step::Withdraw(which) if which < places.len() => {
                    let place = places.remove(which);
                    asleep.remove(&place.wake);
                    table.withdraw(&place.key, place.number);
                }
                Step::Confirm(name) => {
                    let slots = table.steps.get(&(name / 3));
                    let slot = slots.and_then(|slots| slots.get(&named(name)));
                    if slot.is_some_and(|slot| matches!(slot.stage, Stage::Here { lent: true, .. })) {
                        prop_assert!(received.insert(named(name)), "received twice");
                    }
                    table.confirm(&named(name));
                }
                Step::Look(which) if which < senders.len() => {
                    let (key, number, wake) = senders[which].clone();
                    asleep.remove(&wake);
                    match table.poll_blocked(number, &mut Some(wake)) {
                        Poll::Pending => {
                            asleep.insert(wake);
                        }
                        Poll::Ready(how) => {
                            senders.remove(which);
                            match how {
                                Ok(()) => prop_assert!(sent.insert(key), "sent twice"),
                                Err(_) => prop_assert!(finished.contains(&key.step())),
                            }
                        }
                    }
                }
                Step::Unpark(which) if which < senders.len() => {
                    let (_, number, wake) = senders.remove(which);
                    asleep.remove(&wake);
                    table.cancel_blocked(number);
                }
                Step::Finish(step) => {
                    table.finish(step);
                    finished.insert(step);
                }
                _ => {}
            }
            for woken in table.take_deferred().wakes {
                prop_assert!(asleep.remove(&woken), "nobody sleeps there");
            }
            check(&table, BYTES, &places, &asleep)?;
        }
    }
}

/// The invariants at the top of the table.
fn check(
    table: &Table<u32>,
    limit: u64,
    places: &[Asked],
    asleep: &HashSet<u32>,
) -> Result<(), TestCaseError> {
    let (mut bytes, mut values, mut waiting, mut received) = (0, 0, 0, 0);
    let (mut on_loan, mut on_loan_bytes) = (0, 0);
    for (step, slots) in &table.steps {
        prop_assert!(!slots.is_empty());
        for (key, slot) in slots {
            prop_assert_eq!(key.step(), *step);
            waiting += usize::from(slot.waiter.is_some());
            match &slot.stage {
                Stage::Empty => prop_assert!(slot.waiter.is_some(), "a slot of nothing"),
                Stage::Blocked(_, value) => {
                    if let Some(waiter) = &slot.waiter {
                        let accepts = table.accepts(key, value.byte_len(), waiter.give);
                        prop_assert!(!accepts, "it is asked for");
                    }
                }
                Stage::Here { value, lent } => {
                    if *lent {
                        on_loan += 1;
                        on_loan_bytes += value.byte_len();
                    }
                    bytes += value.byte_len();
                    values += 1;
                }
                Stage::Received(number) => {
                    prop_assert_eq!(&table.received[number], key);
                    received += 1;
                }
            }
            let sleeps = places
                .iter()
                .any(|place| place.key == *key && asleep.contains(&place.wake));
            let ready = matches!(slot.stage, Stage::Here { .. } | Stage::Received(_));
            prop_assert!(!(sleeps && ready), "a receiver sleeps beside its value");
        }
    }
    prop_assert_eq!(table.received.len(), received);
    let stats = table.stats();
    prop_assert_eq!(
        (stats.bytes, stats.values, stats.waiting, table.lent),
        (bytes, values, waiting, on_loan)
    );
    let counted = table.consumers.get("b").copied().unwrap_or_default();
    prop_assert_eq!((table.lent_bytes, counted), (on_loan_bytes, on_loan));
    if let Some((_, key)) = table.room.first() {
        let slots = &table.steps[&key.step()];
        let Stage::Blocked(_, value) = &slots[key].stage else {
            return Err(TestCaseError::fail("the first in the queue is not blocked"));
        };
        prop_assert!(value.byte_len() <= limit);
        prop_assert!(
            !table.fits(value.byte_len()),
            "the first waits although there is room"
        );
    }
    Ok(())
}
