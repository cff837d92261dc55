//! A client and a server with devices of their own, and a service whose methods want tensors somewhere.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::{StreamExt, stream};
use tensorpipe::conformance::pattern;
use tensorpipe::transports::{MemoryTransport, ShmTransport, TcpTransport, Transport};
use tensorpipe::{Buffer, Context, DType, Device, Tensor, device::DevicePool};
use tensorpipe_rpc::{Remote, Server, Stream, Streaming, tensor_service};

use super::kind::{Kind, bench};

/// Lengths that ride in a message's frame, that a channel carries, and none at all.
pub(crate) const LENGTHS: [usize; 3] = [0, 100, 300_000];

/// One side: its devices, and what reads and writes them.
/// Its devices are of the kind that this suite is run for.
#[derive(Clone)]
pub(crate) struct Side {
    pub(crate) context: Context,
    kind: Kind,
}

/// What of a side is not as usual.
#[derive(Clone, Copy)]
pub(crate) struct Has {
    /// So many devices that its channel reaches.
    pub(crate) devices: u32,
    /// Whether its context has memory of them.
    pub(crate) memory: bool,
}

pub(crate) const USUAL: Has = Has {
    devices: 2,
    memory: true,
};

impl Side {
    pub(crate) fn new(over: &str, has: Has) -> Self {
        let kind = Kind::new(has.devices);
        let tcp: Arc<dyn Transport> = Arc::new(TcpTransport::new());
        let transports: Vec<Arc<dyn Transport>> = match over {
            "memory" => vec![Arc::new(MemoryTransport::new()), tcp],
            "shm" => vec![Arc::new(ShmTransport::new()), tcp],
            _ => vec![tcp],
        };
        let builder = Context::builder().transports(transports);
        let context = kind.on(builder, has.memory).build().unwrap();
        Self { context, kind }
    }

    /// A tensor of its own on `device`.
    pub(crate) fn tensor(&self, device: Device, len: usize, seed: u64) -> Tensor {
        let bytes = pattern(len, seed);
        let buffer = match device.is_cpu() {
            true => Buffer::from_vec(bytes),
            false if len == 0 => Buffer::empty(device),
            false => {
                let pool = DevicePool::new(device, self.kind.allocator());
                self.kind.fixture().write(&bytes, pool.take(len).unwrap())
            }
        };
        Tensor::from_buffer(buffer, DType::U8, [len as u64]).unwrap()
    }

    /// Where a tensor is that has come, and whether it is what was sent.
    pub(crate) fn found(&self, tensor: &Tensor, len: usize, seed: u64) -> String {
        let buffer = tensor.buffer();
        let bytes = match buffer.as_bytes() {
            Some(bytes) => bytes.to_vec(),
            None if buffer.is_empty() => Vec::new(),
            None => self.kind.fixture().read(buffer)(),
        };
        let whole = if bytes == pattern(len, seed) {
            ""
        } else {
            " broken"
        };
        format!("{}{whole}", tensor.device())
    }
}

macro_rules! service {
    ($zero:literal $one:literal $seven:literal) => {
        #[tensor_service]
        pub(crate) trait Bench {
            /// Where its arguments were.
            async fn found(
                &self,
                len: usize,
                plain: Tensor,
                #[tensor(device = $one)] placed: HashMap<String, Vec<Tensor>>,
                #[tensor(device = "cpu:0")] main: Option<Tensor>,
            ) -> Vec<String>;

            /// The same of a placed argument in front of one that is not.
            async fn pair(
                &self,
                len: usize,
                #[tensor(device = $one)] first: Tensor,
                second: Tensor,
            ) -> [String; 2];

            /// Tensors that lie on these devices of the server's.
            #[tensor(device = $zero)]
            async fn placed(&self, len: usize, from: Vec<String>) -> Result<Vec<Tensor>, String>;

            /// The same, wherever the client wants them.
            async fn plain(&self, len: usize, from: Vec<String>) -> Result<Vec<Tensor>, String>;

            /// A result on a device of which most clients have none.
            #[tensor(device = $seven)]
            async fn far(&self) -> Tensor;

            /// An argument on a device of which the server has none.
            async fn farther(&self, #[tensor(device = $seven)] x: Tensor) -> u64;

            /// Streams both ways: where each item was, and the item from there.
            #[tensor(device = $zero)]
            fn streams(
                &self,
                len: usize,
                #[tensor(device = $one)] items: Streaming<Tensor>,
            ) -> impl Stream<Item = (String, Tensor)>;

            /// The same without a word of where.
            fn plain_streams(
                &self,
                len: usize,
                items: Streaming<Tensor>,
            ) -> impl Stream<Item = (String, Tensor)>;

            async fn keep(&self, #[tensor(device = $one)] x: Tensor) -> Remote<Tensor>;

            /// Where a value is that has stayed.
            async fn kept(&self, len: usize, x: Remote<Tensor>) -> Result<String, String>;

            /// Whose rows come back on a device of each caller's.
            #[tensor(device = $one)]
            #[rpc(batch(max_size = 2, max_wait = "10s"))]
            async fn batch(&self, #[tensor(device = "cpu:0")] rows: Tensor) -> Tensor;

            /// The same, gathered on a device.
            #[rpc(batch(max_size = 4, max_wait = "10s"))]
            async fn batch_there(&self, #[tensor(device = $one)] rows: Tensor) -> Tensor;
        }
    };
}

bench!(service);

/// The handler.
pub(crate) struct Bencher {
    pub(crate) side: Side,
    /// How often a method ran.
    pub(crate) ran: Arc<AtomicUsize>,
    /// What batches were run.
    pub(crate) batches: Arc<Mutex<Vec<String>>>,
}

impl Bencher {
    fn runs(&self) {
        self.ran.fetch_add(1, Ordering::Relaxed);
    }

    fn tensors(&self, len: usize, from: &[String]) -> Vec<Tensor> {
        self.runs();
        let from = from.iter().map(|from| from.parse().unwrap());
        (0..)
            .zip(from)
            .map(|(seed, from)| self.side.tensor(from, len, seed))
            .collect()
    }
}

impl Bench for Bencher {
    async fn found(
        &self,
        len: usize,
        plain: Tensor,
        placed: HashMap<String, Vec<Tensor>>,
        main: Option<Tensor>,
    ) -> Vec<String> {
        self.runs();
        let placed = placed.values().flatten();
        let all = [&plain].into_iter().chain(placed).chain(&main);
        all.map(|tensor| self.side.found(tensor, len, 1)).collect()
    }

    async fn pair(&self, len: usize, first: Tensor, second: Tensor) -> [String; 2] {
        self.runs();
        [first, second].map(|tensor| self.side.found(&tensor, len, 1))
    }

    async fn placed(&self, len: usize, from: Vec<String>) -> Result<Vec<Tensor>, String> {
        Ok(self.tensors(len, &from))
    }

    async fn plain(&self, len: usize, from: Vec<String>) -> Result<Vec<Tensor>, String> {
        Ok(self.tensors(len, &from))
    }

    async fn far(&self) -> Tensor {
        self.tensors(10, &["cpu:0".to_owned()]).remove(0)
    }

    async fn farther(&self, x: Tensor) -> u64 {
        self.runs();
        x.byte_len() as u64
    }

    fn streams(
        &self,
        len: usize,
        items: Streaming<Tensor>,
    ) -> impl Stream<Item = (String, Tensor)> {
        self.plain_streams(len, items)
    }

    fn plain_streams(
        &self,
        len: usize,
        items: Streaming<Tensor>,
    ) -> impl Stream<Item = (String, Tensor)> {
        self.runs();
        let side = self.side.clone();
        items
            .values()
            .map(move |item| (side.found(&item, len, 1), item))
    }

    async fn keep(&self, x: Tensor) -> Remote<Tensor> {
        self.runs();
        Remote::new(x)
    }

    async fn kept(&self, len: usize, x: Remote<Tensor>) -> Result<String, String> {
        self.runs();
        let x = x.local_value().map_err(|error| error.to_string())?;
        Ok(self.side.found(&x, len, 1))
    }

    async fn batch(&self, rows: Tensor) -> Tensor {
        self.runs();
        let run = format!("{} rows on {}", rows.shape()[0], rows.device());
        self.batches.lock().unwrap().push(run);
        rows
    }

    async fn batch_there(&self, rows: Tensor) -> Tensor {
        self.batch(rows).await
    }
}

impl Bencher {
    pub(crate) fn new(side: &Side) -> Self {
        Self {
            side: side.clone(),
            ran: Arc::default(),
            batches: Arc::default(),
        }
    }
}

/// A client and a server that serves it.
pub(crate) struct Scene {
    pub(crate) client: BenchClient,
    pub(crate) here: Side,
    pub(crate) server: Server,
    ran: Arc<AtomicUsize>,
    pub(crate) batches: Arc<Mutex<Vec<String>>>,
}

impl Scene {
    pub(crate) async fn over(over: &str) -> Self {
        Self::of(over, USUAL, USUAL).await
    }

    pub(crate) async fn of(over: &str, here: Has, there: Has) -> Self {
        let (here, there) = (Side::new(over, here), Side::new(over, there));
        let bencher = Bencher::new(&there);
        let (ran, batches) = (bencher.ran.clone(), bencher.batches.clone());
        let server = Server::builder()
            .context(&there.context)
            .service(BenchService::new(bencher))
            .listen("tcp://127.0.0.1:0")
            .await
            .unwrap();
        let client = BenchClient::connect_with(&here.context, server.url());
        let client = client.await.unwrap();
        let route = client.connection().route().to_string();
        assert!(route.starts_with(&format!("transport {over} ")), "{route}");
        Self {
            client,
            here,
            server,
            ran,
            batches,
        }
    }

    /// How often a method has run.
    pub(crate) fn ran(&self) -> usize {
        self.ran.load(Ordering::Relaxed)
    }

    /// A call without any wish: the connection goes on.
    pub(crate) async fn goes_on(&self) {
        let tensors = self.client.plain(300_000, vec!["cpu:0".to_owned()]);
        let tensors = soon(tensors).await.unwrap();
        assert_eq!(self.here.found(&tensors[0], 300_000, 0), "cpu:0");
    }
}

pub(crate) async fn soon<T>(work: impl Future<Output = T>) -> T {
    tensorpipe_tests::soon("an answer", work).await
}

/// A stream of the same tensor.
pub(crate) fn repeat(tensor: &Tensor, count: usize) -> impl Stream<Item = Tensor> + Send + use<> {
    stream::iter(vec![tensor.clone(); count])
}

pub(crate) fn names(devices: &[Device]) -> Vec<String> {
    devices.iter().map(Device::to_string).collect()
}
