//! The memory of larger places.

use super::*;

/// Bytes may be unread in one of them while others come to the next.
#[test]
fn places_of_one_offer_lie_apart() {
    let (mut producer, mut consumer) = ring(4096);
    let (ours, theirs) = place(16384);
    producer.offer(1);
    assert!(!consumer.is_ready());
    let own = consumer.place.clone();
    consumer.answer(1, own.with_places(&theirs, 4096));
    assert_eq!(producer.answer(1), Answer::Taken);
    let expected: Vec<u8> = (0..4096 + 8192 + 16384)
        .map(|at| (at % 251) as u8)
        .collect();
    let (mut written, mut got) = (0, Vec::<u8>::new());
    for size in [4096, 8192, 16384] {
        // A byte behind the last turn, so that there may be another one.
        let mut bytes = vec![0; (written - got.len()).saturating_sub(size / 2) + 1];
        let read = consumer.read(&mut bytes, || ()).unwrap();
        got.extend(&bytes[..read]);
        assert!(producer.has_turned() && producer.can_turn());
        producer.turn(1, own.with_place(ours.clone(), size).unwrap());
        assert_eq!(producer.write([&expected[written..]], || ()), Ok(size));
        written += size;
    }
    let mut bytes = vec![0; expected.len()];
    let read = consumer.read(&mut bytes, || ()).unwrap();
    got.extend(&bytes[..read]);
    assert!(got == expected);
    assert!(own.with_place(ours, 32768).is_none(), "it is not so large");
}

/// Whose holes kill where no page is left to fill them, and whoever has passed them can punch some at any time.
#[test]
fn places_on_pages_that_were_set_aside_are_refused() {
    let Ok(huge) = memfd::create(c"test", 2 << 20, true) else {
        println!("this system knows no such pages");
        return;
    };
    // Whether or not there are any now.
    let _ = memfd::fill(&huge, 2 << 20);
    memfd::seal(&huge, memfd::FIXED).unwrap();
    let unfit = adopt_place(&huge, &(4096..=16 << 20)).unwrap_err();
    assert!(matches!(unfit, memfd::Unfit::SetAside), "{unfit}");
}
