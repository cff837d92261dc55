//! A ring whose ends share no memory: words and bytes travel as messages, in order and as late as can be.

use std::cell::RefCell;
use std::rc::Rc;

use super::super::control::Control;
use super::*;

const CAPACITY: usize = 4096;

/// What is under way to the other end.
enum Message {
    Bytes(usize, Vec<u8>),
    /// What the other end counts.
    Count(u64),
}

type Wire = Rc<RefCell<VecDeque<Message>>>;

/// One end: its own words, its own memory, and the way to the other one.
#[derive(Clone, Default)]
struct Far {
    control: Rc<Control>,
    memory: Rc<RefCell<Vec<u8>>>,
    out: Wire,
}

impl RingMemory for Far {
    const SHARED: bool = false;

    fn control(&self) -> &Control {
        &self.control
    }

    fn capacity(&self) -> usize {
        CAPACITY
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= CAPACITY);
        let bytes = Message::Bytes(at, bytes.to_vec());
        self.out.borrow_mut().push_back(bytes);
    }

    fn take(&self, at: usize, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.memory.borrow()[at..at + bytes.len()]);
    }
}

impl Far {
    fn new() -> Self {
        let far = Self::default();
        far.memory.borrow_mut().resize(CAPACITY, 0xff);
        far
    }

    /// The producer's word leaves.
    fn say_written(&self) {
        let count = self.control.produced.0.written.load(Ordering::Acquire);
        self.out.borrow_mut().push_back(Message::Count(count));
    }

    /// The consumer's.
    fn say_read(&self) {
        let count = self.control.read.0.load(Ordering::Acquire);
        self.out.borrow_mut().push_back(Message::Count(count));
    }

    /// The next message of the producer's arrives here.
    fn hear_written(&self, from: &Wire) -> bool {
        match from.borrow_mut().pop_front() {
            None => return false,
            Some(Message::Bytes(at, bytes)) => {
                self.memory.borrow_mut()[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            Some(Message::Count(count)) => {
                let theirs = &self.control.produced.0.written;
                theirs.store(count, Ordering::Release);
            }
        }
        true
    }

    /// The next one of the consumer's.
    fn hear_read(&self, from: &Wire) -> bool {
        let Some(Message::Count(count)) = from.borrow_mut().pop_front() else {
            return false;
        };
        self.control.read.0.store(count, Ordering::Release);
        true
    }
}

#[derive(Clone, Debug)]
enum Move {
    Write(usize),
    Read(usize),
    /// So many messages arrive at the consumer, and at the producer.
    Arrive(usize, usize),
    ConsumerSleeps,
    ProducerSleeps,
}

fn a_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        (1usize..6000).prop_map(Move::Write),
        (1usize..6000).prop_map(Move::Read),
        (0usize..4, 0usize..4).prop_map(|(there, back)| Move::Arrive(there, back)),
        Just(Move::ConsumerSleeps),
        Just(Move::ProducerSleeps),
    ]
}

proptest! {
    #[test]
    fn bytes_arrive_in_order_and_nobody_sleeps_for_ever(
        moves in prop::collection::vec(a_move(), 1..80)
    ) {
        let (here, there) = (Far::new(), Far::new());
        let (mut producer, mut consumer) = (Producer::new(here.clone()), Consumer::new(there.clone()));
        let (mut next, mut expected) = (0u8, VecDeque::new());
        let read = |consumer: &mut Consumer<Far>, len, expected: &mut VecDeque<u8>| {
            let mut bytes = vec![0; len];
            let len = consumer.read(&mut bytes, || there.say_read()).unwrap();
            let wanted: Vec<u8> = expected.drain(..len).collect();
            assert_eq!(&bytes[..len], &wanted[..]);
            len
        };
        for a_move in moves {
            match a_move {
                Move::Write(len) => {
                    let bytes: Vec<u8> =
                        (0..len).map(|_| { next = next.wrapping_add(37); next }).collect();
                    let wrote = producer.write([&*bytes], || here.say_written()).unwrap();
                    expected.extend(&bytes[..wrote]);
                    prop_assert!(expected.len() <= CAPACITY, "it writes over what is unread");
                }
                Move::Read(len) => _ = read(&mut consumer, len, &mut expected),
                Move::Arrive(to, back) => {
                    (0..to).for_each(|_| _ = there.hear_written(&here.out));
                    (0..back).for_each(|_| _ = here.hear_read(&there.out));
                }
                Move::ConsumerSleeps => prop_assert_eq!(consumer.sleep(), !consumer.is_ready()),
                Move::ProducerSleeps => prop_assert_eq!(producer.sleep(), !producer.is_ready()),
            }
        }
        // All that is under way arrives, whoever sleeps.
        producer.finish(|| here.say_written());
        while there.hear_written(&here.out) {}
        while !consumer.is_finished() {
            prop_assert!(consumer.is_ready());
            prop_assert!(read(&mut consumer, 1000, &mut expected) > 0 || consumer.is_finished());
        }
        prop_assert!(expected.is_empty());
        while here.hear_read(&there.out) {}
        prop_assert!(producer.is_drained());
    }
}
