//! Tensors on their way out: which chunk is next.
//!
//! Invariant: each chunk of a tensor is pulled once, and again only if its connection has ended or the chunk is late. Tensors take turns,
//! so that a large one does not hold up the others.

use std::collections::{HashMap, VecDeque};

use super::frame::CHUNK;
use super::{Buffer, ChannelFault, OpId};

#[derive(Debug, Default)]
pub(super) struct Sending {
    tensors: HashMap<OpId, Striping>,
    /// Tensors with chunks to be pulled; cancelled ones may still be listed.
    queue: VecDeque<OpId>,
    /// Chunks of connections that may have lost them; those of cancelled tensors may still be listed.
    again: VecDeque<ChunkId>,
}

/// Which chunk of which tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkId {
    pub(super) op: OpId,
    pub(super) offset: u64,
}

#[derive(Debug)]
struct Striping {
    /// Kept until the reader has all of it: any chunk may have to be sent again.
    source: Buffer,
    len: u64,
    stage: Stage,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// Until the reader has memory.
    WaitsForGo,
    /// Until there are connections.
    WaitsForConnections,
    /// Pulled up to this offset.
    Striped(u64),
    /// The reader was told to ask for it on the pipe's connection.
    Asked,
}

/// A chunk that was pulled.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) id: ChunkId,
    pub(super) bytes: Buffer,
}

impl Striping {
    fn chunk(&self, id: ChunkId) -> Chunk {
        let end = (id.offset + CHUNK).min(self.len);
        let bytes = self.source.slice(id.offset as usize..end as usize);
        Chunk { id, bytes }
    }
}

impl Sending {
    pub(super) fn hold(&mut self, op: OpId, source: Buffer) {
        let tensor = Striping {
            len: source.len() as u64,
            source,
            stage: Stage::WaitsForGo,
        };
        self.tensors.insert(op, tensor);
    }

    /// The reader has memory for the tensor. Fails on a second go-ahead.
    pub(super) fn go(&mut self, op: OpId) -> Result<(), ChannelFault> {
        match self.tensors.get_mut(&op) {
            // Cancelled meanwhile.
            None => Ok(()),
            Some(tensor) if tensor.stage == Stage::WaitsForGo => {
                tensor.stage = Stage::WaitsForConnections;
                Ok(())
            }
            Some(_) => Err(ChannelFault(format!("a second go-ahead for {op:?}"))),
        }
    }

    /// There are connections: chunks may be pulled.
    pub(super) fn stripe(&mut self) {
        for (op, tensor) in &mut self.tensors {
            if tensor.stage == Stage::WaitsForConnections {
                tensor.stage = Stage::Striped(0);
                self.queue.push_back(*op);
            }
        }
    }

    /// There are no connections: the tensors that have not begun travel on the pipe's connection. Returns them.
    pub(super) fn ask(&mut self) -> Vec<OpId> {
        let mut asked = Vec::new();
        for (op, tensor) in &mut self.tensors {
            if matches!(tensor.stage, Stage::WaitsForConnections | Stage::Striped(0)) {
                tensor.stage = Stage::Asked;
                asked.push(*op);
            }
        }
        asked.sort_unstable();
        asked
    }

    /// Whether a tensor has begun and still has chunks to be pulled, for the first time or again.
    pub(super) fn is_partly_sent(&self) -> bool {
        let mut tensors = self.tensors.values();
        tensors.any(|tensor| matches!(tensor.stage, Stage::Striped(at) if at < tensor.len))
            || self
                .again
                .iter()
                .any(|id| self.tensors.contains_key(&id.op))
    }

    /// These chunks may be lost: they will be pulled again.
    pub(super) fn send_again(&mut self, chunks: impl IntoIterator<Item = ChunkId>) {
        self.again.extend(chunks);
    }

    /// The next chunk.
    pub(super) fn pull(&mut self) -> Option<Chunk> {
        while let Some(id) = self.again.pop_front() {
            if let Some(tensor) = self.tensors.get(&id.op) {
                return Some(tensor.chunk(id));
            }
        }
        while let Some(op) = self.queue.pop_front() {
            let Some(tensor) = self.tensors.get_mut(&op) else {
                continue;
            };
            let Stage::Striped(at) = &mut tensor.stage else {
                continue;
            };
            let offset = *at;
            *at = (offset + CHUNK).min(tensor.len);
            if *at < tensor.len {
                self.queue.push_back(op);
            }
            return Some(tensor.chunk(ChunkId { op, offset }));
        }
        None
    }

    /// The reader asks for the tensor on the pipe's connection. `None` if it was cancelled.
    pub(super) fn stream(&mut self, op: OpId) -> Result<Option<Buffer>, ChannelFault> {
        match self.tensors.get(&op) {
            None => Ok(None),
            Some(tensor) if tensor.stage == Stage::Asked => {
                let tensor = self.tensors.remove(&op);
                Ok(tensor.map(|tensor| tensor.source))
            }
            Some(_) => Err(ChannelFault(format!("it was not asked to stream {op:?}"))),
        }
    }

    /// The reader has all of it. `false` if it was cancelled.
    pub(super) fn done(&mut self, op: OpId) -> Result<bool, ChannelFault> {
        match self.tensors.get(&op) {
            None => Ok(false),
            Some(tensor) if tensor.stage == Stage::Striped(tensor.len) => {
                self.tensors.remove(&op);
                Ok(true)
            }
            Some(_) => Err(ChannelFault(format!("{op:?} was not sent yet"))),
        }
    }

    pub(super) fn cancel(&mut self, op: OpId) {
        self.tensors.remove(&op);
    }

    pub(super) fn clear(&mut self) {
        self.tensors.clear();
        self.queue.clear();
        self.again.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(message: u64) -> OpId {
        OpId::outgoing(message, 0)
    }

    fn buffer(len: u64) -> Buffer {
        Buffer::from_vec(vec![0u8; len as usize])
    }

    #[test]
    fn tensors_take_turns_and_each_chunk_is_pulled_once() {
        let mut sending = Sending::default();
        sending.hold(op(1), buffer(2 * CHUNK + 1));
        sending.hold(op(2), buffer(CHUNK));
        sending.hold(op(3), buffer(CHUNK));
        sending.stripe();
        assert!(sending.pull().is_none(), "nobody has said go");
        sending.go(op(1)).unwrap();
        sending.stripe();
        sending.go(op(2)).unwrap();
        sending.stripe();
        assert!(sending.go(op(1)).is_err());
        let pulled = std::iter::from_fn(|| sending.pull());
        let pulled: Vec<_> = pulled
            .map(|chunk| {
                (
                    chunk.id.op.message,
                    chunk.id.offset,
                    chunk.bytes.len() as u64,
                )
            })
            .collect();
        let expected = [
            (1, 0, CHUNK),
            (2, 0, CHUNK),
            (1, CHUNK, CHUNK),
            (1, 2 * CHUNK, 1),
        ];
        assert_eq!(pulled, expected);
        assert_eq!(sending.done(op(1)), Ok(true));
        assert_eq!(sending.done(op(1)), Ok(false));
        assert!(sending.done(op(3)).is_err());
    }

    #[test]
    fn what_may_be_lost_travels_again_unless_nobody_waits_for_it() {
        let mut sending = Sending::default();
        for message in 1..=2 {
            sending.hold(op(message), buffer(2 * CHUNK + 1));
            sending.go(op(message)).unwrap();
        }
        sending.stripe();
        let all: Vec<_> = std::iter::from_fn(|| sending.pull())
            .map(|chunk| chunk.id)
            .collect();
        assert!(all.len() == 6 && !sending.is_partly_sent());
        sending.send_again(all.clone());
        assert!(sending.is_partly_sent());
        sending.cancel(op(2));
        let again: Vec<_> = std::iter::from_fn(|| sending.pull()).collect();
        let ids: Vec<_> = again.iter().map(|chunk| chunk.id).collect();
        let expected: Vec<_> = all.into_iter().filter(|id| id.op == op(1)).collect();
        assert_eq!(ids, expected);
        assert_eq!(again.last().map(|chunk| chunk.bytes.len()), Some(1));
        assert!(!sending.is_partly_sent());
    }

    #[test]
    fn what_has_not_begun_can_go_another_way_and_what_has_is_torn() {
        let mut sending = Sending::default();
        for message in 1..=3 {
            sending.hold(op(message), buffer(2 * CHUNK));
            sending.go(op(message)).unwrap();
        }
        sending.hold(op(4), buffer(CHUNK));
        sending.stripe();
        let begun = sending.pull().unwrap().id.op;
        let asked = sending.ask();
        assert_eq!(asked.len(), 2);
        assert!(sending.is_partly_sent());
        assert_eq!(sending.pull().map(|chunk| chunk.id.op), Some(begun));
        assert!(sending.pull().is_none() && !sending.is_partly_sent());
        assert!(sending.stream(begun).is_err() && sending.stream(op(4)).is_err());
        assert!(sending.stream(asked[0]).unwrap().is_some());
        sending.cancel(asked[1]);
        assert!(sending.stream(asked[1]).unwrap().is_none());
        assert!(sending.go(asked[1]).is_ok(), "it crossed the cancel");
    }
}
