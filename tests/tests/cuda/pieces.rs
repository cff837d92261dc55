//! A channel hands over pieces of main memory in its own memory, or in the wrong place. The CPU copies each piece to its place without
//! holding up other work, or the piece is refused.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

use tensorpipe::channels::{BasicChannel, Channel, CudaBasicChannel, LaneIo, Link, OpId, Want};
use tensorpipe::conformance::pattern;
use tensorpipe::device::Memory;
use tensorpipe::{
    Allocation, Buffer, BufferMut, Device, Error, Message, MessageTensor, Pipe, Place,
};
use tensorpipe_tests::{Double, Says, soon};

use crate::bench::{Bench, device, of_channel};
use crate::driver::nothing_went_wrong;

/// `cuda_basic` over a channel with such lanes.
pub(crate) fn over<L: Says + 'static>(
    bench: &Bench,
    lane: impl Fn(Link) -> L + Send + Sync + 'static,
) -> Arc<dyn Channel> {
    let inner = Double::of(Arc::new(BasicChannel::new())).named("elsewhere");
    Arc::new(CudaBasicChannel::over(inner.with_lanes(lane), &bench.cuda))
}

/// Has memory of its own for what it receives, which a channel may.
pub(crate) struct Elsewhere;

impl Says for Elsewhere {
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        io.stream(op, source);
    }

    fn recv(&mut self, op: OpId, want: Want, io: &mut LaneIo<'_>) {
        let dest = match want {
            Want::Into(dest) => dest,
            Want::Adopt { len, .. } => BufferMut::zeroed(len as usize),
        };
        io.expect(op, dest);
    }
}

/// Reads a tensor of a device's into main memory of the reader's.
async fn read_into(
    bench: &Bench,
    (client, server): &(Pipe, Pipe),
    bytes: &[u8],
) -> Result<Vec<u8>, Error> {
    let tensor = MessageTensor::from(bench.tensor(device(), bytes)).to_device(Device::CPU);
    client.send(Message::new("m").tensor(tensor)).unwrap();
    let incoming = server.read_descriptor().await.unwrap();
    let place = Allocation {
        tensors: vec![Place::Into(BufferMut::zeroed(bytes.len()))],
        ..Allocation::default()
    };
    let read = soon("an end", incoming.read_into(place)).await?;
    Ok(read.tensors[0].tensor.as_bytes().unwrap().to_vec())
}

/// What was seen by whoever read memory: whether others could use the pipe meanwhile.
#[derive(Clone, Default)]
struct Seen {
    pipe: Arc<OnceLock<Pipe>>,
    is_free: Arc<Mutex<Vec<bool>>>,
}

struct Watched {
    bytes: Buffer,
    seen: Seen,
}

impl Memory for Watched {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn as_bytes(&self) -> Option<&[u8]> {
        if let Some(pipe) = self.seen.pipe.get().cloned() {
            let (done, is_done) = mpsc::channel();
            std::thread::spawn(move || done.send(pipe.stats()));
            let is_free = is_done.recv_timeout(Duration::from_secs(5)).is_ok();
            self.seen.is_free.lock().unwrap().push(is_free);
        }
        self.bytes.as_bytes()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// As the one above, and who reads what it has received is watched.
struct WatchedLane(Seen);

impl Says for WatchedLane {
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        Elsewhere.send(op, source, io);
    }

    fn recv(&mut self, op: OpId, want: Want, io: &mut LaneIo<'_>) {
        Elsewhere.recv(op, want, io);
    }

    fn streamed(&mut self, op: OpId, dest: Option<BufferMut>, io: &mut LaneIo<'_>) {
        let Some(dest) = dest else {
            return io.sent(op);
        };
        let (bytes, seen) = (dest.freeze(), self.0.clone());
        io.received(op, Buffer::new(Arc::new(Watched { bytes, seen })));
    }
}

/// Pieces of 4 MiB are copied while others use the pipe, in several goes.
pub(crate) async fn are_placed_without_the_lock() {
    const LEN: usize = 33_000_001;
    let (bench, seen) = (Bench::new(), Seen::default());
    let watches = seen.clone();
    let channel = over(&bench, move |_| WatchedLane(watches.clone()));
    let pipes = of_channel(&bench, channel).await;
    let _ = seen.pipe.set(pipes.1.clone());
    let bytes = pattern(LEN, 1);
    let read = read_into(&bench, &pipes, &bytes).await.unwrap();
    assert!(read == bytes);
    let is_free = seen.is_free.lock().unwrap().clone();
    assert!(is_free.len() > 2 * LEN.div_ceil(4 << 20), "{is_free:?}");
    assert!(is_free.iter().all(|is_free| *is_free), "the pipe is locked");
    nothing_went_wrong();
}

/// Hands over the memory of one piece as that of another.
#[derive(Default)]
struct Mixes(HashMap<usize, (OpId, BufferMut)>);

impl Says for Mixes {
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        io.stream(op, source);
    }

    fn recv(&mut self, op: OpId, want: Want, io: &mut LaneIo<'_>) {
        assert!(io.receive(op, want));
    }

    fn streamed(&mut self, op: OpId, dest: Option<BufferMut>, io: &mut LaneIo<'_>) {
        let Some(dest) = dest else {
            return io.sent(op);
        };
        match self.0.remove(&dest.len()) {
            None => drop(self.0.insert(dest.len(), (op, dest))),
            Some((other, others)) => {
                io.received(op, others.freeze());
                io.received(other, dest.freeze());
            }
        }
    }
}

/// It is no tensor then: an error, and no bytes in each other's places.
pub(crate) async fn that_are_mixed_up_are_refused() {
    let bench = Bench::new();
    let pipes = of_channel(&bench, over(&bench, |_| Mixes::default())).await;
    let refused = read_into(&bench, &pipes, &pattern(2 << 20, 1)).await;
    let refused = refused.map(drop).expect_err("pieces are mixed up");
    assert!(!refused.ends_pipe(), "{refused}");
    assert!(refused.to_string().contains("others have it"), "{refused}");
    nothing_went_wrong();
}

/// Asks for the memory of a piece when it hears of the next one.
#[derive(Default)]
struct Postpones(Option<(OpId, Want)>);

impl Says for Postpones {
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        io.stream(op, source);
    }

    fn recv(&mut self, op: OpId, want: Want, io: &mut LaneIo<'_>) {
        match self.0.take() {
            None => self.0 = Some((op, want)),
            Some((before, wanted)) => assert!(io.receive(before, wanted) && io.receive(op, want)),
        }
    }
}

/// Then that lies elsewhere, and not in the place of the next one.
pub(crate) async fn that_are_asked_for_late_come() {
    let bench = Bench::new();
    let pipes = of_channel(&bench, over(&bench, |_| Postpones::default())).await;
    let bytes = pattern(2 << 20, 1);
    assert!(read_into(&bench, &pipes, &bytes).await.unwrap() == bytes);
    nothing_went_wrong();
}
