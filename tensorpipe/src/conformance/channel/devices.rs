//! Device memory: transfers to and from main memory, and queues that stand still.

use std::sync::mpsc;
use std::time::Duration;

use super::{Subject, blocking, within};
use crate::conformance::{BOUND, assert_same, pattern};
use crate::device::{Buffer, BufferMut, Device};
use crate::message::{Allocation, Message, MessageTensor, Place};
use crate::pipe::Pipe;
use crate::tensor::Tensor;

/// Between the device and main memory, both ways, if the channel serves them.
pub async fn to_and_from_main_memory(subject: Subject) {
    if subject.device.is_cpu() {
        return;
    }
    let (client, server) = subject.pair().await;
    let (out, back) = (
        serves(&subject, &client, (subject.device, Device::CPU)),
        serves(&subject, &client, (Device::CPU, subject.device)),
    );
    for (seed, len) in (1..).zip([1, 70_000, (2 << 20) + 3]) {
        let bytes = pattern(len, seed);
        if out {
            for place in [Place::Pool, Place::Into(BufferMut::zeroed(len))] {
                let tensor = subject.tensor(len, seed).to_device(Device::CPU);
                let arrived = moved(&client, &server, tensor, place).await;
                let found = arrived.as_bytes();
                let found = found.unwrap_or_else(|error| panic!("{error}"));
                assert_same(found, &bytes, "in main memory");
            }
        }
        if back {
            for place in [Place::Pool, Place::Into((subject.room)(len))] {
                let tensor = Tensor::from_bytes(Buffer::copy_from_slice(&bytes));
                let tensor = MessageTensor::from(tensor).to_device(subject.device);
                let arrived = moved(&client, &server, tensor, place).await;
                assert_eq!(arrived.device(), subject.device);
                let found = subject.downloaded(arrived.buffer()).await;
                assert_same(&found, &bytes, "on the device");
            }
        }
    }
}

/// Whether the channel takes tensors from this side's device to the peer's.
fn serves(subject: &Subject, pipe: &Pipe, pair: (Device, Device)) -> bool {
    let name = (subject.make)().name();
    let mut channels = pipe.route().channels.iter();
    channels.any(|channel| channel.name == name && channel.pairs.contains(&pair))
}

async fn moved(from: &Pipe, to: &Pipe, tensor: MessageTensor, place: Place) -> Tensor {
    let read = async {
        let incoming = to.read_descriptor().await?;
        let allocation = Allocation {
            tensors: vec![place],
            ..Allocation::default()
        };
        incoming.read_into(allocation).await
    };
    let (written, read) = within("a message", async {
        tokio::join!(from.write(Message::new("m").tensor(tensor)), read)
    })
    .await;
    written.unwrap_or_else(|error| panic!("write: {error}"));
    let mut message = read.unwrap_or_else(|error| panic!("read: {error}"));
    message.tensors.remove(0).tensor
}

/// While the bytes of a tensor are not ready, other messages pass it, both ways, although both ends run on one thread.
pub async fn a_queue_that_stands_still_holds_up_no_pipe(subject: Subject) {
    let Some(hold) = &subject.hold else {
        return;
    };
    let (client, server) = subject.pair().await;
    let held = Held::new(hold());
    let parts = [(300_000, 1), (5000, 2)];
    let mut message = subject.message(&parts);
    if serves(&subject, &client, (subject.device, Device::CPU)) {
        message = message.tensor(subject.tensor(70_000, 3).to_device(Device::CPU));
    }
    let slow = client.write(message);
    let incoming = within("a descriptor", server.read_descriptor()).await;
    let slow_read = tokio::spawn(incoming.unwrap_or_else(|error| panic!("{error}")).read());
    for _ in 0..20 {
        for (from, to) in [(&client, &server), (&server, &client)] {
            let (written, read) = within("a message that passes", async {
                tokio::join!(from.write(Message::new("quick")), to.read())
            })
            .await;
            written.unwrap_or_else(|error| panic!("write: {error}"));
            read.unwrap_or_else(|error| panic!("read: {error}"));
        }
    }
    held.release().await;
    let (written, read) = within("the end of it", async { tokio::join!(slow, slow_read) }).await;
    written.unwrap_or_else(|error| panic!("write: {error}"));
    let read = read.unwrap_or_else(|error| panic!("{error}"));
    let mut message = read.unwrap_or_else(|error| panic!("read: {error}"));
    for main in message.tensors.drain(parts.len()..) {
        let found = main.tensor.as_bytes();
        let found = found.unwrap_or_else(|error| panic!("{error}"));
        assert_same(found, &pattern(70_000, 3), "in main memory");
    }
    subject.check(&message, &parts).await;
}

/// Longer than a lane takes that does not wait.
const LONG: Duration = Duration::from_millis(50);

/// A lane fills the reader's memory only behind work that is queued on it.
pub async fn memory_in_use_is_filled_behind_that(subject: Subject) {
    const LEN: usize = 300_000;
    let Some(hold) = &subject.hold else {
        return;
    };
    let (client, server) = subject.pair().await;
    let tensor = subject.tensor(LEN, 1);
    // By now it has arrived.
    drop(subject.downloaded(tensor.tensor.buffer()).await);
    let held = Held::new(hold());
    let used = (subject.upload)(&pattern(LEN, 2));
    let memory = used.memory().clone();
    drop(used);
    let room = BufferMut::from_memory(memory, LEN);
    let room = room.unwrap_or_else(|_| panic!("nobody else has it"));
    // The pipe is kept: a context that ends unregisters its memory, for which a driver may wait for its devices.
    let moving = tokio::spawn(async move {
        let place = Place::Into(room);
        let arrived = moved(&client, &server, tensor, place).await;
        (arrived, client, server)
    });
    tokio::time::sleep(LONG).await;
    held.release().await;
    let moving = within("a message", moving).await;
    let moving = moving.unwrap_or_else(|error| panic!("{error}"));
    let (arrived, ..) = &moving;
    let found = subject.downloaded(arrived.buffer()).await;
    assert_same(&found, &pattern(LEN, 1), "what came last");
}

/// Keeps a device from going on. A thread releases it at last: otherwise a lane that blocks on the device would block for ever, and no
/// timer would run.
pub(super) struct Held {
    release: mpsc::Sender<()>,
    waited: std::thread::JoinHandle<bool>,
}

impl Held {
    pub(super) fn new(hold: Box<dyn std::any::Any + Send>) -> Self {
        let (release, released) = mpsc::channel();
        let waited = std::thread::spawn(move || {
            let is_released = released.recv_timeout(BOUND / 4).is_ok();
            drop(hold);
            is_released
        });
        Self { release, waited }
    }

    pub(super) async fn release(self) {
        let _ = self.release.send(());
        let in_time = blocking("the device's release", move || self.waited.join()).await;
        assert!(
            in_time.is_ok_and(|in_time| in_time),
            "a lane waits for its device"
        );
    }
}
