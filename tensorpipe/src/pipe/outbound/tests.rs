//! What leaves, and when. Also over a channel that hands memory over: a part needs no go-ahead, is sent at once, and is at once at the
//! other end.

use std::collections::HashMap;
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::{Builder, Runtime};

use crate::channels::{
    Adopted, BasicChannel, Channel, ChannelFault, Lane, LaneHandle, LaneIo, Link, Want,
};
use crate::device::{Buffer, BufferMut, Device, MemoryKind};
use crate::engine::{EnginePipe, Outbound, When};
use crate::pipe::core::Waiter;
use crate::pipe::driver::tuning::{COPIED_INTO_FRAME, WRITE_PIECES};
use crate::pipe::inbound::delayed_ack::delay_ack;
use crate::pipe::tests::{pair_of, shm_pair, soon, tcp_pair, unique};
use crate::proto::OpId;
use crate::sync::{Arc, Mutex, lock};
use crate::transports::MemoryTransport;
use crate::{
    Allocation, Context, Error, Message, Payload, Pipe, Place, Tensor, Timeouts,
    channels::{Pays, Threshold},
};

/// The table through which one end hands buffers to the other.
type Table = Arc<Mutex<HashMap<u64, Buffer>>>;

struct Hands(Table);

impl Channel for Hands {
    fn name(&self) -> &'static str {
        "hands"
    }
    fn devices(&self) -> Vec<(Device, Vec<u8>)> {
        vec![(Device::CPU, Vec::new())]
    }
    fn thresholds(&self, _: &[(Device, Vec<u8>)]) -> Vec<Threshold> {
        vec![Threshold::new(Pays::From(1000))]
    }
    fn moves_bytes(&self, _: MemoryKind) -> bool {
        false
    }
    fn sends_at_once(&self) -> bool {
        true
    }
    fn open(&self, link: Link) -> Result<Box<dyn Lane>, Error> {
        Ok(Box::new(HandsLane(self.0.clone(), link.handle)))
    }
}

struct HandsLane(Table, LaneHandle);

/// Length of a tensor that its lane reports in the wrong way.
const HASTY: usize = 5000;

impl Lane for HandsLane {
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        if source.len() == HASTY {
            self.1.sent(op);
        }
        lock(&self.0).insert(op.message, source);
        io.control(op, []);
        io.sent(op);
    }
    fn recv(&mut self, _: OpId, _: Want, _: &mut LaneIo<'_>) {
        unreachable!("it is had at once");
    }
    fn adopt(&mut self, op: OpId, _: &[u8], _: u64, _: &mut LaneIo<'_>) -> Option<Adopted> {
        let memory = lock(&self.0).remove(&op.message)?;
        Some(Adopted {
            memory,
            answer: &[],
            urgent: false,
            is_copy: false,
        })
    }
    fn control(&mut self, _: OpId, _: &[u8], _: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        Ok(())
    }
    fn streamed(&mut self, _: OpId, _: Option<BufferMut>, _: &mut LaneIo<'_>) {}
    fn cancel(&mut self, _: OpId, _: &mut LaneIo<'_>) {}
}

async fn pair() -> (Pipe, Pipe) {
    // No pings: one would send what has to leave at once.
    let timeouts = Timeouts {
        silence: None,
        ..Timeouts::default()
    };
    let context = Context::builder()
        .transports([Arc::new(MemoryTransport::new()) as _])
        .channels([Arc::new(Hands(Table::default())) as _])
        .timeouts(timeouts);
    pair_of(context, &unique("memory")).await
}

fn tensor(len: usize) -> Tensor {
    Tensor::from(vec![7u8; len])
}

fn is_whole(message: &Message, len: usize) -> bool {
    let bytes = message.tensors[0].tensor.buffer().as_bytes();
    bytes.is_some_and(|bytes| bytes == vec![7; len])
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

#[tokio::test]
async fn what_a_lane_has_sent_as_it_is_given_it_is_written() {
    let (client, server) = pair().await;
    for payloads in 0..2 {
        let mut message = Message::new("").tensor(tensor(100_000));
        for _ in 0..payloads {
            message = message.payload(Buffer::from(Bytes::from_static(b"rides")));
        }
        soon(client.write(message)).await.unwrap();
        let read = soon(server.read()).await.unwrap();
        assert!(is_whole(&read, 100_000));
    }
}

/// A server's pipe lives long: requirements of messages that are over must not pile up.
#[tokio::test]
async fn what_messages_have_required_is_forgotten_when_they_are_over() {
    let context = Context::builder()
        .transports([Arc::new(MemoryTransport::new()) as _])
        .channels([Arc::new(BasicChannel::new()) as _]);
    let (client, server) = pair_of(context, "memory://forgotten").await;
    let tensor = tensor(300_000);
    let message = || {
        let message = Message::new("").tensor(tensor.clone());
        message.require(["basic"])
    };
    let room = || lock(&client.core().shared).room_for_required();
    for _ in 0..200 {
        client.send(message()).unwrap();
    }
    assert!(room() >= 200, "all of them wait");
    for _ in 0..200 {
        soon(server.read()).await.unwrap();
    }
    for _ in 0..300 {
        let (written, read) =
            soon(async { tokio::join!(client.write(message()), server.read()) }).await;
        written.unwrap();
        read.unwrap();
    }
    assert!(room() < 64, "there is room for {}", room());
}

/// The channel has sent the part at once, but the message's frame is behind another one that the connection does not take.
#[tokio::test]
async fn what_is_behind_others_is_written_when_its_last_byte_has_left() {
    let (client, server) = pair().await;
    let mut before = 0;
    // The peer does not run until this task waits.
    while client.unwritten() == 0 {
        client.send(Message::new(vec![7; 1000])).unwrap();
        before += 1;
    }
    let id = (client.send(Message::new("").tensor(tensor(100_000)))).unwrap();
    assert!(client.is_unwritten(id));
    assert_eq!(client.unwritten(), 2);
    for _ in 0..before {
        soon(server.read()).await.unwrap();
    }
    assert!(is_whole(&soon(server.read()).await.unwrap(), 100_000));
    assert_eq!(client.unwritten(), 0);
}

/// The acknowledgement waits for the next message, and none comes: the reader computes.
#[tokio::test]
async fn what_a_lane_has_to_say_leaves_without_a_message_too() {
    let (client, server) = pair().await;
    client
        .send(Message::new("").tensor(tensor(10_000)))
        .unwrap();
    assert!(is_whole(&soon(server.read()).await.unwrap(), 10_000));
    let core = server.core();
    let until = async |reached: &dyn Fn() -> bool| {
        while !reached() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    // For the second one the task has ended, and is spawned again.
    for _ in 0..2 {
        // Nobody checks for forgotten futures, either.
        soon(until(&|| !core.driver.wakers.is_ticking())).await;
        let before = server.stats().bytes_out;
        delay_ack(core, &mut lock(&core.shared), OpId::incoming(0, 0), &[]);
        // Long before the heartbeat, which would take it along.
        let has_left = || server.stats().bytes_out > before;
        let left = until(&has_left);
        let left = tokio::time::timeout(Duration::from_secs(1), left).await;
        left.expect("it is left behind");
        soon(until(&|| !lock(&core.shared).delayed_acks.is_watched())).await;
    }
}

/// An end that sleeps would be woken for it.
#[tokio::test]
async fn what_a_lane_has_to_say_takes_no_write_of_its_own() {
    let (client, server) = shm_pair().await;
    client.write(Message::new("settled")).await.unwrap();
    soon(server.read()).await.unwrap();
    let core = server.core();
    let with_message = || _ = server.send(Message::new("answer")).unwrap();
    let with_frame = || {
        let (op, mut shared) = (OpId::incoming(0, 0), lock(&core.shared));
        shared.state.channel(op, &[]);
        drop(shared);
        core.drive();
    };
    // Nothing here waits, so the task that would send it does not run.
    for takes_it_along in [&with_message as &dyn Fn(), &with_frame] {
        delay_ack(core, &mut lock(&core.shared), OpId::incoming(0, 0), &[]);
        let before = server.stats().writes;
        (0..3).for_each(|_| core.drive());
        assert!(lock(&core.shared).state.has_delayed());
        takes_it_along();
        assert!(!lock(&core.shared).state.has_delayed(), "it is left behind");
        assert_eq!(server.stats().writes, before + 1);
    }
}

/// A message fills a whole write, so that a channel's frame finds no room beside it.
#[tokio::test]
async fn what_a_lane_has_to_say_leaves_behind_a_write_that_takes_all_the_room() {
    let (client, server) = shm_pair().await;
    client.write(Message::new("settled")).await.unwrap();
    soon(server.read()).await.unwrap();
    let core = server.core();
    delay_ack(core, &mut lock(&core.shared), OpId::incoming(0, 0), &[]);
    // The frame's head, and one piece for each: as many as a write takes.
    let message = (1..WRITE_PIECES).fold(Message::new(""), |message, _| {
        message.payload(Payload::new(vec![7; COPIED_INTO_FRAME as usize + 1]))
    });
    let write = server.write(message);
    assert!(!lock(&core.shared).state.has_control(), "it is left behind");
    soon(write).await.unwrap();
}

/// A message that is here whole can be read when the pipe has ended, also with its runtime.
#[test]
fn what_was_handed_over_is_read_without_the_pipes_runtime() {
    let (pipes, elsewhere) = (runtime(), runtime());
    let incoming = [100_000, 1 << 20].map(|len| {
        pipes.block_on(async {
            let (client, server) = pair().await;
            client.send(Message::new("").tensor(tensor(len))).unwrap();
            soon(server.read_descriptor()).await.unwrap()
        })
    });
    drop(pipes);
    for incoming in incoming {
        assert!(incoming.is_whole());
        let len = incoming.descriptor().tensors[0].byte_len() as usize;
        let allocation = Allocation {
            tensors: vec![Place::Into(BufferMut::zeroed(len))],
            ..Allocation::default()
        };
        let read = elsewhere.block_on(async { soon(incoming.read_into(allocation)).await });
        assert!(is_whole(&read.unwrap(), len));
    }
}

/// Writes messages that are to leave soon, with no await in between. Returns how many have left after each.
fn burst(client: &Pipe, messages: u64) -> Vec<u64> {
    const MESSAGE: &[u8] = b"call";
    let frame = MESSAGE.len() as u64 + 8 + 12;
    let before = client.stats().bytes_out;
    let left = || (client.stats().bytes_out - before) / frame;
    let send = |_| {
        client
            .submit(&mut Outbound::new(MESSAGE), When::NextDrive, |_| ())
            .unwrap();
        left()
    };
    (0..messages).map(send).collect()
}

/// Reads all of them, and waits until the task has run that sends those held back.
async fn read(server: &Pipe, messages: u64) {
    for _ in 0..messages {
        soon(server.read()).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
}

#[tokio::test]
async fn fewer_are_held_back_than_have_left_and_of_a_lone_one_nothing() {
    let (client, server) = shm_pair().await;
    for messages in [3, 24, 30, 1] {
        let left = burst(&client, messages);
        assert_eq!(left[0], 1, "one that comes alone after a burst");
        for (left, written) in left.into_iter().zip(1..) {
            let held = written - left;
            assert!(held < left && held < 8, "{held} of {written}");
        }
        read(&server, messages).await;
    }
}

#[tokio::test]
#[should_panic(expected = "use `LaneIo` there")]
async fn a_lane_that_would_wait_for_itself_says_so() {
    let (client, _server) = pair().await;
    let _ = soon(client.write(Message::new("").tensor(tensor(HASTY)))).await;
}

/// Over tcp it is left to the background task, whose runtime may not run: whoever waits for the answer sends it as well.
#[tokio::test]
async fn a_message_that_was_left_for_a_later_drive_leaves_when_somebody_waits() {
    let (client, server) = tcp_pair().await;
    let core = client.core();
    client
        .write(Message::new("one that is sent"))
        .await
        .unwrap();
    soon(server.read()).await.unwrap();
    core.drive();
    let before = core.counters.bytes_out();
    let mut message = Outbound::new(b"one that is left");
    let when = When::NextDriveIfSyscall;
    let submitted = client.submit(&mut message, when, |_| ()).unwrap();
    assert!(submitted.batched);
    assert_eq!(core.counters.bytes_out(), before, "it has left");
    Waiter::new(core.clone()).drive(Waker::noop());
    assert!(core.counters.bytes_out() > before, "nobody sends it");
}
