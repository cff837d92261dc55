//! Transfers that belong to no message: each end has regions of a device's memory that the other one reads and writes, and no pipe. The
//! lane is one as users write them, and cannot tell.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::*;
use crate::channels::Lane;
use crate::conformance::{Copied, TestDevices, TestQueue};
use crate::device::Allocators;
use crate::pipe::stats::LaneStats;

/// In the place of a message's part: no message has as many.
const REGION: u16 = u16::MAX;

const LEN: usize = 3000;

/// Stages what it carries in main memory, at both ends; copies run on a queue of the device.
struct Staged {
    queue: TestQueue,
    leaving: HashMap<OpId, Copied>,
    coming: HashMap<OpId, BufferMut>,
}

impl Lane for Staged {
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        let stage = io.allocate(op, Device::CPU, source.len() as u64).unwrap();
        let copied = self.queue.read(&source, stage).unwrap();
        self.leaving.insert(op, copied);
    }

    fn recv(&mut self, op: OpId, want: Want, io: &mut LaneIo<'_>) {
        let Want::Into(dest) = want else {
            panic!("a region has its place");
        };
        let stage = io.allocate(op, Device::CPU, dest.len() as u64).unwrap();
        self.coming.insert(op, dest);
        io.expect(op, stage);
    }

    fn control(&mut self, _: OpId, _: &[u8], _: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        Err(ChannelFault("it says nothing".to_owned()))
    }

    /// The source is in main memory.
    fn resume(&mut self, op: OpId, io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        let copied = self.leaving.remove(&op).unwrap();
        io.stream(op, copied.take().unwrap().freeze());
        Ok(())
    }

    fn streamed(&mut self, op: OpId, stage: Option<BufferMut>, io: &mut LaneIo<'_>) {
        let Some(stage) = stage else {
            return io.sent(op);
        };
        let dest = self.coming.remove(&op).unwrap();
        let memory = self.queue.write(stage.freeze(), dest).unwrap();
        io.received(op, memory);
    }

    fn cancel(&mut self, op: OpId, _: &mut LaneIo<'_>) {
        self.leaving.remove(&op);
        self.coming.remove(&op);
    }
}

/// What carries them here. It has no messages, no credit and no protocol.
struct Regions {
    allocators: Allocators,
    runtime: tokio::runtime::Handle,
    streams: Vec<(OpId, Buffer)>,
    expected: HashMap<OpId, Destination>,
    results: Vec<LaneResult>,
    work: Vec<(OpId, Box<dyn Work>)>,
    stats: LaneStats,
    piece_place: Option<(OpId, Destination)>,
}

impl LaneHost for Regions {
    fn control(&mut self, op: OpId, body: &[u8]) {
        panic!("{op:?}: {body:?}");
    }

    fn stream(&mut self, op: OpId, source: Buffer) {
        self.streams.push((op, source));
    }

    fn expect(&mut self, op: OpId, dest: Destination) {
        self.expected.insert(op, dest);
    }

    fn reserve(&mut self, _: OpId, len: u64) -> Result<Destination, Error> {
        Ok(Destination::pooled(len as usize))
    }

    fn room(&mut self, _: OpId, device: Device, len: u64) -> Result<Room, Error> {
        match device.is_cpu() {
            true => allocate(self.allocators.main(), len).map(Room::Warm),
            false => Ok(Room::of(self.allocators.on(device)?, len as usize)),
        }
    }

    fn results(&mut self) -> &mut Vec<LaneResult> {
        &mut self.results
    }

    fn work(&mut self) -> &mut Vec<(OpId, Box<dyn Work>)> {
        &mut self.work
    }

    fn stats(&mut self) -> &mut LaneStats {
        &mut self.stats
    }

    fn runtime(&self) -> &tokio::runtime::Handle {
        &self.runtime
    }

    fn is_awaited(&self) -> bool {
        true
    }

    fn forbids(&mut self, _: OpId, _: &str) -> Option<String> {
        None
    }

    fn diverts(&mut self, _: OpId, _: &str, bytes: u64, _: &str) {
        self.stats.diverted += bytes;
    }

    fn piece_place(&mut self) -> &mut Option<(OpId, Destination)> {
        &mut self.piece_place
    }
}

struct End {
    lane: Staged,
    host: Regions,
}

impl End {
    fn new(devices: &TestDevices) -> Self {
        let lane = Staged {
            queue: devices.queue(),
            leaving: HashMap::new(),
            coming: HashMap::new(),
        };
        let host = Regions {
            allocators: Allocators::new(Pool::default(), vec![Arc::new(devices.clone())]),
            runtime: tokio::runtime::Handle::current(),
            streams: Vec::new(),
            expected: HashMap::new(),
            results: Vec::new(),
            work: Vec::new(),
            stats: LaneStats::default(),
            piece_place: None,
        };
        Self { lane, host }
    }

    fn memory(&self, index: u32) -> BufferMut {
        let device = TestDevices::device(index);
        let pool = self.host.allocators.on(device).unwrap();
        pool.take(LEN).unwrap()
    }

    /// Memory of a device that holds these bytes, when it is ready.
    fn filled(&self, index: u32, with: u8) -> Buffer {
        let bytes = Buffer::from(Bytes::from(vec![with; LEN]));
        let memory = self.memory(index);
        self.lane.queue.write(bytes, memory).unwrap()
    }

    fn bytes(&self, memory: &Buffer) -> Vec<u8> {
        let stage = allocate(self.host.allocators.main(), LEN as u64).unwrap();
        self.lane.queue.read(memory, stage).unwrap().wait()
    }

    /// What has become of the one operation that there was.
    fn outcome(&mut self) -> (OpId, Outcome) {
        match self.host.results.pop() {
            Some(LaneResult::Ended(op, outcome)) if self.host.results.is_empty() => (op, outcome),
            other => panic!("{other:?}"),
        }
    }
}

/// Number `number` of the transfers that one end began.
fn transfer(number: u64, outgoing: bool) -> OpId {
    OpId {
        message: number,
        part: REGION,
        piece: 0,
        outgoing,
    }
}

/// Carries `source`, at one end, into `dest` at the other.
fn carry(number: u64, from: &mut End, source: Buffer, to: &mut End, dest: BufferMut) -> Buffer {
    let (leaves, comes) = (transfer(number, true), transfer(number, false));
    let mut io = LaneIo::new(&mut to.host);
    to.lane.recv(comes, Want::Into(dest), &mut io);
    let mut io = LaneIo::new(&mut from.host);
    from.lane.send(leaves, source, &mut io);
    let begun = Instant::now();
    while from.lane.leaving[&leaves].fence().reached().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(30), "no copy");
        std::thread::sleep(Duration::from_millis(1));
    }
    from.lane
        .resume(leaves, &mut LaneIo::new(&mut from.host))
        .unwrap();

    let (op, streamed) = from.host.streams.pop().unwrap();
    assert_eq!(op.key(), comes.key(), "both ends know it by one name");
    let mut stage = to.host.expected.remove(&comes).unwrap();
    let bytes = streamed.as_bytes().unwrap();
    stage.as_bytes_mut().unwrap().copy_from_slice(bytes);
    let mut io = LaneIo::new(&mut from.host);
    from.lane.streamed(leaves, None, &mut io);
    let mut io = LaneIo::new(&mut to.host);
    to.lane.streamed(comes, stage.into_memory(), &mut io);

    assert!(matches!(from.outcome(), (op, Outcome::Sent) if op == leaves));
    match to.outcome() {
        (op, Outcome::Received(memory)) if op == comes => memory,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_region_is_written_and_read_without_a_message() {
    let devices = TestDevices::new(2);
    let (mut here, mut there) = (End::new(&devices), End::new(&devices));
    // A write: this end names what leaves it, and the other's region.
    let region = there.memory(1);
    let source = here.filled(0, 7);
    let region = carry(1, &mut here, source, &mut there, region);
    assert_eq!(region.device(), TestDevices::device(1));
    // A read of it: what comes here is named by this end, too.
    let dest = here.memory(0);
    let read = carry(2, &mut there, region.clone(), &mut here, dest);
    assert_eq!(here.bytes(&read), [7; LEN]);
    assert_eq!(there.bytes(&region), [7; LEN]);
    assert_eq!(here.host.stats.streamed, LEN as u64);
    assert_eq!(devices.faults(), Vec::<String>::new());
}
