//! Two ends, one of them asleep. On one core the end that is woken runs at once, until there is nothing more to do, and sleeps again.

use super::*;
use crate::ring::control::Control;

/// Where its end runs on a processor of this number.
struct On(u32, Mapped);

impl RingMemory for On {
    fn control(&self) -> &Control {
        self.1.control()
    }

    fn capacity(&self) -> usize {
        self.1.capacity()
    }

    fn processor(&self) -> Option<u32> {
        Some(self.0)
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        self.1.put(at, bytes);
    }

    fn take(&self, at: usize, bytes: &mut [u8]) {
        self.1.take(at, bytes);
    }
}

/// How often a reader is woken that sleeps whenever it has read all there is.
fn wakes(len: usize, writer: u32, reader: u32) -> usize {
    let (producer, consumer) = ring(256 << 10);
    let mut producer = Producer::new(On(writer, producer.place));
    let mut consumer = Consumer::new(On(reader, consumer.place));
    let sent: Vec<u8> = (0..len).map(|i: usize| (i * 31 / 7) as u8).collect();
    let (mut got, mut bytes) = (Vec::new(), vec![0; len]);
    let mut woken = 0;
    assert!(consumer.sleep());
    let wrote = producer.write([&sent[..]], || {
        woken += 1;
        let read = consumer.read(&mut bytes, || ()).unwrap();
        got.extend_from_slice(&bytes[..read]);
        assert!(consumer.sleep());
    });
    assert_eq!(wrote.unwrap(), len);
    assert!(got == sent, "woken before the last byte was there");
    woken
}

#[test]
fn who_sleeps_is_woken_once_for_up_to_64_kib() {
    for (len, expected) in [(1, 1), (60 << 10, 1), (64 << 10, 1), (200 << 10, 4)] {
        assert_eq!(wakes(len, 0, 1), expected, "{len}");
    }
}

#[test]
fn on_the_writers_own_processor_it_is_woken_when_all_is_there() {
    for len in [1, 64 << 10, 200 << 10, 256 << 10] {
        assert_eq!(wakes(len, 3, 3), 1, "{len}");
    }
}
