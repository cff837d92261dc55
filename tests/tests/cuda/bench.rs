//! CUDA devices with their channels, and an application that queues its work on them.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tensorpipe::channels::{
    BasicChannel, Channel, ChannelFault, CmaChannel, CudaBasicChannel, CudaIpcChannel,
    CudaXthChannel, Lane, LaneIo, LeaseChannel, MptChannel, OpId, XthChannel,
};
use tensorpipe::conformance::channel::Subject;
use tensorpipe::conformance::device::Fixture;
use tensorpipe::device::cuda::CudaDevices;
use tensorpipe::{
    Buffer, BufferMut, Context, DType, Device, Message, Pipe, Tensor, device::DevicePool,
};
use tensorpipe_test_cuda::Driver;
use tensorpipe_tests::{Double, Says};

use crate::driver::{nothing_went_wrong, rests};
use crate::fixture::CudaFixture;

/// The last one, of two where the driver is the one for tests: so that who knows the first one only is found out.
pub(crate) fn device() -> Device {
    static LAST: OnceLock<Device> = OnceLock::new();
    *LAST.get_or_init(|| {
        Driver::here();
        let devices = CudaDevices::open().unwrap().devices();
        *devices.last().unwrap()
    })
}

/// Devices, and an application that queues its work on them.
#[derive(Clone)]
pub(crate) struct Bench {
    pub(crate) cuda: CudaDevices,
    pub(crate) fixture: Arc<CudaFixture>,
    pools: Vec<DevicePool>,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Driver::here();
        let cuda = CudaDevices::open().unwrap();
        let pool = |device| DevicePool::new(device, Arc::new(cuda.clone()));
        Self {
            fixture: Arc::new(CudaFixture::on(&cuda)),
            pools: cuda.devices().into_iter().map(pool).collect(),
            cuda,
        }
    }

    pub(crate) fn upload(&self, device: Device, bytes: &[u8]) -> Buffer {
        if device.is_cpu() {
            return Buffer::copy_from_slice(bytes);
        }
        let room = self.room(device, bytes.len());
        self.fixture.write(bytes, room)
    }

    pub(crate) fn room(&self, device: Device, len: usize) -> BufferMut {
        let pool = self.pools.iter().find(|pool| pool.device() == device);
        pool.unwrap().take(len).unwrap()
    }

    pub(crate) fn download(&self, buffer: &Buffer) -> Vec<u8> {
        match buffer.as_bytes() {
            Some(bytes) => bytes.to_vec(),
            None if buffer.is_empty() => Vec::new(),
            None => self.fixture.read(buffer)(),
        }
    }

    pub(crate) fn tensor(&self, device: Device, bytes: &[u8]) -> Tensor {
        let buffer = self.upload(device, bytes);
        Tensor::from_buffer(buffer, DType::U8, [bytes.len() as u64]).unwrap()
    }
}

/// What the suite is run for.
pub(crate) fn channel(name: &str, cuda: &CudaDevices) -> Arc<dyn Channel> {
    match name {
        "cuda_xth" => return Arc::new(CudaXthChannel::new(cuda)),
        "cuda_ipc" => return Arc::new(CudaIpcChannel::also_within_process(cuda)),
        _ => {}
    }
    Arc::new(match name {
        "cuda_basic" => CudaBasicChannel::over(BasicChannel::new(), cuda),
        "cuda_basic+xth" => CudaBasicChannel::over(XthChannel::new(), cuda),
        "cuda_basic+mpt" => CudaBasicChannel::over(MptChannel::new(), cuda),
        "cuda_basic+cma" => CudaBasicChannel::over(CmaChannel::also_within_process(), cuda),
        "cuda_basic+lease" => CudaBasicChannel::over(LeaseChannel::also_within_process(), cuda),
        name => panic!("no channel {name}"),
    })
}

pub(crate) fn subject(name: &'static str) -> Subject {
    rests();
    let bench = Bench::new();
    let [a, b, c, d, e] = [(); 5].map(|()| bench.clone());
    let subject = Subject::on(
        device(),
        move || channel(name, &a.cuda),
        move |bytes| b.upload(device(), bytes),
        move |len| c.room(device(), len),
        move |buffer| {
            let bytes = d.download(buffer);
            nothing_went_wrong();
            bytes
        },
    );
    let subject = subject.with_allocator(Arc::new(bench.cuda.clone()));
    subject.with_hold(move || e.fixture.hold_writes(device()))
}

/// A pipe whose two ends have this channel, and `basic` for the rest.
pub(crate) async fn pair(bench: &Bench, name: &str) -> (Pipe, Pipe) {
    of_channel(bench, channel(name, &bench.cuda)).await
}

pub(crate) async fn of_channel(bench: &Bench, channel: Arc<dyn Channel>) -> (Pipe, Pipe) {
    let context = context(bench, channel);
    connected(&context, &context).await
}

/// A secret.
pub(crate) const TOKEN: [u8; 16] = [7; 16];

/// A context with this channel, and `basic` for the rest. Its peers prove a token, so that exchanges and further connections are bound to
/// the pipe's key; the suites for channels do without.
pub(crate) fn context(bench: &Bench, channel: Arc<dyn Channel>) -> Context {
    let channels = [channel, Arc::new(BasicChannel::new())];
    let builder = Context::builder().channels(channels);
    let builder = builder.token("tests", TOKEN);
    let builder = builder.allocator(Arc::new(bench.cuda.clone()));
    builder.build().unwrap()
}

/// The same, with lanes that have an honest one inside.
pub(crate) fn context_with<L: Says + 'static>(
    bench: &Bench,
    name: &str,
    lane: impl Fn(Box<dyn Lane>) -> L + Send + Sync + 'static,
) -> Context {
    let honest = channel(name, &bench.cuda);
    let double = Double::of(honest.clone());
    let double = double.with_lanes(move |link| lane(honest.open(link).unwrap()));
    context(bench, double.channel())
}

/// What is heard of what the peer's lane says, which may be answered instead.
type Hears = dyn Fn(&[u8], &mut dyn FnMut(&[u8])) -> Option<Vec<u8>> + Send + Sync;

struct Told {
    honest: Box<dyn Lane>,
    hears: Arc<Hears>,
}

impl Says for Told {
    fn honest(&mut self) -> Option<&mut dyn Lane> {
        Some(&mut *self.honest)
    }

    fn control(&mut self, op: OpId, body: &[u8], io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        match (self.hears)(body, &mut |words| io.control(op, words)) {
            Some(heard) => self.honest.control(op, &heard, io),
            None => Ok(()),
        }
    }
}

/// The same, with honest lanes that are told something else than their peers' say.
pub(crate) fn context_told(
    bench: &Bench,
    name: &str,
    hears: impl Fn(&[u8], &mut dyn FnMut(&[u8])) -> Option<Vec<u8>> + Send + Sync + 'static,
) -> Context {
    let hears: Arc<Hears> = Arc::new(hears);
    context_with(bench, name, move |honest| Told {
        honest,
        hears: hears.clone(),
    })
}

/// A pipe from one context to another.
pub(crate) async fn connected(from: &Context, to: &Context) -> (Pipe, Pipe) {
    let listener = to.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let url = listener.url().to_string();
    let pipes = tokio::join!(from.connect(&url), listener.accept());
    (pipes.0.unwrap(), pipes.1.unwrap())
}

/// What comes of a message.
pub(crate) async fn moved((client, server): &(Pipe, Pipe), message: Message) -> Message {
    // Where it cannot be written nobody waits for it.
    let write = async { client.write(message).await.unwrap() };
    let both = async { tokio::join!(write, server.read()) };
    let bounded = tokio::time::timeout(Duration::from_secs(30), both);
    let ((), read) = bounded.await.expect("nothing for 30 s");
    read.unwrap()
}
