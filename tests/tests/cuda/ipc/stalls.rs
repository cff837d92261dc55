//! A reader that does not go on with a proof.

use std::sync::Arc;
use std::time::Duration;

use tensorpipe::channels::{
    BasicChannel, Channel, ChannelFault, CudaIpcChannel, Lane, LaneIo, Link, OpId, PieceEvent, Want,
};
use tensorpipe::conformance::pattern;
use tensorpipe::device::{DeviceOffer, MemoryKind};
use tensorpipe::{Buffer, BufferMut, Context, Device, Error, Message, MessageTensor};
use tensorpipe_tests::runtime;

use super::LEN;
use crate::bench::{Bench, channel, connected, device};
use crate::driver::nothing_went_wrong;

/// A reader that does not go on with a proof: it does not hear that it is asked, or stops so many steps behind that.
struct Stalls {
    honest: CudaIpcChannel,
    steps: Option<u32>,
}

struct StallsLane {
    honest: Box<dyn Lane>,
    steps: Option<u32>,
    /// About this part.
    asked: Option<OpId>,
}

impl Channel for Stalls {
    fn name(&self) -> &'static str {
        self.honest.name()
    }

    fn devices(&self) -> Vec<(Device, Vec<u8>)> {
        self.honest.devices()
    }

    fn reaches(&self, ours: DeviceOffer<'_>, theirs: DeviceOffer<'_>) -> Result<(), String> {
        self.honest.reaches(ours, theirs)
    }

    fn moves_bytes(&self, memory: MemoryKind) -> bool {
        self.honest.moves_bytes(memory)
    }

    fn open(&self, link: Link) -> Result<Box<dyn Lane>, Error> {
        Ok(Box::new(StallsLane {
            honest: self.honest.open(link)?,
            steps: self.steps,
            asked: None,
        }))
    }
}

impl Lane for StallsLane {
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        self.honest.send(op, source, io);
    }

    fn recv(&mut self, op: OpId, want: Want, io: &mut LaneIo<'_>) {
        self.honest.recv(op, want, io);
    }

    fn control(&mut self, op: OpId, body: &[u8], io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        // As docs/WIRE.md says: to prove something; it cannot be lent.
        match body[0] {
            19 if self.steps.is_none() => return Ok(()),
            19 => self.asked = Some(op),
            18 if self.asked == Some(op) => self.asked = None,
            _ => {}
        }
        self.honest.control(op, body, io)
    }

    fn streamed(&mut self, op: OpId, dest: Option<BufferMut>, io: &mut LaneIo<'_>) {
        self.honest.streamed(op, dest, io);
    }

    fn resume(&mut self, op: OpId, io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        if self.asked == Some(op) {
            match &mut self.steps {
                None | Some(0) => return Ok(()),
                Some(steps) => *steps -= 1,
            }
        }
        self.honest.resume(op, io)
    }

    fn inner(
        &mut self,
        piece: OpId,
        event: PieceEvent<'_>,
        io: &mut LaneIo<'_>,
    ) -> Result<(), ChannelFault> {
        self.honest.inner(piece, event, io)
    }

    fn cancel(&mut self, op: OpId, io: &mut LaneIo<'_>) {
        self.honest.cancel(op, io);
    }
}

/// It holds up nothing for long, nor ends the pipe, at whichever step it stops: tensors go another way.
#[test]
fn a_reader_that_gives_no_proof_gets_tensors_another_way() {
    let bench = Bench::new();
    let story = async |steps| {
        let honest = CudaIpcChannel::also_within_process(&bench.cuda);
        let with = |channel: Arc<dyn Channel>| {
            let channels = [channel, Arc::new(BasicChannel::new())];
            let builder = Context::builder().channels(channels);
            builder.allocator(Arc::new(bench.cuda.clone())).build()
        };
        let far = with(Arc::new(Stalls { honest, steps })).unwrap();
        let near = with(channel("cuda_ipc", &bench.cuda)).unwrap();
        let (client, server) = connected(&near, &far).await;
        for seeds in [0..2, 2..4] {
            let message = seeds.fold(Message::new("m"), |message, seed| {
                let tensor = MessageTensor::from(bench.tensor(device(), &pattern(LEN, seed)));
                message.tensor(tensor.to_device(device()))
            });
            client.send(message).unwrap();
        }
        let first = server.read_descriptor().await.unwrap();
        let second = server.read_descriptor().await.unwrap();
        let reads = async { tokio::join!(first.read(), second.read()) };
        let reads = tokio::time::timeout(Duration::from_secs(30), reads).await;
        let (first, second) = reads.expect("it goes on");
        for (seeds, read) in [(0..2, first.unwrap()), (2..4, second.unwrap())] {
            for (seed, tensor) in seeds.zip(read.tensors) {
                let read = bench.download(tensor.tensor.buffer());
                assert!(read == pattern(LEN, seed), "{steps:?}");
            }
        }
        let diverted = client.stats().bytes_diverted;
        assert_eq!(diverted, 4 * LEN as u64, "{steps:?}: {}", client.route());
        let route = client.route().to_string();
        assert!(route.contains("gave no proof within 5 s"), "{route}");
    };
    runtime().block_on(async {
        tokio::join!(story(None), story(Some(0)), story(Some(1)), story(Some(2)))
    });
    nothing_went_wrong();
}
