//! A tensor on its way in: where its chunks go.
//!
//! Invariant: a connection claims a chunk before its first byte, and writes only into that chunk's range. If a chunk comes again, the
//! connection that claimed it last owns it; a whole chunk is not written again. The memory leaves when it is whole, or when nobody waits
//! for the tensor any more. Nobody writes to it afterwards.

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

/// The most bytes that one read fills: while one connection reads, the tensor's other connections wait.
const PIECE: usize = 128 << 10;

#[derive(Debug)]
pub(super) struct Arriving {
    len: u64,
    pool: Pool,
    filling: Mutex<Filling>,
}

#[derive(Debug)]
struct Filling {
    /// `None` once the memory has left.
    memory: Option<Destination>,
    chunks: Vec<ChunkState>,
    /// Chunks that are not whole yet.
    missing: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkState {
    ToCome,
    /// Read by the connection of this number.
    ClaimedBy(u8),
    Whole,
}

/// Where a chunk goes.
#[derive(Debug)]
pub(super) struct Claimed {
    pub(super) place: Range<usize>,
    /// The bytes that become resident, or why there is no memory.
    pub(super) cost: Result<u64, SystemError>,
}

impl Filling {
    fn chunk(&mut self, offset: usize) -> &mut ChunkState {
        &mut self.chunks[offset / CHUNK as usize]
    }

    /// Gets memory for the chunk at `offset`; returns the bytes that become resident. A huge page counts once for all its chunks.
    fn open(&mut self, offset: usize, pool: &Pool) -> Result<u64, SystemError> {
        // Nobody waits for it any more.
        let Some(memory) = &self.memory else {
            return Ok(0);
        };
        let page = memory.page(offset);
        let mut chunks = page.clone().step_by(CHUNK as usize);
        if chunks.any(|chunk| *self.chunk(chunk) != ChunkState::ToCome) {
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
    /// `memory` is main memory and not empty; the memory that backs it comes from `pool`.
    pub(super) fn new(memory: Destination, pool: Pool) -> Self {
        let len = memory.len() as u64;
        let chunks = len.div_ceil(CHUNK);
        Self {
            len,
            pool,
            filling: Mutex::new(Filling {
                memory: Some(memory),
                chunks: vec![ChunkState::ToCome; chunks as usize],
                missing: chunks,
            }),
        }
    }

    /// Claims a chunk that is about to arrive on connection `by`, and gets memory for it. `None`: the chunk is here already.
    pub(super) fn claim(&self, chunk: &ChunkHead, by: u8) -> Result<Option<Claimed>, ChannelFault> {
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
        let place = offset as usize..(offset + len) as usize;
        let mut filling = lock(&self.filling);
        let cost = match *filling.chunk(place.start) {
            ChunkState::ToCome => filling.open(place.start, &self.pool),
            ChunkState::ClaimedBy(_) => Ok(0),
            ChunkState::Whole => return Ok(None),
        };
        *filling.chunk(place.start) = ChunkState::ClaimedBy(by);
        Ok(Some(Claimed { place, cost }))
    }

    /// Reads some bytes into `place` and returns their number. `None`: connection `by` does not own the chunk any more; nothing was
    /// read.
    pub(super) fn poll_fill(
        &self,
        cx: &mut Context<'_>,
        reader: Pin<&mut (impl AsyncRead + ?Sized)>,
        place: Range<usize>,
        by: u8,
    ) -> Poll<io::Result<Option<usize>>> {
        let mut filling = lock(&self.filling);
        if *filling.chunk(place.start) != ChunkState::ClaimedBy(by) {
            return Poll::Ready(Ok(None));
        }
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

    /// Connection `by` has read all of the chunk at `offset`. If no chunk is missing now, returns the memory.
    pub(super) fn filled(&self, offset: u64, by: u8) -> Option<BufferMut> {
        let mut filling = lock(&self.filling);
        let chunk = filling.chunk(offset as usize);
        if *chunk != ChunkState::ClaimedBy(by) {
            return None;
        }
        *chunk = ChunkState::Whole;
        filling.missing -= 1;
        if filling.missing == 0 {
            filling.memory.take().and_then(Destination::into_memory)
        } else {
            None
        }
    }

    /// Whether a chunk was claimed.
    pub(super) fn has_begun(&self) -> bool {
        let filling = lock(&self.filling);
        let mut chunks = filling.chunks.iter();
        chunks.any(|chunk| *chunk != ChunkState::ToCome)
    }

    /// Takes the memory back, provided that no chunk was claimed.
    pub(super) fn take_untouched(&self) -> Result<Option<Destination>, ChannelFault> {
        if self.has_begun() {
            return Err(ChannelFault(
                "a tensor that has begun as another one".to_owned(),
            ));
        }
        Ok(lock(&self.filling).memory.take())
    }

    /// Nobody waits for it any more.
    pub(super) fn let_go(&self) {
        let memory = lock(&self.filling).memory.take();
        drop(memory);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::OpId;
    use super::*;

    pub(in super::super) fn of(len: usize) -> Arriving {
        Arriving::new(Destination::pooled(len), Pool::default())
    }

    fn chunk(offset: u64, len: u64) -> ChunkHead {
        ChunkHead {
            op: OpId::incoming(0, 0),
            offset,
            len: len as u32,
        }
    }

    pub(in super::super) fn claim(arriving: &Arriving, offset: u64, by: u8) -> Range<usize> {
        let claimed = arriving.claim(&chunk(offset, CHUNK), by);
        let Claimed { place, cost } = claimed.unwrap().unwrap();
        cost.unwrap();
        place
    }

    pub(in super::super) async fn read(
        arriving: &Arriving,
        mut place: Range<usize>,
        byte: u8,
        by: u8,
    ) -> Option<()> {
        let bytes = vec![byte; place.len()];
        let mut bytes = &bytes[..];
        while !place.is_empty() {
            let read = std::future::poll_fn(|cx| {
                arriving.poll_fill(cx, Pin::new(&mut bytes), place.clone(), by)
            });
            place.start += read.await.unwrap()?;
        }
        Some(())
    }

    #[test]
    fn only_whole_chunks_in_their_own_place_and_memory_is_counted_once() {
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
            assert!(arriving.claim(&wrong, 0).is_err(), "{wrong:?}");
        }
        let memory = arriving.take_untouched().unwrap();
        lock(&arriving.filling).memory = memory;
        let mut cost = 0;
        for i in (0..70).rev() {
            for by in [0, 1] {
                let claimed = arriving.claim(&chunk(i * CHUNK, CHUNK), by);
                let claimed = claimed.unwrap().unwrap();
                assert_eq!(claimed.place.start as u64, i * CHUNK);
                cost += claimed.cost.unwrap();
            }
        }
        let last = arriving.claim(&chunk(70 * CHUNK, 5), 0).unwrap().unwrap();
        assert_eq!(last.place.len(), 5);
        cost += last.cost.unwrap();
        // 36 MiB: 70 chunks and 5 bytes lie on 18 huge pages.
        assert_eq!(cost, 36 << 20);
        assert!(arriving.take_untouched().is_err());
    }

    #[tokio::test]
    async fn it_leaves_with_the_last_chunk_or_when_it_is_let_go_of() {
        let fill = async |arriving: &Arriving, offset: u64, byte: u8| {
            let place = claim(arriving, offset, 0);
            read(arriving, place, byte, 0).await?;
            arriving.filled(offset, 0)
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

    #[tokio::test]
    async fn a_chunk_that_comes_twice_is_of_the_last_that_claimed_it_until_it_is_whole() {
        let arriving = of(2 * CHUNK as usize);
        let half = CHUNK as usize / 2;
        let first = claim(&arriving, 0, 0);
        read(&arriving, 0..half, 7, 0).await.unwrap();
        let second = claim(&arriving, 0, 1);
        assert_eq!(first, second);
        assert!(read(&arriving, half..first.end, 7, 0).await.is_none());
        assert!(arriving.filled(0, 0).is_none());
        read(&arriving, second, 1, 1).await.unwrap();
        assert!(arriving.filled(0, 1).is_none());
        assert!(arriving.claim(&chunk(0, CHUNK), 0).unwrap().is_none());
        assert!(arriving.filled(0, 0).is_none());
        let last = claim(&arriving, CHUNK, 0);
        read(&arriving, last, 1, 0).await.unwrap();
        let memory = arriving.filled(CHUNK, 0).unwrap().freeze();
        assert!(memory.as_bytes().unwrap().iter().all(|byte| *byte == 1));
    }
}
