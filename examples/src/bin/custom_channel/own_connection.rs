//! Channel `testwire`: opens one extra connection for each pipe and moves device memory over it.
//!
//! Each part is a header (its key, its length in little-endian) and its bytes. The pipe calls `recv` on the reader's lane before `send` on
//! the writer's. So a part that arrives unwanted was cancelled, and the reader discards its bytes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tensorpipe::channels::{
    Channel, ChannelFault, DeviceOffer, Lane, LaneHandle, LaneIo, Link, OpId, Want,
};
use tensorpipe::conformance::{TestDevices, TestQueue};
use tensorpipe::transports::Connection;
use tensorpipe::{
    Buffer, BufferMut, Device, DeviceError, Error,
    channels::{Pays, Threshold},
    device::Allocator,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

const NAME: &str = "testwire";

const HEADER: usize = OpId::KEY_LEN + 8;

/// Bytes read at once. The length that a header claims is never allocated up front.
const PIECE: usize = 256 << 10;

const OTHER_LENGTH: &str = "the peer sends another length than it announced";

/// See the module's documentation.
pub(crate) struct TestWireChannel {
    pub(crate) devices: TestDevices,
}

impl Channel for TestWireChannel {
    fn name(&self) -> &'static str {
        NAME
    }

    fn devices(&self) -> Vec<(Device, Vec<u8>)> {
        let devices = self.devices.devices().into_iter().chain([Device::CPU]);
        devices.map(|device| (device, b"1".to_vec())).collect()
    }

    fn reaches(&self, ours: DeviceOffer<'_>, theirs: DeviceOffer<'_>) -> Result<(), String> {
        if ours.device.is_cpu() && theirs.device.is_cpu() {
            return Err("channel basic does that".to_owned());
        }
        Ok(())
    }

    fn connections(&self) -> u8 {
        1
    }

    /// Beside other channels, this one takes parts from 1 MiB up.
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
        let (out, back) = (self.devices.queue(), self.devices.queue());
        let writing = tokio::spawn(write_parts(write, queued, out, link.handle.clone()));
        let reading = tokio::spawn(read_parts(read, wanted.clone(), back, link.handle));
        Ok(Box::new(TestWireLane {
            queue,
            wanted,
            tasks: [reading, writing],
        }))
    }
}

type Wanted = Mutex<HashMap<OpId, BufferMut>>;

struct TestWireLane {
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

impl TestWireLane {
    fn wanted(&self) -> MutexGuard<'_, HashMap<OpId, BufferMut>> {
        lock(&self.wanted)
    }
}

fn lock(wanted: &Wanted) -> MutexGuard<'_, HashMap<OpId, BufferMut>> {
    wanted.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lane for TestWireLane {
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        if self.queue.send((op, source)).is_err() {
            io.failed(op, failed("its connection is lost"));
        }
    }

    fn recv(&mut self, op: OpId, want: Want, io: &mut LaneIo<'_>) {
        let dest = match want {
            Want::Into(dest) => Ok(dest),
            Want::Adopt { len, device } => io.allocate(op, device, len),
        };
        match dest {
            Ok(dest) => drop(self.wanted().insert(op, dest)),
            Err(error) => io.failed(op, error),
        }
    }

    fn control(&mut self, _: OpId, _: &[u8], _: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        Err(ChannelFault("it has no control frames".to_owned()))
    }

    fn cancel(&mut self, op: OpId, _: &mut LaneIo<'_>) {
        self.wanted().remove(&op);
    }
}

impl Drop for TestWireLane {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Copies `source` to main memory and waits until the device has done so.
async fn in_main_memory(source: Buffer, out: &TestQueue) -> Result<Buffer, DeviceError> {
    if source.device().is_cpu() {
        return Ok(source);
    }
    let copied = out.read(&source, BufferMut::zeroed(source.len()))?;
    let (reached, is_reached) = oneshot::channel();
    copied.fence().when_reached(Box::new(move || {
        let _ = reached.send(());
    }));
    let _ = is_reached.await;
    let memory = copied.take().map(BufferMut::freeze);
    memory.ok_or_else(|| DeviceError::new(source.device(), "copy", "its queue has ended"))
}

async fn write_parts(
    mut connection: WriteHalf<Box<dyn Connection>>,
    mut queued: mpsc::UnboundedReceiver<(OpId, Buffer)>,
    out: TestQueue,
    pipe: LaneHandle,
) {
    while let Some((op, source)) = queued.recv().await {
        let staged = match in_main_memory(source, &out).await {
            Ok(staged) => staged,
            Err(error) => {
                pipe.failed(op, failed(&error.to_string()));
                continue;
            }
        };
        let bytes = staged.as_bytes().unwrap_or_default();
        let mut header = Vec::with_capacity(HEADER);
        header.extend_from_slice(&op.key());
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
    back: TestQueue,
    pipe: LaneHandle,
) {
    let mut header = [0; HEADER];
    let mut staging = Vec::new();
    while connection.read_exact(&mut header).await.is_ok() {
        let (mut key, mut len) = ([0; OpId::KEY_LEN], [0; 8]);
        key.copy_from_slice(&header[..OpId::KEY_LEN]);
        len.copy_from_slice(&header[OpId::KEY_LEN..]);
        let (op, len) = (OpId::from_key(key, false), u64::from_le_bytes(len));
        staging.clear();
        let mut left = len;
        while left > 0 {
            let is_wanted = lock(&wanted).get(&op).map(|dest| dest.len() as u64);
            if is_wanted.is_some_and(|wanted| wanted != len) {
                return pipe.broken(failed(OTHER_LENGTH));
            }
            // The bytes of a cancelled part are read and discarded.
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
        let Some(mut dest) = lock(&wanted).remove(&op) else {
            continue;
        };
        // The part has no bytes, or began before this end asked for it.
        if staging.len() != dest.len() {
            return pipe.broken(failed(OTHER_LENGTH));
        }
        if let Some(to) = dest.as_bytes_mut() {
            to.copy_from_slice(&staging);
            pipe.received(op, dest.freeze());
            continue;
        }
        // The part counts as received once the copy is queued: the buffer's fence tells when it is ready.
        let staged = Buffer::from_vec(std::mem::take(&mut staging));
        match back.write(staged, dest) {
            Ok(buffer) => pipe.received(op, buffer),
            Err(error) => pipe.failed(op, failed(&error.to_string())),
        }
    }
}
