//! A tensor on its way in: where its chunks go.
//!
//! Invariant: a chunk is claimed once, before its first byte, and only its own range is written. The memory leaves whole,
//! or when nobody waits for the tensor any more; nobody writes to it afterwards.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use super::ChannelFault;
use super::frame::{CHUNK, ChunkHead};
use crate::device::{BufferMut, Destination, Pool};
use crate::error::SystemError;
use crate::sync::{Mutex, lock};

/// Read at once at most, in bytes: while one connection reads, the tensor's others wait.
const PIECE: usize = 128 << 10;

#[derive(Debug)]
pub(super) struct Arriving {
    len: u64,
    pool: Pool,
    filling: Mutex<Filling>,
}

#[derive(Debug)]
struct Filling {
    /// `None` once it has left.
    memory: Option<Destination>,
    /// One bit for each chunk.
    claimed: Vec<u64>,
    /// Chunks that are not whole yet.
    missing: u64,
}

/// Where a chunk goes.
#[derive(Debug)]
pub(super) struct Claimed {
    pub(super) place: Range<usize>,
    /// What becomes resident by that, or why there is no memory.
    pub(super) cost: Result<u64, SystemError>,
}

impl Filling {
    fn is_claimed(&self, offset: u64) -> bool {
        let chunk = offset / CHUNK;
        self.claimed[(chunk / 64) as usize] & (1 << (chunk % 64)) != 0
    }

    /// Gets memory for the chunk at `offset`: what that makes resident. Chunks of one huge page cost it once.
    fn open(&mut self, offset: u64, pool: &Pool) -> Result<u64, SystemError> {
        // Nobody waits for it any more.
        let Some(memory) = &self.memory else {
            return Ok(0);
        };
        let page = memory.page(offset as usize);
        let mut chunks = page.clone().step_by(CHUNK as usize);
        if chunks.any(|chunk| self.is_claimed(chunk as u64)) {
            return Ok(0);
        }
        let Some(memory) = &mut self.memory else {
            return Ok(0);
        };
        let cost = memory.cost(page, pool)?;
        memory.open(pool)?;
        Ok(cost)
    }
}

impl Arriving {
    /// `memory` is main memory, and not empty; what is taken of it comes from `pool`.
    pub(super) fn new(memory: Destination, pool: Pool) -> Self {
        let len = memory.len() as u64;
        let chunks = len.div_ceil(CHUNK);
        Self {
            len,
            pool,
            filling: Mutex::new(Filling {
                memory: Some(memory),
                claimed: vec![0; chunks.div_ceil(64) as usize],
                missing: chunks,
            }),
        }
    }

    /// The place of a chunk that is about to come, with memory.
    pub(super) fn claim(&self, chunk: &ChunkHead) -> Result<Claimed, ChannelFault> {
        let (offset, len) = (chunk.offset, u64::from(chunk.len));
        let fits = offset < self.len
            && offset.is_multiple_of(CHUNK)
            && len == CHUNK.min(self.len - offset);
        if !fits {
            return Err(ChannelFault(format!(
                "{len} bytes at {offset} of a tensor of {}",
                self.len
            )));
        }
        let mut filling = lock(&self.filling);
        if filling.is_claimed(offset) {
            return Err(ChannelFault(format!("the chunk at {offset} a second time")));
        }
        let cost = filling.open(offset, &self.pool);
        filling.claimed[(offset / CHUNK / 64) as usize] |= 1 << (offset / CHUNK % 64);
        let place = offset as usize..(offset + len) as usize;
        Ok(Claimed { place, cost })
    }

    /// Reads some bytes into `place`: how many. `None`: nobody waits for it any more, and nothing was read.
    pub(super) fn poll_fill(
        &self,
        cx: &mut Context<'_>,
        reader: Pin<&mut (impl AsyncRead + ?Sized)>,
        place: Range<usize>,
    ) -> Poll<io::Result<Option<usize>>> {
        let mut filling = lock(&self.filling);
        let memory = filling.memory.as_mut();
        let memory = memory.and_then(Destination::as_bytes_mut);
        let Some(bytes) = memory else {
            return Poll::Ready(Ok(None));
        };
        let end = place.end.min(place.start + PIECE);
        let mut buf = ReadBuf::new(&mut bytes[place.start..end]);
        ready!(reader.poll_read(cx, &mut buf))?;
        match buf.filled().len() {
            0 => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            len => Poll::Ready(Ok(Some(len))),
        }
    }

    /// One chunk is whole. The memory, if that was the last.
    pub(super) fn filled(&self) -> Option<BufferMut> {
        let mut filling = lock(&self.filling);
        filling.missing = filling.missing.saturating_sub(1);
        if filling.missing == 0 {
            filling.memory.take().and_then(Destination::into_memory)
        } else {
            None
        }
    }

    /// The memory, of which nothing has been claimed.
    pub(super) fn take_untouched(&self) -> Result<Option<Destination>, ChannelFault> {
        let mut filling = lock(&self.filling);
        if filling.claimed.iter().any(|claimed| *claimed != 0) {
            return Err(ChannelFault(
                "a tensor that has begun as another one".to_owned(),
            ));
        }
        Ok(filling.memory.take())
    }

    /// Nobody waits for it any more.
    pub(super) fn let_go(&self) {
        let memory = lock(&self.filling).memory.take();
        drop(memory);
    }
}

#[cfg(test)]
mod tests {
    use super::super::OpId;
    use super::*;

    fn of(len: usize) -> Arriving {
        Arriving::new(Destination::pooled(len), Pool::default())
    }

    fn chunk(offset: u64, len: u64) -> ChunkHead {
        ChunkHead {
            op: OpId::incoming(0, 0),
            offset,
            len: len as u32,
        }
    }

    #[test]
    fn only_whole_chunks_in_their_own_place_and_each_once() {
        let arriving = of(70 * CHUNK as usize + 5);
        let wrong = [
            chunk(1, CHUNK),
            chunk(0, CHUNK - 1),
            chunk(70 * CHUNK, 6),
            chunk(70 * CHUNK, CHUNK),
            chunk(71 * CHUNK, 5),
            chunk(u64::MAX - CHUNK + 1, CHUNK),
        ];
        for wrong in wrong {
            assert!(arriving.claim(&wrong).is_err(), "{wrong:?}");
        }
        let memory = arriving.take_untouched().unwrap();
        lock(&arriving.filling).memory = memory;
        let mut cost = 0;
        for i in (0..70).rev() {
            let claimed = arriving.claim(&chunk(i * CHUNK, CHUNK)).unwrap();
            assert_eq!(claimed.place.start as u64, i * CHUNK);
            cost += claimed.cost.unwrap();
            assert!(arriving.claim(&chunk(i * CHUNK, CHUNK)).is_err());
        }
        let last = arriving.claim(&chunk(70 * CHUNK, 5)).unwrap();
        assert_eq!(last.place.len(), 5);
        cost += last.cost.unwrap();
        // 36 MiB: 70 chunks and 5 bytes lie on 18 huge pages.
        assert_eq!(cost, 36 << 20);
        assert!(arriving.take_untouched().is_err());
    }

    #[tokio::test]
    async fn it_leaves_with_the_last_chunk_or_when_it_is_let_go_of() {
        let fill = async |arriving: &Arriving, offset: u64, byte: u8| {
            let Claimed { place, cost } = arriving.claim(&chunk(offset, CHUNK)).unwrap();
            cost.unwrap();
            let bytes = vec![byte; CHUNK as usize];
            let (mut bytes, mut at) = (&bytes[..], place.start);
            while at < place.end {
                let read = std::future::poll_fn(|cx| {
                    arriving.poll_fill(cx, Pin::new(&mut bytes), at..place.end)
                });
                match read.await.unwrap() {
                    Some(len) => at += len,
                    None => return None,
                }
            }
            arriving.filled()
        };
        let arriving = of(2 * CHUNK as usize);
        assert!(fill(&arriving, CHUNK, 2).await.is_none());
        let memory = fill(&arriving, 0, 1).await.unwrap().freeze();
        let bytes = memory.as_bytes().unwrap();
        let (one, two) = bytes.split_at(CHUNK as usize);
        assert!(one.iter().all(|byte| *byte == 1) && two.iter().all(|byte| *byte == 2));

        let arriving = of(CHUNK as usize);
        arriving.let_go();
        assert!(fill(&arriving, 0, 1).await.is_none());
    }
}
