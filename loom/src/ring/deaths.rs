//! One end of the ring dies between any two of its steps. The other end still finds a valid ring.

use loom::thread;

use super::control::{DONE, RingMemory};
use super::line::Line;
use super::memory::ring;
use crate::sync::{Arc, Ordering};
use crate::{check, death};

const BYTES: [u8; 3] = [1, 2, 3];

/// The consumer reads exactly the bytes that the producer published before it died.
pub fn a_producer_dies() {
    death::at_each_step(|dies| {
        check(1, move || {
            let (mut producer, mut consumer) = ring(2);
            let line = Arc::new(Line::new());
            let writer = {
                let (line, dies) = (line.clone(), dies.clone());
                thread::spawn(move || {
                    dies.live(|| {
                        line.send(&mut producer, &BYTES, 0).expect("a valid ring");
                        producer.finish(|| line.wake_consumer());
                    });
                    line.hang_up();
                })
            };
            let got = line.receive(&mut consumer, usize::MAX, 0);
            let got = got.expect("a valid ring");
            writer.join().unwrap();
            assert_eq!(got, BYTES[..got.len()]);
            assert!(consumer.is_finished() == consumer.is_ready());
            let written = consumer
                .place
                .control()
                .produced
                .0
                .written
                .load(Ordering::Relaxed);
            assert_eq!(
                (written & !DONE) as usize,
                got.len(),
                "something is left behind"
            );
        });
    });
}

/// The producer writes until the ring is full, and then hears that the consumer is gone.
pub fn a_consumer_dies() {
    death::at_each_step(|dies| {
        check(2, move || {
            let (mut producer, mut consumer) = ring(2);
            let line = Arc::new(Line::new());
            let reader = {
                let (line, dies) = (line.clone(), dies.clone());
                thread::spawn(move || {
                    dies.live(|| {
                        let got = line.receive(&mut consumer, 2, 0).expect("a valid ring");
                        assert_eq!(got, BYTES[..2]);
                    });
                    line.hang_up();
                })
            };
            let sent = line.send(&mut producer, &[BYTES, BYTES].concat(), 0);
            let sent = sent.expect("a valid ring");
            reader.join().unwrap();
            assert!((2..=4).contains(&sent), "it stops before the ring is full");
        });
    });
}
