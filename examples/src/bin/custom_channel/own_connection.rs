//! Channel `fakewire`: asks for a connection of its own in each pipe, and moves device memory over it.
//!
//! Each part is a header (message, part, length; little-endian) and its bytes. The peer's lane has said `recv` before the
//! writer is told to send, so a header whose part nobody wants any more is one that was cancelled: its bytes are
//! thrown away.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tensorpipe::channels::{Channel, ChannelFault, Lane, LaneHandle, LaneIo, Link, OpId, Want};
use tensorpipe::transports::Connection;
use tensorpipe::{Buffer, BufferMut, Device, Error, Pays, Threshold};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::fake_device::{FAKE, fill, reaches, room_on, source};

const NAME: &str = "fakewire";

const HEADER: usize = 18;

/// Bytes moved at once: the length that a header claims is never allocated.
const PIECE: usize = 256 << 10;

/// See the module's documentation.
pub(crate) struct FakeWireChannel;

impl Channel for FakeWireChannel {
    fn name(&self) -> &'static str {
        NAME
    }

    fn devices(&self) -> Vec<(Device, Vec<u8>)> {
        vec![(FAKE, b"1".to_vec()), (Device::CPU, b"1".to_vec())]
    }

    fn reaches(&self, ours: (Device, &[u8]), theirs: (Device, &[u8])) -> Result<(), String> {
        reaches(ours.0, theirs.0)
    }

    fn connections(&self) -> u8 {
        1
    }

    /// Where there are other channels it is for what is large.
    fn thresholds(&self, _: &[(Device, Vec<u8>)]) -> Vec<Threshold> {
        vec![Threshold::new(Pays::From(1 << 20))]
    }

    fn open(&self, mut link: Link) -> Result<Box<dyn Lane>, Error> {
        let connection = link
            .connections
            .pop()
            .ok_or_else(|| failed("its connection is missing"))?;
        let (read, write) = tokio::io::split(connection);
        let (queue, queued) = mpsc::unbounded_channel();
        let wanted = Arc::<Wanted>::default();
        let writing = tokio::spawn(write_parts(write, queued, link.handle.clone()));
        let reading = tokio::spawn(read_parts(read, wanted.clone(), link.handle));
        Ok(Box::new(FakeWireLane {
            queue,
            wanted,
            tasks: [reading, writing],
        }))
    }
}

type Wanted = Mutex<HashMap<(u64, u16), BufferMut>>;

struct FakeWireLane {
    queue: mpsc::UnboundedSender<(OpId, Buffer)>,
    wanted: Arc<Wanted>,
    tasks: [JoinHandle<()>; 2],
}

fn failed(reason: &str) -> Error {
    Error::Channel {
        channel: NAME,
        reason: reason.into(),
    }
}

impl Lane for FakeWireLane {
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        if self.queue.send((op, source)).is_err() {
            io.failed(op, failed("its connection is lost"));
        }
    }

    fn recv(&mut self, op: OpId, want: Want, _: &mut LaneIo<'_>) {
        let dest = match want {
            Want::Into(dest) => dest,
            Want::Adopt { len, device } => room_on(device, len as usize),
        };
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        wanted.insert((op.message, op.part), dest);
    }

    fn control(&mut self, _: OpId, _: &[u8], _: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        Err(ChannelFault("it has no control frames".to_owned()))
    }

    fn streamed(&mut self, _: OpId, _: Option<BufferMut>, _: &mut LaneIo<'_>) {}

    fn cancel(&mut self, op: OpId, _: &mut LaneIo<'_>) {
        if !op.outgoing {
            let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
            wanted.remove(&(op.message, op.part));
        }
    }
}

impl Drop for FakeWireLane {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn write_parts(
    mut connection: WriteHalf<Box<dyn Connection>>,
    mut queued: mpsc::UnboundedReceiver<(OpId, Buffer)>,
    pipe: LaneHandle,
) {
    while let Some((op, buffer)) = queued.recv().await {
        let Some(bytes) = source(&buffer) else {
            pipe.failed(op, failed("memory of a device that it does not know"));
            continue;
        };
        let mut header = Vec::with_capacity(HEADER);
        header.extend_from_slice(&op.message.to_le_bytes());
        header.extend_from_slice(&op.part.to_le_bytes());
        header.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        let write = async {
            connection.write_all(&header).await?;
            connection.write_all(bytes).await?;
            connection.flush().await
        };
        if write.await.is_err() {
            // The pipe's own connection tells how the peer ended.
            return;
        }
        pipe.sent(op);
    }
}

async fn read_parts(
    mut connection: ReadHalf<Box<dyn Connection>>,
    wanted: Arc<Wanted>,
    pipe: LaneHandle,
) {
    let mut header = [0; HEADER];
    let mut staging = Vec::new();
    while connection.read_exact(&mut header).await.is_ok() {
        let message = u64::from_le_bytes(header[..8].try_into().unwrap_or_default());
        let part = u16::from_le_bytes(header[8..10].try_into().unwrap_or_default());
        let len = u64::from_le_bytes(header[10..].try_into().unwrap_or_default());
        staging.clear();
        let mut left = len;
        while left > 0 {
            let is_wanted = {
                let wanted = wanted.lock().unwrap_or_else(PoisonError::into_inner);
                wanted.get(&(message, part)).map(|dest| dest.len() as u64)
            };
            if is_wanted.is_some_and(|wanted| wanted != len) {
                pipe.broken(failed("the peer sends another length than it announced"));
                return;
            }
            // What nobody wants any more is not kept.
            let start = if is_wanted.is_some() {
                staging.len()
            } else {
                0
            };
            staging.resize(start + left.min(PIECE as u64) as usize, 0);
            if connection.read_exact(&mut staging[start..]).await.is_err() {
                return;
            }
            left -= (staging.len() - start) as u64;
        }
        let dest = {
            let mut wanted = wanted.lock().unwrap_or_else(PoisonError::into_inner);
            wanted.remove(&(message, part))
        };
        let Some(mut dest) = dest else { continue };
        let op = OpId {
            message,
            part,
            outgoing: false,
        };
        if fill(&mut dest, &staging) {
            pipe.received(op, dest.freeze());
        } else {
            pipe.failed(op, failed("memory of a device that it does not know"));
        }
    }
}
