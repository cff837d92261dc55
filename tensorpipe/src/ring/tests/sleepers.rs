//! Two ends on one core: who is woken runs at once, until there is nothing more to do, and sleeps again.

use super::*;

#[test]
fn who_sleeps_is_woken_once_for_what_fits_into_a_small_ring() {
    for (len, wakes) in [(1, 1), (60 << 10, 1), (64 << 10, 1), (200 << 10, 4)] {
        let (mut producer, mut consumer) = ring(256 << 10);
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
        assert_eq!(woken, wakes, "{len}");
    }
}
