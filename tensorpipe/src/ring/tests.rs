//! The ring against a queue, and between two threads.

mod far;
mod hostile;
mod sleepers;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;

use super::control::{DONE, RingMemory};
use super::*;
use crate::sync::Ordering;
use crate::sys::memfd;

fn ring(capacity: usize) -> (Producer<Mapped>, Consumer<Mapped>) {
    let (memory, fd) = create(capacity).unwrap();
    let theirs = adopt(&fd, &(capacity..=capacity)).unwrap();
    (
        Producer::new(Mapped::new(Arc::new(memory), 1).unwrap()),
        Consumer::new(Mapped::new(Arc::new(theirs), 1).unwrap()),
    )
}

#[derive(Clone, Debug)]
enum Step {
    Write(Vec<usize>),
    Read(usize),
    ConsumerSleeps,
    ProducerSleeps,
    StayAwake,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        prop::collection::vec(0usize..6000, 1..4).prop_map(Step::Write),
        (0usize..6000).prop_map(Step::Read),
        Just(Step::ConsumerSleeps),
        Just(Step::ProducerSleeps),
        Just(Step::StayAwake),
    ]
}

proptest! {
    #[test]
    fn it_does_what_a_queue_does(steps in prop::collection::vec(step(), 1..60)) {
        let (mut producer, mut consumer) = ring(4096);
        let mut queue = VecDeque::new();
        let mut next = 0u8;
        let (mut consumer_sleeps, mut producer_sleeps) = (false, false);
        for step in steps {
            match step {
                Step::Write(lens) => {
                    let pieces: Vec<Vec<u8>> = lens
                        .iter()
                        .map(|len| (0..*len).map(|_| { next = next.wrapping_add(37); next }).collect())
                        .collect();
                    let mut woken = 0;
                    let wrote = producer.write(pieces.iter().map(Vec::as_slice), || woken += 1).unwrap();
                    let all: Vec<u8> = pieces.concat();
                    prop_assert_eq!(wrote, all.len().min(4096 - queue.len()));
                    prop_assert_eq!(woken, usize::from(consumer_sleeps && wrote > 0));
                    if wrote > 0 {
                        consumer_sleeps = false;
                    }
                    queue.extend(&all[..wrote]);
                    // What did not fit is written again with other content.
                }
                Step::Read(len) => {
                    let mut bytes = vec![0; len];
                    let mut woken = 0;
                    let read = consumer.read(&mut bytes, || woken += 1).unwrap();
                    prop_assert_eq!(read, len.min(queue.len()));
                    let expected: Vec<u8> = queue.drain(..read).collect();
                    prop_assert_eq!(&bytes[..read], &expected[..]);
                    // At the latest when half of the ring is free: the consumer may not know the newest bytes.
                    prop_assert!(woken <= usize::from(producer_sleeps));
                    prop_assert!(woken == 1 || !producer_sleeps || read == 0 || queue.len() > 2048);
                    producer_sleeps &= woken == 0;
                }
                Step::ConsumerSleeps => {
                    let sleeps = consumer.sleep();
                    prop_assert_eq!(sleeps, queue.is_empty());
                    consumer_sleeps = sleeps;
                }
                Step::ProducerSleeps => {
                    let sleeps = producer.sleep();
                    prop_assert_eq!(sleeps, queue.len() == 4096);
                    producer_sleeps = sleeps;
                }
                Step::StayAwake => {
                    consumer.cancel_sleep();
                    consumer_sleeps = false;
                }
            }
            prop_assert_eq!(consumer.is_ready(), !queue.is_empty());
            prop_assert_eq!(producer.is_ready(), queue.len() < 4096);
            for wanted in [1, 2048, 2049, 6000] {
                prop_assert_eq!(consumer.has_bytes(wanted), queue.len() >= wanted.min(2048));
            }
        }
        producer.finish(|| ());
        let mut rest = vec![0; queue.len()];
        prop_assert_eq!(consumer.read(&mut rest, || ()).unwrap(), queue.len());
        prop_assert!(consumer.is_ready() && consumer.has_bytes(1) && consumer.is_finished());
        prop_assert_eq!(rest, Vec::from(queue));
    }
}

#[test]
fn a_ring_that_is_read_empty_is_rewound_and_no_other() {
    const LITTLE: usize = Mapped::REWIND + 100;
    let (mut producer, mut consumer) = ring(65536);
    let piece: Vec<u8> = (0..100).collect();
    let (mut written, mut read) = (Vec::new(), Vec::new());
    let mut pass = |unread: usize| {
        let mut place = [0; 150];
        for _ in 0..1000 {
            producer.write([&piece[..]], || ()).unwrap();
            written.extend_from_slice(&piece);
            let len = place.len().min(written.len() - read.len() - unread);
            let got = consumer.read(&mut place[..len], || ()).unwrap();
            read.extend_from_slice(&place[..got]);
        }
        assert!(read == written[..written.len() - unread]);
        producer.used() as usize
    };
    assert!(pass(0) <= LITTLE);
    assert!(pass(0) <= LITTLE);
    // Something is always there.
    assert_eq!(pass(1), 65536);
    assert!(!producer.give_back() && producer.used() == 65536);
    assert_eq!(consumer.read(&mut [0; 2], || ()), Ok(1));
    assert!(producer.give_back() && producer.used() == 0);
    producer.write([&piece[..]], || ()).unwrap();
    assert_eq!(producer.used(), 100);
}

#[test]
fn two_threads_sleep_and_wake_and_lose_nothing() {
    const TOTAL: usize = 8 << 20;
    let (mut producer, mut consumer) = ring(8192);
    let (awake, asleep) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (wakes_consumer, wakes_producer) = (awake.clone(), asleep.clone());
    let this = std::thread::current();
    let writer = std::thread::spawn(move || {
        let mut sent = 0;
        while sent < TOTAL {
            let len = (1 + sent * 7 % 3000).min(TOTAL - sent);
            let bytes: Vec<u8> = (sent..sent + len).map(|at| (at % 251) as u8).collect();
            let mut left = &bytes[..];
            while !left.is_empty() {
                let wrote = producer
                    .write([left], || {
                        wakes_consumer.store(true, Ordering::SeqCst);
                        this.unpark();
                    })
                    .unwrap();
                left = &left[wrote..];
                if wrote == 0 && producer.sleep() {
                    while !asleep.swap(false, Ordering::SeqCst) {
                        std::thread::park();
                    }
                }
            }
            sent += len;
        }
        producer.finish(|| {
            wakes_consumer.store(true, Ordering::SeqCst);
            this.unpark();
        });
    });
    let mut got = 0;
    let mut bytes = [0; 5000];
    while !consumer.is_finished() {
        let read = consumer
            .read(&mut bytes, || {
                wakes_producer.store(true, Ordering::SeqCst);
                writer.thread().unpark();
            })
            .unwrap();
        for (i, byte) in bytes[..read].iter().enumerate() {
            assert_eq!(usize::from(*byte), (got + i) % 251);
        }
        got += read;
        if read == 0 && consumer.sleep() {
            while !awake.swap(false, Ordering::SeqCst) {
                std::thread::park();
            }
        }
    }
    assert_eq!(got, TOTAL);
    writer.join().unwrap();
}

#[test]
fn a_peer_that_writes_nonsense_is_a_fault() {
    for nonsense in [5000, u64::MAX >> 1, DONE | 4097] {
        let (producer, mut consumer) = ring(4096);
        producer
            .place
            .control()
            .produced
            .0
            .written
            .store(nonsense, Ordering::SeqCst);
        assert!(consumer.is_ready() && consumer.has_bytes(1));
        assert_eq!(consumer.read(&mut [0; 10], || ()), Err(Fault::Counter));
    }
    for nonsense in [1, 4097, u64::MAX >> 1] {
        let (mut producer, consumer) = ring(4096);
        consumer
            .place
            .control()
            .read
            .0
            .store(nonsense, Ordering::SeqCst);
        assert_eq!(producer.refresh(), Err(Fault::Counter));
        assert!(producer.is_ready(), "it can say so at once: there is room");
    }
    // Going back.
    let (mut producer, mut consumer) = ring(4096);
    producer.write([&[1; 100][..]], || ()).unwrap();
    consumer.read(&mut [0; 100], || ()).unwrap();
    producer
        .place
        .control()
        .produced
        .0
        .written
        .store(50, Ordering::SeqCst);
    assert_eq!(consumer.refresh(), Err(Fault::Counter));
    producer.refresh().unwrap();
    consumer.place.control().read.0.store(99, Ordering::SeqCst);
    assert_eq!(producer.refresh(), Err(Fault::Counter));
}

#[test]
fn a_writer_hears_that_nobody_reads_any_more() {
    let (mut producer, consumer) = ring(4096);
    assert_eq!(producer.write([&[1; 5000][..]], || ()), Ok(4096));
    assert!(producer.sleep());
    let mut woken = false;
    consumer.close(|| woken = true);
    assert!(woken && producer.is_ready());
    assert_eq!(producer.write([&[1][..]], || ()), Err(Fault::NoReader));
}

#[test]
fn a_writer_that_waits_is_woken_once_half_of_the_ring_is_free() {
    let (mut producer, mut consumer) = ring(4096);
    assert_eq!(producer.write([&[1; 5000][..]], || ()), Ok(4096));
    assert!(producer.sleep());
    let mut read = |len: usize| {
        let mut woken = 0;
        consumer.read(&mut vec![0; len], || woken += 1).unwrap();
        woken
    };
    assert_eq!((read(2047), read(1), read(1)), (0, 1, 0));
}

#[test]
fn memory_that_could_shrink_or_is_of_another_size_is_refused() {
    let refused = |fd: &OwnedFd| adopt(fd, &(4096..=8192)).unwrap_err().to_string();
    let unsealed = memfd::create(c"test", 12288, false).unwrap();
    assert!(refused(&unsealed).contains("lacks the seals"));
    let (_, large) = create(16384).unwrap();
    assert!(refused(&large).contains("makes no sense"));
    let odd = memfd::create(c"test", 12289, false).unwrap();
    memfd::seal(&odd, memfd::FIXED).unwrap();
    assert!(refused(&odd).contains("12289 bytes"));
    let file: OwnedFd = std::fs::File::open("/proc/self/exe").unwrap().into();
    assert!(refused(&file).contains("seal"));
    let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
    assert!(refused(&socket.into()).contains("seal"));
}
