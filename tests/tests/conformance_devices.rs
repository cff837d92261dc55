//! The test device through the device suite, and a channel that stages it, written against the public API alone, through the
//! channel suite.
#![allow(missing_docs, reason = "a test")]

#[path = "../../examples/src/bin/custom_channel/own_connection.rs"]
mod own_connection;
#[path = "../../examples/src/bin/custom_channel/staged.rs"]
mod staged;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use tensorpipe::channels::{
    BasicChannel, Channel, CmaChannel, LaneIo, Link, MptChannel, OpId, XthChannel,
};
use tensorpipe::conformance::channel::Subject;
use tensorpipe::conformance::device::{self, Fixture, TestFixture};
use tensorpipe::conformance::{TestDevices, TestQueue, assert_same, pattern};
use tensorpipe::device::{Allocator, Copying, DevicePool, Fence, Memory};
use tensorpipe::{
    Allocation, Buffer, BufferMut, Context, DType, Device, DeviceError, Error, Message,
    MessageTensor, Misuse, Pipe, Place, Tensor,
};
use tensorpipe_tests::{Double, Says};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;

use own_connection::TestWireChannel;
use staged::StagedChannel;

tensorpipe::device_conformance!(test_device, TestFixture::default);

/// What holds the queues up, until it is dropped.
type Holds = Arc<Mutex<Vec<Box<dyn Any + Send>>>>;

/// A test device whose reads do not end while there are holds.
struct Stuck(TestFixture, Holds);

impl Fixture for Stuck {
    fn allocator(&self) -> Arc<dyn Allocator> {
        self.0.allocator()
    }

    fn write(&self, bytes: &[u8], to: BufferMut) -> Buffer {
        self.0.write(bytes, to)
    }

    fn read(&self, buffer: &Buffer) -> Box<dyn FnOnce() -> Vec<u8> + Send> {
        let hold = self.0.hold_reads(buffer.device());
        self.1.lock().unwrap().push(hold);
        self.0.read(buffer)
    }

    fn hold_writes(&self, device: Device) -> Box<dyn Any + Send> {
        self.0.hold_writes(device)
    }

    fn hold_reads(&self, device: Device) -> Box<dyn Any + Send> {
        self.0.hold_reads(device)
    }
}

/// A device that never ends its reads fails the suite, and its test ends, although the read goes on.
#[test]
fn a_device_that_hangs_fails() {
    let (end, ended) = std::sync::mpsc::channel();
    let holds = Holds::default();
    let held = holds.clone();
    std::thread::spawn(move || {
        let runs = catch_unwind(AssertUnwindSafe(|| {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            // The clock goes on by itself while everybody waits.
            let runtime = runtime.enable_all().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let subject = device::Subject::new(Stuck(TestFixture::default(), held));
                device::memory_is_where_it_was_asked_for(subject).await;
            });
        }));
        end.send(runs.map_err(|panic| panic.downcast::<String>().unwrap()))
    });
    let ended = ended.recv_timeout(Duration::from_secs(60));
    let failed = ended.expect("it hangs").unwrap_err();
    assert_eq!(*failed, "a read: nothing for 30s");
    holds.lock().unwrap().clear();
}

// What moves the main memory in between: in the pipe's frames, on connections of its own, by a key, out of the writer's memory.
tensorpipe::channel_conformance!(staged_over_basic, subject = subject(&Bench::new(), basic));
tensorpipe::channel_conformance!(
    staged_over_mpt,
    subject = subject(&Bench::new(), || Arc::new(MptChannel::new()))
);
tensorpipe::channel_conformance!(
    staged_over_xth,
    subject = subject(&Bench::new(), || Arc::new(XthChannel::new()))
);
tensorpipe::channel_conformance!(
    staged_over_cma,
    subject = subject(
        &Bench::new(),
        || Arc::new(CmaChannel::also_within_process())
    )
);

fn basic() -> Arc<dyn Channel> {
    Arc::new(BasicChannel::new())
}

/// The second of two, so that who knows the first one only is found out.
const TEST: Device = TestDevices::device(1);

/// Devices, and an application that queues its work on them and waits for nothing but what it reads.
#[derive(Clone)]
struct Bench {
    devices: TestDevices,
    queues: Arc<TestFixture>,
    pool: DevicePool,
}

impl Bench {
    fn new() -> Self {
        let devices = TestDevices::new(2);
        Self {
            queues: Arc::new(TestFixture::new(&devices)),
            pool: DevicePool::new(TEST, Arc::new(devices.clone())),
            devices,
        }
    }

    fn room(&self, len: usize) -> BufferMut {
        self.pool.take(len).unwrap()
    }

    fn upload(&self, bytes: &[u8]) -> Buffer {
        self.queues.write(bytes, self.room(bytes.len()))
    }

    fn download(&self, buffer: &Buffer) -> Vec<u8> {
        match buffer.as_bytes() {
            Some(bytes) => bytes.to_vec(),
            None if buffer.is_empty() => Vec::new(),
            None => self.queues.read(buffer)(),
        }
    }

    fn tensor(&self, len: usize, seed: u64) -> MessageTensor {
        let buffer = self.upload(&pattern(len, seed));
        Tensor::from_buffer(buffer, DType::U8, [len as u64])
            .unwrap()
            .into()
    }

    fn staged(&self, inner: Arc<dyn Channel>) -> Arc<dyn Channel> {
        let devices = self.devices.clone();
        Arc::new(StagedChannel { devices, inner })
    }

    /// A pipe over `staged`, and `basic` for the rest.
    async fn pair(&self) -> (Pipe, Pipe) {
        let context = Context::builder()
            .channels([self.staged(basic()), basic()])
            .allocator(Arc::new(self.devices.clone()))
            .build()
            .unwrap();
        tensorpipe_tests::pair(&context, &context, "tcp://127.0.0.1:0").await
    }
}

fn subject(bench: &Bench, inner: fn() -> Arc<dyn Channel>) -> Subject {
    let [a, b, c, d, e] = [(); 5].map(|()| bench.clone());
    let subject = Subject::on(
        TEST,
        move || a.staged(inner()),
        move |bytes| b.upload(bytes),
        move |len| c.room(len),
        move |buffer| {
            let bytes = d.download(buffer);
            assert_eq!(d.devices.faults(), [""; 0]);
            bytes
        },
    );
    let subject = subject.with_allocator(Arc::new(bench.devices.clone()));
    subject.with_hold(move || e.queues.hold_writes(TEST))
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    let bounded = tokio::time::timeout(Duration::from_secs(30), work);
    bounded.await.expect("nothing for 30 s")
}

/// Between each pair of devices and main memory, as the writer or the reader says.
#[tokio::test]
async fn every_pair_has_a_way() {
    static ALL: LazyLock<[Device; 3]> =
        LazyLock::new(|| [TestDevices::device(0), TEST, Device::CPU]);
    let bench = Bench::new();
    let (client, server) = bench.pair().await;
    let other = DevicePool::new(ALL[0], Arc::new(bench.devices.clone()));
    for (seed, (from, to)) in
        (0u64..).zip(ALL.iter().flat_map(|a| ALL.iter().map(move |b| (*a, *b))))
    {
        let bytes = pattern(300_000, seed);
        let source = match from {
            TEST => bench.upload(&bytes),
            Device::CPU => Buffer::copy_from_slice(&bytes),
            _ => bench.queues.write(&bytes, other.take(bytes.len()).unwrap()),
        };
        let tensor = Tensor::from_buffer(source, DType::U8, [bytes.len() as u64]).unwrap();
        let tensor = MessageTensor::from(tensor).to_device(to);
        let (written, read) = within(async {
            tokio::join!(
                client.write(Message::new("m").tensor(tensor)),
                server.read()
            )
        })
        .await;
        written.unwrap();
        let tensor = read.unwrap().tensors.remove(0).tensor;
        assert_eq!(tensor.device(), to);
        assert_same(&bench.download(tensor.buffer()), &bytes, "a tensor");
    }
    assert_eq!(bench.devices.faults(), [""; 0]);
}

/// A writer whose queue stands still is not waited for, and holds nobody up; a reader has a tensor before its bytes.
#[tokio::test]
async fn a_queue_that_stands_still_holds_up_its_own_tensor() {
    let bench = Bench::new();
    let (client, server) = bench.pair().await;
    let held = bench.queues.hold_writes(TEST);
    let slow = bench.tensor(500_000, 1).to_device(TEST);
    let slow = client.write(Message::new("slow").tensor(slow));
    let incoming = within(server.read_descriptor()).await.unwrap();
    let slow_read = incoming.read();
    let quick = Tensor::from_vec(pattern(500_000, 2), [500_000]).unwrap();
    let quick = MessageTensor::from(quick).to_device(TEST);
    let (written, read) = within(async {
        tokio::join!(
            client.write(Message::new("quick").tensor(quick)),
            server.read()
        )
    })
    .await;
    written.unwrap();
    let quick = read.unwrap();
    let bytes = bench.download(quick.tensors[0].tensor.buffer());
    assert_same(&bytes, &pattern(500_000, 2), "what passed it");
    drop(held);
    let (written, read) = within(async { tokio::join!(slow, slow_read) }).await;
    written.unwrap();
    let bytes = bench.download(read.unwrap().tensors[0].tensor.buffer());
    assert_same(&bytes, &pattern(500_000, 1), "what stood still");
}

/// The context's memory, also of devices that it does not have.
#[tokio::test]
async fn a_context_has_memory_of_its_devices() {
    let bench = Bench::new();
    let allocator = Arc::new(bench.devices.clone());
    let context = Context::builder().allocator(allocator).build().unwrap();
    for device in [TEST, TestDevices::device(0), Device::CPU] {
        let pool = context.allocator(device).unwrap();
        let room = pool.take(70_000).unwrap();
        assert_eq!((room.device(), room.len()), (device, 70_000));
        drop(room);
        drop(context.allocator(device).unwrap().take(70_000).unwrap());
        let stats = context.allocator(device).unwrap().stats();
        assert_eq!(
            (stats.fresh, stats.recycled),
            (1, 1),
            "one pool for {device}"
        );
        let tensor = pool.tensor(DType::F32, [10, 10]).unwrap();
        assert_eq!((tensor.device(), tensor.byte_len()), (device, 400));
    }
    let missing = TestDevices::device(7);
    let error = context.allocator(missing).unwrap_err();
    assert!(matches!(error, Misuse::NoAllocator { device, .. } if device == missing));
    assert!(
        error.to_string().contains("it has cpu:0 test:0 test:1"),
        "{error}"
    );
}

/// A reader that names a device for which its context has no memory, or too little, loses the message and not the pipe.
#[tokio::test]
async fn a_device_without_room_is_an_error_and_the_pipe_goes_on() {
    let bench = Bench::new();
    let (client, server) = bench.pair().await;
    // What is kept warm makes room for it.
    drop(bench.room(48 << 20));
    let hog = bench.room(512 << 20);
    let bytes = pattern(200_000, 3);
    let tensor = Tensor::from_vec(bytes.clone(), [200_000]).unwrap();
    let message = || {
        let tensor = MessageTensor::from(tensor.clone()).to_device(TEST);
        Message::new("m").tensor(tensor)
    };
    let write = client.write(message());
    let failed = within(server.read()).await;
    assert!(
        matches!(failed, Err(Error::OutOfMemory { bytes: 200_000, .. })),
        "{failed:?}"
    );
    // Over `basic` it may have left before the reader knew.
    let _ = within(write).await;
    drop(hog);
    bench.pool.trim(0);
    let (written, read) =
        within(async { tokio::join!(client.write(message()), server.read()) }).await;
    written.unwrap();
    let found = read.unwrap();
    assert_same(
        &bench.download(found.tensors[0].tensor.buffer()),
        &bytes,
        "the next one",
    );
}

/// Device memory is registered once for its allocation, and main memory as long as its pool keeps it.
#[tokio::test]
async fn registrations_last_as_long_as_the_allocation() {
    let bench = Bench::new();
    let pool = Context::new().pool().clone();
    for _ in 0..2 {
        let main = pool.take(1 << 20).freeze();
        let first = bench.devices.register(&main.slice(10..20)).unwrap();
        let second = bench.devices.register(&main).unwrap();
        assert!(std::ptr::eq(&*first, &*second), "one registration");
        assert_eq!((first.offset(), second.offset()), (10, 0));
        let device = bench.upload(&[1; 5000]);
        drop(bench.devices.register(&device).unwrap());
        bench.download(&device);
    }
    bench.pool.trim(0);
    let done = async {
        while bench.devices.allocated() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(done).await;
    assert_eq!(bench.devices.faults(), [""; 0]);
}

/// Read into memory of the reader's that a queue still reads: what is queued first is done first.
#[tokio::test]
async fn memory_that_is_still_read_is_filled_behind_that() {
    let bench = Bench::new();
    let (client, server) = bench.pair().await;
    let first = bench.tensor(100_000, 4).to_device(TEST);
    drop(client.send(Message::new("m").tensor(first)));
    let room = bench.room(100_000);
    let read = |room: BufferMut| async {
        let incoming = server.read_descriptor().await.unwrap();
        let allocation = Allocation {
            tensors: vec![Place::Into(room)],
            ..Allocation::default()
        };
        let mut message = incoming.read_into(allocation).await.unwrap();
        message.tensors.remove(0).tensor.into_buffer()
    };
    let buffer = within(read(room)).await;
    let held = bench.queues.hold_reads(TEST);
    let copied = bench.queues.read(&buffer);
    let memory = buffer.memory().clone();
    drop(buffer);
    let again = BufferMut::from_memory(memory, 100_000).unwrap_or_else(|_| panic!("shared"));
    let second = bench.tensor(100_000, 5).to_device(TEST);
    drop(client.send(Message::new("m").tensor(second)));
    let buffer = within(read(again)).await;
    drop(held);
    assert_same(&copied(), &pattern(100_000, 4), "what was read first");
    assert_same(
        &bench.download(&buffer),
        &pattern(100_000, 5),
        "what came then",
    );
}

/// Work of a device that failed.
struct Failed;

impl Fence for Failed {
    fn reached(&self) -> Option<Result<(), DeviceError>> {
        Some(Err(DeviceError::new(TEST, "copy", "it is lost")))
    }
    fn when_reached(&self, act: Box<dyn FnOnce() + Send>) {
        act();
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Bytes that never came are never ready, until their memory is used anew.
#[test]
fn memory_remembers_that_its_bytes_never_came() {
    let bench = Bench::new();
    let failed = bench.room(5000).freeze_at(Arc::new(Failed)).unwrap();
    for _ in 0..2 {
        let fence = failed.ready().expect("its bytes never came");
        assert!(matches!(fence.reached(), Some(Err(_))));
    }
    drop(failed);
    let again = bench.room(5000).freeze();
    assert_eq!(bench.pool.stats().recycled, 1);
    assert!(again.ready().is_none(), "that was somebody else's");
}

/// Whichever of them is done first.
#[test]
fn memory_that_several_queues_read_is_freed_behind_all_of_them() {
    let bench = Bench::new();
    for first in [0, 1] {
        let queues = [(); 2].map(|()| bench.devices.queue());
        let buffer = bench.upload(&pattern(5000, 1));
        bench.download(&buffer);
        let mut held = queues.each_ref().map(|queue| Some(queue.hold()));
        let read = |queue: &TestQueue| queue.read(&buffer, BufferMut::zeroed(5000)).ok();
        let mut copied = queues.each_ref().map(read);
        drop(buffer);
        bench.pool.trim(0);
        for at in [first, 1 - first] {
            held[at] = None;
            let bytes = copied[at].take().unwrap().wait();
            assert_same(&bytes, &pattern(5000, 1), "what was read");
        }
    }
    assert_eq!(bench.devices.faults(), [""; 0]);
}

#[tokio::test]
async fn main_memory_is_kept_until_the_queue_that_reads_it_is_done() {
    let queue = TestDevices::new(1).queue();
    let bytes: Arc<[u8]> = Arc::from([7; 100]);
    let held = queue.hold();
    let source = Buffer::from_owner(bytes.clone());
    source.use_until(&queue.fence());
    drop(source);
    assert_eq!(Arc::strong_count(&bytes), 2, "it is still read");
    drop(held);
    let let_go = async {
        while Arc::strong_count(&bytes) > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(let_go).await;
}

/// Memory of somebody's that is on another device than asked for, or shorter.
#[test]
fn what_an_allocator_gives_is_looked_at() {
    struct Gives(TestDevices, u32, usize);
    impl Allocator for Gives {
        fn devices(&self) -> Vec<Device> {
            self.0.devices()
        }
        fn allocate(&self, _: Device, len: usize) -> Result<Box<dyn Memory>, DeviceError> {
            self.0.allocate(TestDevices::device(self.1), len / self.2)
        }
    }
    let taken = |device, share| {
        let gives = Gives(TestDevices::new(2), device, share);
        DevicePool::new(TEST, Arc::new(gives)).take(8192)
    };
    assert!(taken(1, 1).is_ok());
    for (device, share) in [(0, 1), (1, 2)] {
        let error = taken(device, share).unwrap_err().to_string();
        assert!(error.contains("its allocator gave"), "{error}");
    }
}

/// Whichever came back last.
#[test]
fn of_what_came_back_a_pool_gives_out_what_is_idle() {
    let bench = Bench::new();
    let [idle, busy] = [1, 2].map(|seed| bench.upload(&pattern(5000, seed)));
    assert_same(&bench.download(&idle), &pattern(5000, 1), "the first");
    assert_same(&bench.download(&busy), &pattern(5000, 2), "the second");
    let held = bench.queues.hold_reads(TEST);
    let read = bench.queues.read(&busy);
    drop(idle);
    drop(busy);
    drop(bench.room(5000));
    assert_eq!(bench.pool.stats().fresh, 2, "one of them was idle");
    drop(held);
    assert_same(&read(), &pattern(5000, 2), "what was busy");
}

/// Neither knows the other's memory.
#[tokio::test]
async fn a_tensor_is_not_copied_between_devices_of_two_allocators() {
    struct Second(TestDevices);
    impl Allocator for Second {
        fn devices(&self) -> Vec<Device> {
            vec![TEST]
        }
        fn allocate(&self, device: Device, len: usize) -> Result<Box<dyn Memory>, DeviceError> {
            self.0.allocate(device, len)
        }
        fn copy(&self, from: Vec<Buffer>, to: BufferMut) -> Option<Copying> {
            self.0.copy(from, to)
        }
    }
    let first = TestDevices::new(2);
    let builder = Context::builder().allocator(Arc::new(first));
    let second = Arc::new(Second(TestDevices::new(2)));
    let context = builder.allocator(second).build().unwrap();
    let pool = context.allocator(TestDevices::device(0)).unwrap();
    let tensor = Tensor::from_bytes(pool.take(100).unwrap().freeze());
    let error = within(tensor.to(TEST, &context)).await.unwrap_err();
    assert!(
        error.to_string().contains("by way of main memory"),
        "{error}"
    );
}

#[test]
fn memory_that_is_still_written_is_in_use() {
    let bench = Bench::new();
    let held = bench.queues.hold_writes(TEST);
    drop(bench.upload(&pattern(5000, 1)));
    let other = bench.room(5000);
    assert_eq!(bench.pool.stats().fresh, 2, "it is still written");
    bench.pool.trim(0);
    drop(held);
    let other = bench.queues.write(&pattern(5000, 2), other);
    assert_same(&bench.download(&other), &pattern(5000, 2), "other memory");
    assert_eq!(bench.devices.faults(), [""; 0]);
}

/// Although it was handed to another queue, which has nothing to do.
#[test]
fn memory_is_in_use_until_the_first_queue_that_fills_it_is_done() {
    let bench = Bench::new();
    let queues = [(); 2].map(|()| bench.devices.queue());
    let held = queues[0].hold();
    let filled = bench.room(5000).freeze_at(queues[0].fence()).unwrap();
    let memory = filled.memory().clone();
    drop(filled);
    let again = BufferMut::from_memory(memory, 5000).unwrap_or_else(|_| panic!("shared"));
    drop(again.freeze_at(queues[1].fence()).unwrap());
    drop(bench.room(5000));
    assert_eq!(bench.pool.stats().fresh, 2, "the first is at work on it");
    drop(held);
}

#[tokio::test]
async fn a_copy_between_unequal_lengths_is_refused_and_its_queue_goes_on() {
    let bench = Bench::new();
    let queue = bench.devices.queue();
    for len in [0, 4, 6] {
        let written = queue.write(Buffer::from_vec(vec![1u8; len]), bench.room(5));
        let refused = written
            .expect_err("there is no room, or too much")
            .to_string();
        assert!(
            refused.contains(&format!("{len} bytes into 5")),
            "{refused}"
        );
        let source = bench.upload(&pattern(5, 1));
        let refused = queue.read(&source, BufferMut::zeroed(len)).unwrap_err();
        assert!(
            refused.to_string().contains(&format!("5 bytes into {len}")),
            "{refused}"
        );
    }
    let buffer = queue.write(Buffer::from_vec(vec![1u8; 5]), bench.room(5));
    let copied = queue.read(&buffer.unwrap(), BufferMut::zeroed(5)).unwrap();
    assert_eq!(copied.wait(), [1; 5]);
}

/// A lane of `testwire` that says of each part that it has no bytes.
struct Empty(mpsc::UnboundedSender<OpId>);

impl Empty {
    fn new(mut link: Link) -> Self {
        let mut connection = link.connections.pop().unwrap();
        let (parts, mut queued) = mpsc::unbounded_channel::<OpId>();
        tokio::spawn(async move {
            while let Some(op) = queued.recv().await {
                connection.write_all(&op.key()).await.unwrap();
                connection.write_all(&0u64.to_le_bytes()).await.unwrap();
                connection.flush().await.unwrap();
                link.handle.sent(op);
            }
        });
        Self(parts)
    }
}

impl Says for Empty {
    fn send(&mut self, op: OpId, _: Buffer, _: &mut LaneIo<'_>) {
        self.0.send(op).unwrap();
    }
}

#[tokio::test]
async fn a_part_of_another_length_ends_the_example_channels_pipe() {
    for to in [Device::CPU, TEST] {
        let bench = Bench::new();
        let honest = || {
            let devices = bench.devices.clone();
            Arc::new(TestWireChannel { devices })
        };
        let context = |channel: Arc<dyn Channel>| {
            let context = Context::builder().channels([channel, basic()]);
            let context = context.allocator(Arc::new(bench.devices.clone()));
            context.build().unwrap()
        };
        let hostile = Double::of(honest()).with_lanes(Empty::new).channel();
        let (near, far) = (context(hostile), context(honest()));
        let (client, server) = tensorpipe_tests::pair(&near, &far, "tcp://127.0.0.1:0").await;
        let tensor = bench.tensor(2 << 20, 1).to_device(to);
        let _write = client.write(Message::new("m").tensor(tensor));
        let error = within(server.read()).await.unwrap_err().to_string();
        assert!(
            error.contains("another length than it announced"),
            "{error}"
        );
    }
}
