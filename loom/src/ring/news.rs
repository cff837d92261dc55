//! What the producer says rarely is heard word by word, while it says the next thing: a turn is heard whole, or not yet, and
//! the place that it leads to is still there.

use loom::thread;

use super::consumer::Consumer;
use super::line::Line;
use super::memory::{Memory, ring};
use super::producer::Producer;
use super::turns::taken;
use crate::check;
use crate::sync::Arc;

/// Another place is offered right before the producer turns back.
pub fn a_turn_is_heard_whole_behind_an_offer() {
    back_behind(|producer, _| producer.offer(2));
}

/// The place is taken back right before the producer leaves it.
pub fn a_turn_is_heard_whole_behind_a_withdrawal() {
    back_behind(take_back);
}

/// Another place is offered right after the producer has turned to the last one.
pub fn a_place_is_kept_for_a_turn_in_front_of_an_offer() {
    there_in_front_of(|producer, _| producer.offer(2));
}

/// The place is taken back when the producer has turned to it, and written what is to go there.
pub fn a_place_is_kept_for_a_turn_in_front_of_a_withdrawal() {
    there_in_front_of(take_back);
}

/// What the producer says beside a turn.
type Say = fn(&mut Producer<Memory>, &Line);

fn take_back(producer: &mut Producer<Memory>, line: &Line) {
    producer.withdraw(|| line.wake_consumer());
}

/// From the large place, of which the consumer has read something, back home.
fn back_behind(says: Say) {
    check(3, move || {
        let (mut producer, mut consumer) = ring(2);
        let [home, large] = taken(&mut producer, &mut consumer);
        producer.turn(1, large);
        assert_eq!(producer.write([&[1][..]], || ()), Ok(1));
        assert_eq!(consumer.read(&mut [0], || ()), Ok(1));
        assert!(producer.is_drained() && producer.can_turn());
        finds(producer, consumer, move |producer, line| {
            says(producer, line);
            producer.turn(0, home.clone());
        });
    });
}

/// From home to the large place, back, and there again: news enough to hear of one while the next comes.
fn there_in_front_of(says: Say) {
    check(2, move || {
        let (mut producer, mut consumer) = ring(2);
        let [home, large] = taken(&mut producer, &mut consumer);
        finds(producer, consumer, move |producer, line| {
            producer.turn(1, large.clone());
            producer.turn(0, home.clone());
            producer.turn(1, large.clone());
            says(producer, line);
        });
    });
}

/// What is written after `turns` arrives, while the consumer reads and sleeps.
fn finds(
    mut producer: Producer<Memory>,
    mut consumer: Consumer<Memory>,
    turns: impl FnOnce(&mut Producer<Memory>, &Line) + 'static,
) {
    let line = Arc::new(Line::new());
    let writer = {
        let line = line.clone();
        thread::spawn(move || {
            turns(&mut producer, &line);
            assert_eq!(line.send(&mut producer, &[2, 3], 0), Ok(2));
            producer.finish(|| line.wake_consumer());
        })
    };
    let got = line.receive(&mut consumer, usize::MAX, 0);
    assert_eq!(got, Ok(vec![2, 3]));
    writer.join().unwrap();
}
