//! The other end writes anything into any word, between any two steps of this one. This one finds a fault, or goes on, and never panics or
//! reaches outside of its memory.

use super::*;

/// What the other end writes: near what there may be, or wild.
#[derive(Clone, Copy, Debug)]
enum Value {
    /// What an honest one may say.
    Exact,
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
    GiveBack,
}

fn value() -> impl Strategy<Value = Value> {
    let wild = prop_oneof![
        any::<u64>(),
        (0u32..64).prop_map(|bit| 1 << bit),
        (0u64..5).prop_map(|below| u64::MAX - below),
        (0u64..20).prop_map(|number| DONE | number),
    ];
    prop_oneof![
        2 => Just(Value::Exact),
        6 => (-40i64..20_000).prop_map(Value::Near),
        2 => wild.prop_map(Value::Wild),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (0usize..5, value()).prop_map(|(word, value)| Act::Set(word, value)),
        3 => (0usize..40_000).prop_map(Act::Read),
        3 => (0usize..40_000).prop_map(Act::Write),
        1 => (0usize..40_000).prop_map(Act::Look),
        1 => Just(Act::Sleep),
        1 => Just(Act::GiveBack),
    ]
}

/// `count`: what the other end would say, were it honest.
fn set(place: &Mapped, word: usize, value: Value, count: u64) {
    let value = match value {
        Value::Exact => count,
        Value::Near(by) => count.wrapping_add_signed(by - 8),
        Value::Wild(value) => value,
    };
    let control = place.control();
    let small = |word: &crate::sync::AtomicU32| word.store(value as u32, Ordering::SeqCst);
    match word {
        0 => control.produced.0.written.store(value, Ordering::SeqCst),
        1 => control.read.0.store(value, Ordering::SeqCst),
        2 => control.produced.0.origin.store(value, Ordering::SeqCst),
        3 => small(&control.consumer_sleeps.0),
        _ => small(&control.producer_sleeps.0),
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
                Act::Set(word, value) => set(&place, word, value, total),
                Act::Read(len) => {
                    let mut bytes = vec![0; len];
                    if let Ok(read) = consumer.read(&mut bytes, || ()) {
                        prop_assert!(read <= len);
                        total += read as u64;
                    } else {
                        prop_assert!(consumer.read(&mut [0], || ()).is_err() || consumer.is_ready());
                        // What was read before the fault counts, too.
                        total = place.control().read.0.load(Ordering::SeqCst) & !DONE;
                    }
                }
                Act::Look(bytes) => {
                    consumer.has_bytes(bytes);
                    consumer.is_ready();
                }
                Act::Sleep => {
                    consumer.sleep();
                }
                Act::Write(_) | Act::GiveBack => {}
            }
            prop_assert!(consumer.available() <= 4096);
        }
        consumer.close(|| ());
    }

    #[test]
    fn a_producer_finds_a_fault_or_goes_on(acts in prop::collection::vec(act(), 1..80)) {
        let (mut producer, _) = ring(4096);
        let home = producer.place.clone();
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
                }
                Act::Sleep => {
                    producer.sleep();
                }
                Act::GiveBack => _ = producer.give_back(),
                Act::Read(_) => {}
            }
        }
        producer.finish(|| ());
    }
}
