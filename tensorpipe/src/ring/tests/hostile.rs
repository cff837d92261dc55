//! The other end writes anything into any word, between any two steps of this one: which finds a fault, or goes on, and
//! never panics or reaches outside of its memory.

use super::*;

/// What the other end writes: near what there may be, or wild.
#[derive(Clone, Copy, Debug)]
enum Value {
    Near(i64),
    Wild(u64),
}

#[derive(Clone, Debug)]
enum Act {
    /// Word number so many of the control block.
    Set(usize, Value),
    Read(usize),
    Write(usize),
    Look(usize),
    Sleep,
    /// Takes what is offered, in a place of so many bytes, or refuses it.
    Answer(Option<u32>),
    Offer,
    Withdraw,
    Turn(bool),
}

fn value() -> impl Strategy<Value = Value> {
    let wild = prop_oneof![
        any::<u64>(),
        (0u32..64).prop_map(|bit| 1 << bit),
        (0u64..5).prop_map(|below| u64::MAX - below),
        (0u64..20).prop_map(|number| DONE | number),
    ];
    prop_oneof![
        6 => (-40i64..20_000).prop_map(Value::Near),
        2 => wild.prop_map(Value::Wild),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (0usize..9, value()).prop_map(|(word, value)| Act::Set(word, value)),
        3 => (0usize..40_000).prop_map(Act::Read),
        3 => (0usize..40_000).prop_map(Act::Write),
        1 => (0usize..40_000).prop_map(Act::Look),
        1 => Just(Act::Sleep),
        2 => prop::option::of(8u32..15).prop_map(Act::Answer),
        1 => Just(Act::Offer),
        1 => Just(Act::Withdraw),
        2 => any::<bool>().prop_map(Act::Turn),
    ]
}

/// One of few places.
fn few(value: u64) -> u64 {
    match value % 8 {
        0 => 0,
        number => place_of(number, 4096 << (value / 8 % 3)),
    }
}

/// `count`: what the other end would say, were it honest.
fn set(place: &Mapped, word: usize, value: Value, count: u64) {
    let value = match value {
        Value::Near(by) => count.wrapping_add_signed(by - 8),
        Value::Wild(value) => value,
    };
    let (written, read) = (&place.control().written.0, &place.control().read.0);
    let small = |word: &crate::sync::AtomicU32| word.store(value as u32, Ordering::SeqCst);
    match word {
        0 => written.count.store(value, Ordering::SeqCst),
        1 => written.news.store(value, Ordering::SeqCst),
        2 => written.turn_at.store(value, Ordering::SeqCst),
        // Few places, so that they are met.
        3 => written.turn_to.store(few(value), Ordering::SeqCst),
        4 => written.kept.store(value % 8, Ordering::SeqCst),
        5 => read.count.store(value, Ordering::SeqCst),
        6 => read.taken.store(value, Ordering::SeqCst),
        7 => small(&place.control().consumer_sleeps.0),
        _ => small(&place.control().producer_sleeps.0),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_consumer_finds_a_fault_or_goes_on(acts in prop::collection::vec(act(), 1..80)) {
        let (_, mut consumer) = ring(4096);
        let place = consumer.place.clone();
        let mut total = 0;
        for act in acts {
            match act {
                Act::Set(word, value) => {
                    set(&place, word, value, total);
                    // Mostly it is to be heard.
                    place.control().written.0.news.fetch_add(1, Ordering::SeqCst);
                }
                Act::Read(len) => {
                    let mut bytes = vec![0; len];
                    if let Ok(read) = consumer.read(&mut bytes, || ()) {
                        prop_assert!(read <= len);
                        total += read as u64;
                    } else {
                        prop_assert!(consumer.read(&mut [0], || ()).is_err() || consumer.is_ready());
                        // What was read before the fault counts, too.
                        total = place.control().read.0.count.load(Ordering::SeqCst) & !DONE;
                    }
                }
                Act::Look(bytes) => {
                    consumer.has(bytes);
                    consumer.is_ready();
                }
                Act::Sleep => {
                    consumer.sleep();
                }
                Act::Answer(size) => if let Some(number) = consumer.offer() {
                    let places = size.map(|bits| super::place(1 << bits).1);
                    let own = consumer.place.clone();
                    consumer.answer(number, places.iter().flat_map(|places| own.with_places(places, 4096)));
                }
                Act::Write(_) | Act::Offer | Act::Withdraw | Act::Turn(_) => {}
            }
            let (places, bytes) = consumer.holds();
            prop_assert!(places <= 9 && bytes <= 16384, "{bytes} bytes in {places}");
        }
        consumer.close(|| ());
    }

    #[test]
    fn a_producer_finds_a_fault_or_goes_on(acts in prop::collection::vec(act(), 1..80)) {
        let (mut producer, _) = ring(4096);
        let home = producer.place.clone();
        let (mut number, mut is_away) = (0, false);
        for act in acts {
            match act {
                Act::Set(word, value) => set(&home, word, value, producer.written()),
                Act::Write(len) => {
                    let bytes = vec![7; len];
                    let before = producer.written();
                    if let Ok(wrote) = producer.write([&bytes[..], &bytes[..]], || ()) {
                        prop_assert!(wrote <= 2 * len);
                        prop_assert_eq!(producer.written(), before + wrote as u64);
                    }
                }
                Act::Look(_) => {
                    producer.is_ready();
                    producer.is_drained();
                    producer.has_turned();
                }
                Act::Sleep => {
                    producer.sleep();
                }
                Act::Offer => {
                    number += 1;
                    producer.offer(number);
                }
                Act::Withdraw => producer.withdraw(|| ()),
                Act::Turn(away) => {
                    let is_taken = !away || producer.answer(number) == Answer::Taken;
                    if is_taken && away != is_away && producer.can_turn() {
                        is_away = away;
                        let large = || home.with_place(place(16384).0, 16384).unwrap();
                        match away {
                            true => producer.turn(number, large()),
                            false => producer.turn(0, home.clone()),
                        }
                    }
                }
                Act::Read(_) | Act::Answer(_) => {}
            }
        }
        producer.finish(|| ());
    }
}
