//! Bytes go through another place for a while, and arrive as ever.

use loom::thread;

use super::consumer::Consumer;
use super::line::Line;
use super::memory::{Memory, ring};
use super::producer::{Answer, Producer};
use crate::sync::Arc;
use crate::{check, death};

/// There and back, while the consumer reads and sleeps.
pub fn bytes_arrive_through_two_turns() {
    check(2, || {
        let (mut producer, mut consumer) = ring(2);
        let [home, large] = taken(&mut producer, &mut consumer);
        let line = Arc::new(Line::new());
        let writer = {
            let line = line.clone();
            thread::spawn(move || {
                assert_eq!(line.send(&mut producer, &[1, 2], 0), Ok(2));
                producer.turn(1, large);
                assert_eq!(line.send(&mut producer, &[3, 4, 5], 0), Ok(3));
                if producer.has_turned() && producer.can_turn() {
                    assert!(producer.read() >= 3, "the large place is not read yet");
                    producer.turn(0, home);
                }
                assert_eq!(line.send(&mut producer, &[6], 0), Ok(1));
                producer.finish(|| line.wake_consumer());
            })
        };
        let got = line.receive(&mut consumer, usize::MAX, 0);
        assert_eq!(got, Ok(vec![1, 2, 3, 4, 5, 6]));
        writer.join().unwrap();
    });
}

/// To a place of one size, on to one of another, and home, while the consumer reads and sleeps.
pub fn bytes_arrive_through_places_of_two_sizes() {
    check(2, || {
        let (mut producer, mut consumer) = ring(2);
        let [two, four] = [2, 4].map(|size| producer.place.elsewhere(size));
        let home = takes(&mut producer, &mut consumer, &[two.clone(), four.clone()]);
        let line = Arc::new(Line::new());
        let writer = {
            let line = line.clone();
            thread::spawn(move || {
                producer.turn(1, two);
                assert_eq!(line.send(&mut producer, &[1, 2], 0), Ok(2));
                if producer.has_turned() && producer.can_turn() {
                    producer.turn(1, four);
                }
                assert_eq!(line.send(&mut producer, &[3, 4], 0), Ok(2));
                if producer.has_turned() && producer.can_turn() {
                    producer.turn(0, home);
                }
                assert_eq!(line.send(&mut producer, &[5], 0), Ok(1));
                producer.finish(|| line.wake_consumer());
            })
        };
        let got = line.receive(&mut consumer, usize::MAX, 0);
        assert_eq!(got, Ok(vec![1, 2, 3, 4, 5]));
        writer.join().unwrap();
    });
}

/// A place that the producer has left, and the consumer, too, can be given to somebody else.
pub fn a_place_that_was_left_is_free() {
    check(2, || {
        let (mut producer, mut consumer) = ring(2);
        let [home, large] = taken(&mut producer, &mut consumer);
        let line = Arc::new(Line::new());
        producer.turn(1, large.clone());
        let writer = {
            let line = line.clone();
            thread::spawn(move || {
                assert_eq!(line.send(&mut producer, &[1, 2], 0), Ok(2));
                if producer.is_drained() && producer.can_turn() {
                    producer.turn(0, home.clone());
                    producer.withdraw(|| line.wake_consumer());
                    large.overwrite();
                } else if producer.can_turn() {
                    producer.turn(0, home);
                    if producer.has_turned() {
                        large.overwrite();
                    }
                }
                assert_eq!(line.send(&mut producer, &[3], 0), Ok(1));
            })
        };
        let got = line.receive(&mut consumer, 3, 0);
        assert_eq!(got, Ok(vec![1, 2, 3]));
        writer.join().unwrap();
    });
}

/// The offer comes while the consumer reads, which takes it; the producer turns if it has seen that.
pub fn a_place_is_taken_while_bytes_flow() {
    check(2, || {
        let (mut producer, mut consumer) = ring(2);
        let large = producer.place.elsewhere(4);
        let line = Arc::new(Line::new());
        let writer = {
            let (line, large) = (line.clone(), large.clone());
            thread::spawn(move || {
                producer.offer(1);
                for byte in 1..=4 {
                    if byte == 3 && producer.answer(1) == Answer::Taken && producer.can_turn() {
                        producer.turn(1, large.clone());
                    }
                    assert_eq!(line.send(&mut producer, &[byte], 0), Ok(1));
                }
            })
        };
        for byte in 1..=4 {
            assert_eq!(line.receive(&mut consumer, 1, 0), Ok(vec![byte]));
            take(&mut consumer, std::slice::from_ref(&large));
        }
        writer.join().unwrap();
    });
}

/// Whatever a producer that turns has published before it dies is read, and nothing else.
pub fn a_producer_dies_while_it_turns() {
    death::at_each_step(|dies| {
        check(1, move || {
            let (mut producer, mut consumer) = ring(2);
            let [home, large] = taken(&mut producer, &mut consumer);
            let line = Arc::new(Line::new());
            let writer = {
                let (line, dies) = (line.clone(), dies.clone());
                thread::spawn(move || {
                    dies.live(|| {
                        line.send(&mut producer, &[1], 0).expect("a valid ring");
                        producer.turn(1, large);
                        line.send(&mut producer, &[2, 3], 0).expect("a valid ring");
                        if producer.can_turn() {
                            producer.turn(0, home);
                        }
                        line.send(&mut producer, &[4], 0).expect("a valid ring");
                    });
                    line.hang_up();
                })
            };
            let got = line.receive(&mut consumer, usize::MAX, 0);
            let got = got.expect("a valid ring");
            writer.join().unwrap();
            assert_eq!(got, [1, 2, 3, 4][..got.len()]);
        });
    });
}

/// The ring's own place, and a larger one that was offered and taken.
pub(super) fn taken(
    producer: &mut Producer<Memory>,
    consumer: &mut Consumer<Memory>,
) -> [Memory; 2] {
    let large = producer.place.elsewhere(4);
    let home = takes(producer, consumer, std::slice::from_ref(&large));
    [home, large]
}

/// Some were offered and taken; returns the ring's own place.
fn takes(
    producer: &mut Producer<Memory>,
    consumer: &mut Consumer<Memory>,
    places: &[Memory],
) -> Memory {
    producer.offer(1);
    assert_eq!(producer.write([&[0][..]], || ()), Ok(1));
    assert_eq!(consumer.read(&mut [0], || ()), Ok(1));
    take(consumer, places);
    assert_eq!(producer.answer(1), Answer::Taken);
    assert!(producer.is_drained() && producer.can_turn());
    producer.place.clone()
}

fn take(consumer: &mut Consumer<Memory>, places: &[Memory]) {
    if let Some(number) = consumer.offer() {
        consumer.answer(number, places.iter().cloned());
    }
}
