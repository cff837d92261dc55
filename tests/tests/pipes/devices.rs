//! Where tensors arrive: on the device that their writer or their reader names, as far as a channel reaches it.

#[path = "../../../examples/src/bin/custom_channel/staged.rs"]
mod staged;

use std::sync::LazyLock;

use tensorpipe::conformance::TestDevices;
use tensorpipe::conformance::device::{Fixture, TestFixture};
use tensorpipe::transports::MemoryTransport;
use tensorpipe::{
    Allocation, Buffer, BufferMut, DType, Device, DeviceKind, Error, MessageTensor, Misuse, Place,
    device::DevicePool,
};
use tensorpipe_tests::Double;

use super::*;
use staged::StagedChannel;

static DEVICES: LazyLock<TestDevices> = LazyLock::new(|| TestDevices::new(3));
static QUEUES: LazyLock<TestFixture> = LazyLock::new(|| TestFixture::new(&DEVICES));

/// A device whose memory the CPU cannot read.
const fn toy(index: u32) -> Device {
    TestDevices::device(index)
}

fn room(device: Device, len: usize) -> BufferMut {
    let pool = DevicePool::new(device, Arc::new(DEVICES.clone()));
    pool.take(len).unwrap()
}

fn on(device: Device, bytes: Vec<u8>) -> Buffer {
    if device.is_cpu() {
        return Buffer::from_vec(bytes);
    }
    QUEUES.write(&bytes, room(device, bytes.len()))
}

fn bytes(buffer: &Buffer) -> Vec<u8> {
    match buffer.as_bytes() {
        Some(bytes) => bytes.to_vec(),
        None if buffer.is_empty() => Vec::new(),
        None => QUEUES.read(buffer)(),
    }
}

async fn toys() -> (Pipe, Pipe) {
    toys_with(toy(2), Limits::default()).await
}

/// Between the devices for tests and main memory, but for one of them, which nothing reaches.
async fn toys_with(unreached: Device, limits: Limits) -> (Pipe, Pipe) {
    let transports: [Arc<dyn Transport>; 2] = [
        Arc::new(MemoryTransport::new()),
        Arc::new(TcpTransport::new()),
    ];
    let staged: Arc<dyn Channel> = Arc::new(StagedChannel {
        devices: DEVICES.clone(),
        inner: Arc::new(BasicChannel::new()),
    });
    let toys = Double::of(staged.clone()).named("toys");
    let toys = toys.reaching(move |ours, theirs| {
        if [ours.device, theirs.device].contains(&unreached) {
            return Err("nothing reaches it".to_owned());
        }
        staged.reaches(ours, theirs)
    });
    let channels: [Arc<dyn Channel>; 2] = [toys.channel(), Arc::new(BasicChannel::new())];
    let builder = Context::builder().transports(transports).channels(channels);
    let builder = builder.allocator(Arc::new(DEVICES.clone()));
    let context = builder.limits(limits).build().unwrap();
    pair(&context, &context).await
}

fn of(device: Device, len: usize) -> MessageTensor {
    let buffer = on(device, pattern(len, 3));
    let tensor = Tensor::from_buffer(buffer, DType::U8, [len as u64]).unwrap();
    MessageTensor::from(tensor)
}

async fn read(
    from: &Pipe,
    to: &Pipe,
    tensor: MessageTensor,
    place: Place,
) -> Result<Tensor, Error> {
    from.send(Message::new("m").tensor(tensor)).unwrap();
    let incoming = soon("the descriptor", to.read_descriptor()).await?;
    let allocation = Allocation {
        tensors: vec![place],
        ..Allocation::default()
    };
    let mut message = soon("the message", incoming.read_into(allocation)).await?;
    Ok(message.tensors.remove(0).tensor)
}

#[tokio::test]
async fn an_empty_tensor_arrives_where_its_writer_wants_it() {
    let (client, server) = toys().await;
    for target in [toy(1), Device::CPU] {
        for source in [toy(0), Device::CPU] {
            let tensor = of(source, 0).to_device(target);
            client.send(Message::new("m").tensor(tensor)).unwrap();
            let mut message = soon("a message", server.read()).await.unwrap();
            let tensor = message.tensors.remove(0).tensor;
            assert_eq!((tensor.device(), tensor.shape()), (target, &[0][..]));
            assert_eq!(tensor.as_bytes().is_ok(), target.is_cpu());
        }
    }
    // A part that was skipped is empty there, too.
    let tensor = of(toy(0), 90_000).to_device(toy(1));
    let skipped = read(&client, &server, tensor, Place::Skip).await.unwrap();
    assert_eq!((skipped.device(), skipped.shape()), (toy(1), &[0][..]));
}

#[tokio::test]
async fn a_reader_names_the_device() {
    let (client, server) = toys().await;
    for device in [toy(0), toy(1), Device::CPU] {
        for len in [0, 90_000] {
            let tensor = read(&client, &server, of(toy(1), len), Place::On(device)).await;
            let tensor = tensor.unwrap();
            assert_eq!(tensor.device(), device);
            assert_same(&bytes(tensor.buffer()), &pattern(len, 3), "the tensor");
        }
    }
    let buffer = room(toy(1), 90_000).freeze();
    let shared = BufferMut::from_memory(buffer.memory().clone(), 90_000);
    assert!(shared.is_err(), "it is shared");
    let place = Place::Into(room(toy(1), 90_000));
    let tensor = read(&client, &server, of(toy(0), 90_000), place)
        .await
        .unwrap();
    assert_eq!(tensor.device(), toy(1));
    assert_same(&bytes(tensor.buffer()), &pattern(90_000, 3), "the tensor");
}

#[tokio::test]
async fn a_device_that_no_channel_reaches_is_a_typed_error_and_the_pipe_goes_on() {
    let (client, server) = toys().await;
    let cases = [
        // Nothing reaches it; it came in the frame; nobody has it.
        (of(toy(0), 90_000), toy(2), "channel toys"),
        (of(Device::CPU, 100), toy(0), "to_device"),
        (
            of(toy(0), 90_000),
            Device::new(DeviceKind::CUDA, 3),
            "route",
        ),
    ];
    for (tensor, device, why) in cases {
        let error = read(&client, &server, tensor, Place::On(device)).await;
        let error = error.unwrap_err();
        println!("{error}");
        let Error::Misuse(Misuse::OutOfReach { what, reason, .. }) = &error else {
            panic!("{error:?}");
        };
        assert!(what == "tensor 0" && reason.contains(why), "{error}");
    }
    let payload = Allocation {
        payloads: vec![Place::On(toy(0))],
        ..Allocation::default()
    };
    client
        .send(Message::new("m").payload(Buffer::from_vec(vec![1u8; 10])))
        .unwrap();
    let failed = server
        .read_descriptor()
        .await
        .unwrap()
        .read_into(payload)
        .await;
    let failed = failed.unwrap_err();
    assert!(failed.to_string().contains("payload 0"), "{failed}");
    assert!(matches!(failed.allocation.payloads[..], [Place::On(device)] if device == toy(0)));
    exchange(&client, &server, 1, 90_000).await;
}

#[tokio::test]
async fn memory_of_a_device_that_no_channel_reaches_is_not_read_into() {
    let (client, server) = toys().await;
    let place = Place::Into(room(toy(2), 90_000));
    let error = read(&client, &server, of(toy(0), 90_000), place).await;
    let error = error.unwrap_err();
    let Error::Misuse(Misuse::OutOfReach { device, reason, .. }) = &error else {
        panic!("{error:?}");
    };
    assert_eq!(*device, toy(2));
    assert!(reason.contains("channel toys"), "{error}");
    exchange(&client, &server, 1, 90_000).await;
}

#[tokio::test]
async fn where_main_memory_is_out_of_reach_a_tensor_goes_to_a_device() {
    let (client, server) = toys_with(Device::CPU, Limits::default()).await;
    let message = Message::new("m").tensor(of(toy(1), 90_000));
    client.send(message).unwrap();
    let mut message = soon("a message", server.read()).await.unwrap();
    let tensor = message.tensors.remove(0).tensor;
    assert_eq!(tensor.device(), toy(0), "the first that is in reach");
    assert_same(&bytes(tensor.buffer()), &pattern(90_000, 3), "the tensor");
}

/// Nothing comes ahead to a context with devices, whatever its limit says: where a tensor goes is decided before.
#[tokio::test]
async fn who_has_devices_says_where_a_tensor_goes_before_it_comes() {
    let mut limits = Limits::default();
    limits.window_ahead = 1 << 20;
    let (client, server) = toys_with(toy(2), limits).await;
    for place in [
        Place::Into(room(toy(1), 90_000)),
        Place::Pool,
        Place::On(toy(1)),
    ] {
        let tensor = of(toy(0), 90_000).to_device(toy(1));
        let tensor = read(&client, &server, tensor, place).await.unwrap();
        assert_eq!(tensor.device(), toy(1));
        assert_same(&bytes(tensor.buffer()), &pattern(90_000, 3), "the tensor");
    }
}
