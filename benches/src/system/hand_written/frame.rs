//! A frame in memory: `{kind: u64, word: u64}` and a body side by side, so that a small one is one write and one read, and
//! a large one is read straight to where it stays.

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::system::socket::Socket;

/// A header and a body of a fixed length, side by side, the body aligned to a cache line.
pub(super) struct Frame {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Frame {
    pub(super) fn new(len: usize) -> Self {
        let memory = vec![0; HEADER + LINE + len];
        let start = memory[HEADER..].as_ptr().align_offset(LINE).min(LINE);
        Self { memory, start, len }
    }

    pub(super) fn body(&self) -> &[u8] {
        &self.memory[self.start + HEADER..][..self.len]
    }

    pub(super) fn body_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start + HEADER..][..self.len]
    }

    pub(super) fn set_header(&mut self, kind: u64, word: u64) {
        let header = &mut self.memory[self.start..][..HEADER];
        header[..8].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&word.to_le_bytes());
    }

    fn header(&self) -> (u64, u64) {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&self.memory[self.start + at..][..8]);
            u64::from_le_bytes(word)
        };
        (word(0), word(8))
    }

    pub(super) async fn write(&self, stream: &mut Socket) -> Result<()> {
        let bytes = &self.memory[self.start..][..HEADER + self.len];
        for chunk in bytes.chunks(WRITE) {
            stream.write_all(chunk).await.context("write")?;
        }
        Ok(())
    }

    /// Reads a frame; `None` at the end of the stream. The body is left alone by a frame that has none.
    pub(super) async fn read(&mut self, stream: &mut Socket) -> Result<Option<(u64, u64)>> {
        let whole = &mut self.memory[self.start..][..HEADER + self.len];
        let mut have = 0;
        let mut wanted = HEADER;
        while have < wanted {
            let to = whole.len().min(have + READ);
            let count = stream.read(&mut whole[have..to]).await.context("read")?;
            if count == 0 {
                ensure!(have == 0, "the stream ended within a frame");
                return Ok(None);
            }
            have += count;
            if wanted == HEADER && have >= HEADER {
                let kind = u64::from_le_bytes(whole[..8].try_into().expect("8 bytes"));
                if has_body(kind) {
                    wanted = whole.len();
                }
            }
        }
        let header = self.header();
        let (kind, word) = header;
        ensure!(
            !has_body(kind) || word == self.len as u64,
            "a frame of {word} bytes, agreed were {}",
            self.len
        );
        Ok(Some(header))
    }
}

/// Whether such a frame has a body.
pub(super) fn has_body(kind: u64) -> bool {
    !matches!(kind, VERIFY | STAGE | DOWNLOAD | PING)
}

const HEADER: usize = 16;
const LINE: usize = 64;
/// Bytes of one read and of one write, found by trying on the loopback: 256 MiB take 38 ms this way, 50 ms with 4 MiB
/// each, more than 80 ms with 256 KiB each. Other machines may want others.
const READ: usize = 64 << 10;
const WRITE: usize = 512 << 10;
/// Kinds of frames.
pub(super) const ECHO: u64 = 1;
pub(super) const UPLOAD: u64 = 2;
/// Without a body. Its word is the round to compare the body received last with.
pub(super) const VERIFY: u64 = 3;
/// Without a body. Its word is the round whose body shall be laid ready.
pub(super) const STAGE: u64 = 4;
/// Without a body: asks for what lies ready.
pub(super) const DOWNLOAD: u64 = 5;
/// Without a body: asks for an acknowledgement.
pub(super) const PING: u64 = 6;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Transport;
    use crate::system::socket::Listener;

    #[test]
    fn a_body_starts_on_a_cache_line() {
        for len in [0, 1, 64, 4096, 1 << 20] {
            let frame = Frame::new(len);
            assert_eq!(frame.body().len(), len);
            assert_eq!(frame.body().as_ptr().addr() % LINE, 0);
        }
    }

    async fn pair() -> Result<(Socket, Socket)> {
        let (listener, address) = Listener::bind(Transport::Unix).await?;
        let near = Socket::connect(Transport::Unix, &address).await?;
        Ok((near, listener.accept().await?))
    }

    #[tokio::test]
    async fn a_peer_that_sends_another_length_is_refused() -> Result<()> {
        let (mut sender, mut receiver) = pair().await?;
        let mut frame = Frame::new(8);
        frame.set_header(UPLOAD, 9);
        frame.write(&mut sender).await?;
        let error = Frame::new(8)
            .read(&mut receiver)
            .await
            .expect_err("9 is not 8");
        assert_eq!(error.to_string(), "a frame of 9 bytes, agreed were 8");
        Ok(())
    }

    #[tokio::test]
    async fn an_end_within_a_frame_is_told_from_an_end_after_one() -> Result<()> {
        for (sent, ended_well) in [(0, true), (5, false), (17, false)] {
            let (mut sender, mut receiver) = pair().await?;
            sender.write_all(&[1; 17][..sent]).await?;
            drop(sender);
            let read = Frame::new(64).read(&mut receiver).await;
            assert_eq!(read.is_ok(), ended_well, "{sent} bytes: {read:?}");
        }
        Ok(())
    }
}
