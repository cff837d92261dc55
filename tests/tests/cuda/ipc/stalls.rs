//! A reader that stalls in the middle of a proof. It runs in its own process and makes its exchange look slow.

use std::time::Duration;

use tensorpipe::channels::{ChannelFault, Lane, LaneIo, OpId};
use tensorpipe::conformance::pattern;
use tensorpipe::{Message, MessageTensor, Pipe};
use tensorpipe_tests::{Says, runtime};

use super::LEN;
use crate::bench::{Bench, channel, connected, context, context_with, device};

/// Where a reader stops that is asked for a proof.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stops {
    /// It does not hear that it is asked.
    Deaf,
    /// It hears that, and goes not a step on.
    Still,
    /// It hears that it is asked when it also hears that it is too late.
    Late,
}

struct StopsLane {
    honest: Box<dyn Lane>,
    stops: Stops,
    /// About this part.
    asked: Option<OpId>,
    /// What it has not heard yet.
    question: Vec<u8>,
}

impl Says for StopsLane {
    fn honest(&mut self) -> Option<&mut dyn Lane> {
        Some(&mut *self.honest)
    }

    fn control(&mut self, op: OpId, body: &[u8], io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        // As docs/WIRE.md says: to prove something; it cannot be lent.
        match (body[0], self.stops) {
            (19, Stops::Deaf) => return Ok(()),
            (19, Stops::Still) => self.asked = Some(op),
            (19, Stops::Late) => {
                self.question = body.to_vec();
                return Ok(());
            }
            (18, Stops::Late) if !self.question.is_empty() => {
                let question = std::mem::take(&mut self.question);
                self.honest.control(op, &question, io)?;
            }
            // Whatever follows: it goes another way.
            _ if self.asked == Some(op) => self.asked = None,
            _ => {}
        }
        self.honest.control(op, body, io)
    }

    fn resume(&mut self, op: OpId, io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        match self.asked == Some(op) {
            true => Ok(()),
            false => self.honest.resume(op, io),
        }
    }
}

/// A writer, and this reader.
async fn with(bench: &Bench, stops: Stops) -> (Pipe, Pipe) {
    let far = context_with(bench, "cuda_ipc", move |honest| StopsLane {
        honest,
        stops,
        asked: None,
        question: Vec::new(),
    });
    connected(&context(bench, channel("cuda_ipc", &bench.cuda)), &far).await
}

/// By the third time the memory for proofs is mapped, so that the number would be read at once: but the offer is no more.
pub(crate) fn hears_late() {
    let bench = Bench::new();
    runtime().block_on(async {
        let (client, server) = with(&bench, Stops::Late).await;
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

/// It holds up nothing for long, nor ends the pipe: tensors go another way.
pub(crate) fn gives_no_proof() {
    let bench = Bench::new();
    let story = async |stops| {
        let (client, server) = with(&bench, stops).await;
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
                assert!(read == pattern(LEN, seed), "{stops:?}");
            }
        }
        let diverted = client.stats().bytes_diverted;
        assert_eq!(diverted, 4 * LEN as u64, "{stops:?}: {}", client.route());
        let route = client.route().to_string();
        assert!(route.contains("gave no proof within 7 s"), "{route}");
    };
    runtime().block_on(async { tokio::join!(story(Stops::Deaf), story(Stops::Still)) });
}
