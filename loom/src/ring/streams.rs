//! Bytes arrive complete and in order, and the two ends never touch the same byte at once.

use loom::thread;

use super::line::Line;
use super::memory::ring;
use crate::check;
use crate::sync::Arc;

/// The ring holds less than one write; both ends sleep.
pub fn bytes_arrive_through_a_small_ring() {
    check(2, || stream(2, 4, [0, 0]));
}

/// The ring holds more than is published at once.
pub fn bytes_arrive_through_a_larger_ring() {
    check(2, || stream(4, 5, [0, 0]));
}

/// Both ends poll a few times before they sleep. No needed wake is lost.
pub fn bytes_arrive_while_both_look() {
    check(2, || stream(2, 4, [1, 2]));
}

/// The producer gives the memory back whenever all of it has been read.
pub fn bytes_arrive_though_the_memory_goes_back() {
    check(2, || {
        let (mut producer, mut consumer) = ring(2);
        let line = Arc::new(Line::new());
        let writer = {
            let line = line.clone();
            thread::spawn(move || {
                for byte in 1..=3 {
                    assert_eq!(line.send(&mut producer, &[byte], 0), Ok(1));
                    producer.give_back();
                }
                producer.finish(|| line.wake_consumer());
            })
        };
        let got = line.receive(&mut consumer, usize::MAX, 0);
        assert_eq!(got, Ok(vec![1, 2, 3]));
        writer.join().unwrap();
    });
}

/// The producer goes back to the start whenever it finds all read behind three bytes: in some orders, and not in others.
pub fn bytes_arrive_though_the_ring_is_rewound() {
    check(2, || {
        let (mut producer, mut consumer) = ring(4);
        let line = Arc::new(Line::new());
        let writer = {
            let line = line.clone();
            thread::spawn(move || {
                for bytes in [&[1, 2, 3][..], &[4], &[5, 6]] {
                    assert_eq!(line.send(&mut producer, bytes, 0), Ok(bytes.len()));
                }
                producer.finish(|| line.wake_consumer());
            })
        };
        let got = line.receive(&mut consumer, usize::MAX, 0);
        assert_eq!(got, Ok(vec![1, 2, 3, 4, 5, 6]));
        writer.join().unwrap();
    });
}

fn stream(capacity: usize, len: u8, looks: [u32; 2]) {
    let (mut producer, mut consumer) = ring(capacity);
    let line = Arc::new(Line::new());
    let bytes: Vec<u8> = (1..=len).collect();
    let writer = {
        let (line, bytes) = (line.clone(), bytes.clone());
        thread::spawn(move || {
            let sent = line.send(&mut producer, &bytes, looks[0]);
            assert_eq!(sent, Ok(bytes.len()));
            producer.finish(|| line.wake_consumer());
        })
    };
    let got = line.receive(&mut consumer, usize::MAX, looks[1]);
    assert_eq!(got, Ok(bytes));
    assert!(consumer.is_finished());
    writer.join().unwrap();
}
