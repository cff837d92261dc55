//! Two custom channels for a custom device, written against the public API alone. `staged` copies to main memory and lets another
//! channel move the bytes; `testwire` opens a connection of its own. The device comes from the conformance suite: the CPU cannot
//! read its memory, and its queues copy asynchronously.
//!
//! Run this to see tensors go from device to device, to and from main memory, and both channels pass the public
//! conformance suite: `cargo run -p tensorpipe-examples --bin custom_channel`.

mod own_connection;
mod staged;

use std::sync::{Arc, LazyLock};

use tensorpipe::channels::{BasicChannel, Channel};
use tensorpipe::conformance::TestDevices;
use tensorpipe::conformance::channel::Subject;
use tensorpipe::conformance::device::{Fixture, TestFixture};
use tensorpipe::{
    Buffer, BufferMut, Context, DType, Device, Message, MessageTensor, Pipe, Tensor,
    device::DevicePool,
};

use own_connection::TestWireChannel;
use staged::StagedChannel;

/// The test device, as descriptors and routes name it.
const TEST: Device = TestDevices::device(0);

static DEVICES: LazyLock<TestDevices> = LazyLock::new(|| TestDevices::new(1));

/// Device queues for the application's own copies.
static QUEUES: LazyLock<TestFixture> = LazyLock::new(|| TestFixture::new(&DEVICES));

/// The application's memory of the device.
static POOL: LazyLock<DevicePool> =
    LazyLock::new(|| DevicePool::new(TEST, Arc::new(DEVICES.clone())));

fn room(len: usize) -> BufferMut {
    POOL.take(len).expect("the device has room for examples")
}

/// Queues a copy to the device.
fn upload(bytes: &[u8]) -> Buffer {
    QUEUES.write(bytes, room(bytes.len()))
}

/// Copies a buffer's bytes to main memory, once they are ready.
fn download(buffer: &Buffer) -> Vec<u8> {
    match buffer.as_bytes() {
        Some(bytes) => bytes.to_vec(),
        None if buffer.is_empty() => Vec::new(),
        None => QUEUES.read(buffer)(),
    }
}

/// Makes a channel.
type Make = fn() -> Arc<dyn Channel>;

const CHANNELS: [Make; 2] = [
    || {
        Arc::new(StagedChannel {
            devices: DEVICES.clone(),
            inner: Arc::new(BasicChannel::new()),
        })
    },
    || {
        let devices = DEVICES.clone();
        Arc::new(TestWireChannel { devices })
    },
];

fn subject(make: Make) -> Subject {
    let subject = Subject::on(TEST, make, upload, room, download);
    subject.with_allocator(Arc::new(DEVICES.clone()))
}

async fn pair(channel: Make) -> anyhow::Result<(Pipe, Pipe)> {
    let context = |name| {
        let basic: Arc<dyn Channel> = Arc::new(BasicChannel::new());
        Context::builder()
            .name(name)
            .channels([channel(), basic])
            .allocator(Arc::new(DEVICES.clone()))
            .build()
    };
    pair_of(context("client")?, context("server")?).await
}

async fn pair_of(client: Context, server: Context) -> anyhow::Result<(Pipe, Pipe)> {
    let listener = server.listen(["tcp://127.0.0.1:0"]).await?;
    let url = listener.url().to_string();
    let (client, server) = tokio::try_join!(client.connect(&url), listener.accept())?;
    Ok((client, server))
}

/// Sends one message with a tensor for each pair of source and target.
async fn transfer(client: &Pipe, server: &Pipe) -> anyhow::Result<()> {
    let bytes: Vec<u8> = (0..2_000_000).map(|i| (i * 31) as u8).collect();
    let shape = [bytes.len() as u64];
    let here = Tensor::from_vec(bytes.clone(), shape)?;
    let there = Tensor::from_buffer(upload(&bytes), DType::U8, shape)?;
    let ways = [
        (&there, TEST),
        (&there, Device::CPU),
        (&here, TEST),
        (&here, Device::CPU),
    ];
    let message = ways
        .iter()
        .fold(Message::new("all ways"), |message, (tensor, target)| {
            message.tensor(MessageTensor::from((*tensor).clone()).to_device(*target))
        });
    let (written, read) = tokio::join!(client.write(message), server.read());
    written?;
    for (received, (sent, target)) in read?.tensors.iter().zip(ways) {
        let found = &received.tensor;
        anyhow::ensure!(found.device() == target, "{found:?} is not on {target}");
        anyhow::ensure!(download(found.buffer()) == bytes, "bytes differ");
        println!("  {sent:?} arrived as {found:?}");
    }
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    for make in CHANNELS {
        let (client, server) = pair(make).await?;
        println!("{}", client.route());
        transfer(&client, &server).await?;
        client.close().await?;
        let passed = tensorpipe::conformance::channel::all(|| subject(make)).await;
        let name = make().name();
        println!(
            "channel suite over `{name}`: {} scenarios passed\n",
            passed.len()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    tensorpipe::channel_conformance!(staged_channel, subject = subject(CHANNELS[0]));
    tensorpipe::channel_conformance!(own_connection_channel, subject = subject(CHANNELS[1]));

    #[tokio::test]
    async fn both_together_share_the_sizes() {
        let channels = || CHANNELS.map(|make| make()).into_iter().rev();
        let context = || {
            let builder = Context::builder().allocator(Arc::new(DEVICES.clone()));
            builder.channels(channels()).build().unwrap()
        };
        let (client, server) = pair_of(context(), context()).await.unwrap();
        let route = client.route().to_string();
        let line =
            "test:0 -> test:0, cpu:0 -> test:0, test:0 -> cpu:0: staged < 1 MiB, testwire above";
        assert!(route.contains(line), "{route}");
        for (len, carried) in [((1 << 20) - 1, [0, 1]), (1 << 20, [1, 1])] {
            let tensor = Tensor::from_buffer(upload(&vec![7; len]), DType::U8, [len as u64]);
            let tensor = MessageTensor::from(tensor.unwrap()).to_device(TEST);
            let message = Message::new("m").tensor(tensor);
            let (written, read) = tokio::join!(client.write(message), server.read());
            written.unwrap();
            assert_eq!(read.unwrap().tensors[0].tensor.byte_len(), len);
            let channels = client.route().channels.iter();
            let found: Vec<u64> = channels.map(|channel| channel.carried.parts()).collect();
            assert_eq!(found, carried, "{len} bytes");
        }
    }

    #[tokio::test]
    async fn tensors_go_every_way() {
        for make in CHANNELS {
            let (client, server) = pair(make).await.unwrap();
            transfer(&client, &server).await.unwrap();
        }
    }
}
