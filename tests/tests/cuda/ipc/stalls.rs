//! A reader that does not go on with a proof: in a process of its own, whose exchange it makes look slow.

use std::sync::Arc;
use std::time::Duration;

use tensorpipe::channels::{
    BasicChannel, Channel, ChannelFault, CudaIpcChannel, Lane, LaneIo, Link, OpId, PieceEvent, Want,
};
use tensorpipe::conformance::pattern;
use tensorpipe::device::{DeviceOffer, MemoryKind};
use tensorpipe::{Buffer, BufferMut, Context, Device, Error, Message, MessageTensor, Pipe};
use tensorpipe_tests::runtime;

use super::LEN;
use crate::bench::{Bench, channel, connected, device};

/// A reader that does not go on with a proof: it does not hear that it is asked, or stops so many steps behind that.
struct Stalls {
    honest: CudaIpcChannel,
    steps: Option<u32>,
    /// It hears that it is asked when it also hears that it is too late.
    is_late: bool,
}

struct StallsLane {
    honest: Box<dyn Lane>,
    steps: Option<u32>,
    is_late: bool,
    /// About this part.
    asked: Option<OpId>,
    /// What it has not heard yet.
    question: Vec<u8>,
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
            is_late: self.is_late,
            asked: None,
            question: Vec::new(),
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
            19 if self.is_late => {
                self.question = body.to_vec();
                return Ok(());
            }
            18 if self.is_late && !self.question.is_empty() => {
                let question = std::mem::take(&mut self.question);
                self.honest.control(op, &question, io)?;
            }
            19 if self.steps.is_none() => return Ok(()),
            19 => self.asked = Some(op),
            // Whatever follows: it goes another way.
            _ if self.asked == Some(op) => self.asked = None,
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

/// A writer, and this reader.
async fn with(bench: &Bench, reader: Stalls) -> (Pipe, Pipe) {
    let context = |channel: Arc<dyn Channel>| {
        let channels = [channel, Arc::new(BasicChannel::new())];
        let builder = Context::builder().channels(channels);
        builder.allocator(Arc::new(bench.cuda.clone())).build()
    };
    let far = context(Arc::new(reader)).unwrap();
    let near = context(channel("cuda_ipc", &bench.cuda)).unwrap();
    connected(&near, &far).await
}

/// By the third time the memory for proofs is mapped, so that the number would be read at once: but the offer is no more.
pub(crate) fn hears_late() {
    let bench = Bench::new();
    let stalls = Stalls {
        honest: CudaIpcChannel::also_within_process(&bench.cuda),
        steps: None,
        is_late: true,
    };
    runtime().block_on(async {
        let (client, server) = with(&bench, stalls).await;
        for seed in 0..3 {
            let tensor = MessageTensor::from(bench.tensor(device(), &pattern(LEN, seed)));
            let message = Message::new("m").tensor(tensor.to_device(device()));
            client.send(message).unwrap();
            let read = async { server.read_descriptor().await?.read().await };
            let read = tokio::time::timeout(Duration::from_secs(30), read).await;
            let read = read.expect("it goes on").unwrap();
            assert!(bench.download(read.tensors[0].tensor.buffer()) == pattern(LEN, seed));
        }
        assert_eq!(client.stats().bytes_diverted, 3 * LEN as u64);
    });
}

/// It holds up nothing for long, nor ends the pipe, at whichever step it stops: tensors go another way.
pub(crate) fn gives_no_proof() {
    let bench = Bench::new();
    let story = async |steps| {
        let honest = CudaIpcChannel::also_within_process(&bench.cuda);
        let stalls = Stalls {
            honest,
            steps,
            is_late: false,
        };
        let (client, server) = with(&bench, stalls).await;
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
        // Behind more steps a proof may be there: what another has mapped need not be mapped again.
        tokio::join!(story(None), story(Some(0)))
    });
}
