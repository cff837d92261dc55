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
use crate::device::BufferMut;
use crate::sync::{Mutex, lock};

/// Read at once at most, in bytes: while one connection reads, the tensor's others wait.
const PIECE: usize = 128 << 10;

#[derive(Debug)]
pub(super) struct Arriving {
    len: u64,
    filling: Mutex<Filling>,
}

#[derive(Debug)]
struct Filling {
    /// `None` once it has left.
    memory: Option<BufferMut>,
    /// One bit for each chunk.
    claimed: Vec<u64>,
    /// Chunks that are not whole yet.
    missing: u64,
}

impl Arriving {
    /// `memory` is main memory, and not empty.
    pub(super) fn new(memory: BufferMut) -> Self {
        let len = memory.len() as u64;
        let chunks = len.div_ceil(CHUNK);
        Self {
            len,
            filling: Mutex::new(Filling {
                memory: Some(memory),
                claimed: vec![0; chunks.div_ceil(64) as usize],
                missing: chunks,
            }),
        }
    }

    /// The place of a chunk that is about to come.
    pub(super) fn claim(&self, chunk: &ChunkHead) -> Result<Range<usize>, ChannelFault> {
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
        let (word, bit) = (offset / CHUNK / 64, 1 << (offset / CHUNK % 64));
        let claimed = &mut lock(&self.filling).claimed[word as usize];
        if *claimed & bit != 0 {
            return Err(ChannelFault(format!("the chunk at {offset} a second time")));
        }
        *claimed |= bit;
        Ok(offset as usize..(offset + len) as usize)
    }

    /// Reads some bytes into `place`: how many. `None`: nobody waits for it any more, and nothing was read.
    pub(super) fn poll_fill(
        &self,
        cx: &mut Context<'_>,
        reader: Pin<&mut (impl AsyncRead + ?Sized)>,
        place: Range<usize>,
    ) -> Poll<io::Result<Option<usize>>> {
        let mut filling = lock(&self.filling);
        let memory = filling.memory.as_mut().and_then(BufferMut::as_bytes_mut);
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
            filling.memory.take()
        } else {
            None
        }
    }

    /// The memory, of which nothing has been claimed.
    pub(super) fn take_untouched(&self) -> Result<Option<BufferMut>, ChannelFault> {
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
    use super::*;

    fn chunk(offset: u64, len: u64) -> ChunkHead {
        ChunkHead {
            message: 0,
            part: 0,
            offset,
            len: len as u32,
        }
    }

    #[test]
    fn only_whole_chunks_in_their_own_place_and_each_once() {
        let arriving = Arriving::new(BufferMut::zeroed(70 * CHUNK as usize + 5));
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
        assert!(arriving.take_untouched().unwrap().is_some());
        for i in (0..70).rev() {
            let place = arriving.claim(&chunk(i * CHUNK, CHUNK)).unwrap();
            assert_eq!(place.start as u64, i * CHUNK);
            assert!(arriving.claim(&chunk(i * CHUNK, CHUNK)).is_err());
        }
        assert_eq!(arriving.claim(&chunk(70 * CHUNK, 5)).unwrap().len(), 5);
        assert!(arriving.take_untouched().is_err());
    }

    #[tokio::test]
    async fn it_leaves_with_the_last_chunk_or_when_it_is_let_go_of() {
        let fill = async |arriving: &Arriving, offset: u64, byte: u8| {
            let place = arriving.claim(&chunk(offset, CHUNK)).unwrap();
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
        let arriving = Arriving::new(BufferMut::zeroed(2 * CHUNK as usize));
        assert!(fill(&arriving, CHUNK, 2).await.is_none());
        let memory = fill(&arriving, 0, 1).await.unwrap().freeze();
        let bytes = memory.as_bytes().unwrap();
        let (one, two) = bytes.split_at(CHUNK as usize);
        assert!(one.iter().all(|byte| *byte == 1) && two.iter().all(|byte| *byte == 2));

        let arriving = Arriving::new(BufferMut::zeroed(CHUNK as usize));
        arriving.let_go();
        assert!(fill(&arriving, 0, 1).await.is_none());
    }
}
