//! A custom device, from its memory up, and a channel for it, written against the public API alone.
//!
//! The device is a pair of made-up cards. `card` has their memory, fences and queues: only a queue's thread touches the bytes, later.
//! `dma` is the channel: the reader's lane queues one copy for each tensor and does not block. For a tensor on a card, `Pipe::read`
//! ends when the copy is queued; the tensor keeps the fence at which it is ready.
//!
//! Both contexts are in one process. The example `custom_channel` has channels between processes: one stages through main
//! memory, one has a connection of its own.
//!
//! Run this to see who waits for what: `cargo run -p tensorpipe-examples --bin custom_device`.

mod card;
mod dma;

use std::sync::Arc;

use tensorpipe::{Buffer, Context, DType, Device, Message, MessageTensor, Pipe, Tensor};

use card::{Cards, Queue, card};
use dma::DmaChannel;

fn context(name: &str) -> anyhow::Result<Context> {
    let builder = Context::builder().name(name).prefer_channel(DmaChannel);
    Ok(builder.allocator(Arc::new(Cards)).build()?)
}

fn to(device: Device, tensor: Tensor) -> Message {
    Message::new("numbers").tensor(MessageTensor::from(tensor).to_device(device))
}

fn is_ready(tensor: &Tensor) -> &'static str {
    match tensor.buffer().ready() {
        None => "is ready",
        Some(_) => "is not ready",
    }
}

fn report(name: &str, pipe: &Pipe) {
    for channel in &pipe.route().channels {
        let (parts, bytes) = (channel.carried.parts(), channel.carried.bytes());
        println!("  {name} gave {}: {parts} tensors, {bytes} B", channel.name);
    }
    let copied = pipe.stats().bytes_copied;
    println!("  {name}'s CPU copied {copied} B");
}

/// One thread runs all tasks. If a task blocked it to wait for a queue, the queue would never go on.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let (here, there) = (context("alice")?, context("bob")?);
    let listener = there.listen(["tcp://127.0.0.1:0"]).await?;
    let (alice, bob) = tokio::try_join!(here.connect(listener.url()), listener.accept())?;
    println!("{}\n", alice.route());

    println!("alice queues an upload; her queue is busy with something else");
    let queue = Queue::new();
    let busy = queue.hold();
    let numbers: Vec<f32> = (0..1 << 20).map(|i| i as f32).collect();
    let room = here.allocator(card(0))?.take(numbers.len() * 4)?;
    let uploaded = queue.to_card(&Buffer::from_vec(numbers.clone()), room)?;
    let tensor = Tensor::from_buffer(uploaded, DType::F32, [1024, 1024])?;
    println!("  {tensor:?} {}", is_ready(&tensor));

    println!("she sends it to bob's card, who reads it");
    let (written, read) = tokio::join!(alice.write(to(card(1), tensor)), bob.read());
    written?;
    let tensor = read?.tensors.remove(0).tensor;
    println!("  {tensor:?} {}: both are done", is_ready(&tensor));

    println!(
        "bob sends it back, to main memory, which nobody may touch before the bytes are there"
    );
    let written = bob.write(to(Device::CPU, tensor));
    let mut read = Box::pin(alice.read());
    tokio::select! {
        biased;
        _ = &mut read => anyhow::bail!("read before there was anything to read"),
        written = written => written?,
    }
    println!("  written: bob is done, alice's read waits for the fence");

    println!("alice's queue goes on");
    drop(busy);
    let tensor = read.await?.tensors.remove(0).tensor;
    anyhow::ensure!(tensor.as_slice::<f32>()? == numbers, "numbers differ");
    println!("  {tensor:?} {}: read", is_ready(&tensor));

    report("alice", &alice);
    report("bob", &bob);
    Ok(alice.close().await?)
}

#[cfg(test)]
mod tests {
    use std::any::Any;

    use tensorpipe::conformance::channel::Subject;
    use tensorpipe::conformance::device::Fixture;
    use tensorpipe::{
        BufferMut,
        device::{Allocator, DevicePool},
    };

    use super::*;

    struct Queues {
        writes: Queue,
        reads: Queue,
    }

    impl Queues {
        fn new() -> Self {
            let (writes, reads) = (Queue::new(), Queue::new());
            Self { writes, reads }
        }
    }

    impl Fixture for Queues {
        fn allocator(&self) -> Arc<dyn Allocator> {
            Arc::new(Cards)
        }

        fn write(&self, bytes: &[u8], to: BufferMut) -> Buffer {
            let source = Buffer::copy_from_slice(bytes);
            self.writes.to_card(&source, to).unwrap()
        }

        fn read(&self, buffer: &Buffer) -> Box<dyn FnOnce() -> Vec<u8> + Send> {
            let landing = self.reads.to_main(buffer, BufferMut::zeroed(buffer.len()));
            let landing = landing.unwrap();
            Box::new(move || {
                card::wait(&landing.fence).unwrap();
                landing.take().unwrap().as_bytes().unwrap().to_vec()
            })
        }

        fn hold_writes(&self, _: Device) -> Box<dyn Any + Send> {
            Box::new(self.writes.hold())
        }

        fn hold_reads(&self, _: Device) -> Box<dyn Any + Send> {
            Box::new(self.reads.hold())
        }
    }

    fn subject() -> Subject {
        let uploads = Arc::new(Queues::new());
        let (downloads, held) = (uploads.clone(), uploads.clone());
        let pool = DevicePool::new(card(0), Arc::new(Cards));
        let room = move |len| pool.take(len).unwrap();
        let upload = {
            let room = room.clone();
            move |bytes: &[u8]| uploads.write(bytes, room(bytes.len()))
        };
        let download = move |buffer: &Buffer| match buffer.is_empty() {
            true => Vec::new(),
            false => downloads.read(buffer)(),
        };
        Subject::on(card(0), || Arc::new(DmaChannel), upload, room, download)
            .with_allocator(Arc::new(Cards))
            .with_hold(move || held.hold_writes(card(0)))
    }

    tensorpipe::device_conformance!(cards, Queues::new);
    tensorpipe::channel_conformance!(dma, subject = subject());
}
