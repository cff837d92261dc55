//! A sleeping end is woken when there is something to do. loom reports an end that would sleep for ever.

use loom::thread;

use super::control::Fault;
use super::line::Line;
use super::memory::ring;
use crate::check;
use crate::sync::Arc;

/// One byte comes while the consumer sleeps or is about to.
pub fn a_consumer_hears_of_bytes() {
    check(None, || {
        let (mut producer, mut consumer) = ring(2);
        let line = Arc::new(Line::new());
        let reader = {
            let line = line.clone();
            thread::spawn(move || line.receive(&mut consumer, 1, 0))
        };
        assert_eq!(line.send(&mut producer, &[7], 0), Ok(1));
        assert_eq!(reader.join().unwrap(), Ok(vec![7]));
    });
}

/// The stream ends without a byte while the consumer sleeps.
pub fn a_consumer_hears_of_the_end() {
    check(None, || {
        let (producer, mut consumer) = ring(2);
        let line = Arc::new(Line::new());
        let reader = {
            let line = line.clone();
            thread::spawn(move || line.receive(&mut consumer, 1, 0))
        };
        producer.finish(|| line.wake_consumer());
        assert_eq!(reader.join().unwrap(), Ok(vec![]));
    });
}

/// A consumer announces its sleep, stays awake after all, polls once, and sleeps. An old wake-up may be in transit.
pub fn a_consumer_that_stayed_awake_hears_of_bytes() {
    check(3, || {
        let (mut producer, mut consumer) = ring(2);
        let line = Arc::new(Line::new());
        let reader = {
            let line = line.clone();
            thread::spawn(move || {
                consumer.sleep();
                line.receive(&mut consumer, 2, 1)
            })
        };
        assert_eq!(line.send(&mut producer, &[7], 0), Ok(1));
        assert_eq!(line.send(&mut producer, &[8], 0), Ok(1));
        assert_eq!(reader.join().unwrap(), Ok(vec![7, 8]));
    });
}

/// The ring is full, and the consumer makes room while the producer sleeps.
pub fn a_producer_hears_of_room() {
    check(None, || {
        let (mut producer, mut consumer) = ring(2);
        let line = Arc::new(Line::new());
        assert_eq!(line.send(&mut producer, &[1, 2], 0), Ok(2));
        let reader = {
            let line = line.clone();
            thread::spawn(move || line.receive(&mut consumer, 2, 0))
        };
        assert_eq!(line.send(&mut producer, &[3], 0), Ok(1));
        assert_eq!(reader.join().unwrap(), Ok(vec![1, 2]));
    });
}

/// The ring is full, and the consumer goes away while the producer sleeps.
pub fn a_producer_hears_that_nobody_reads() {
    check(None, || {
        let (mut producer, consumer) = ring(2);
        let line = Arc::new(Line::new());
        assert_eq!(line.send(&mut producer, &[1, 2], 0), Ok(2));
        let reader = {
            let line = line.clone();
            thread::spawn(move || consumer.close(|| line.wake_producer()))
        };
        assert_eq!(line.send(&mut producer, &[3], 0), Err(Fault::NoReader));
        reader.join().unwrap();
    });
}
