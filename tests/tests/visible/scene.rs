//! Setup of these tests: a server in its own process, reached over one of several transports and channels.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tensorpipe::channels::{BasicChannel, Channel, CmaChannel, MptChannel};
use tensorpipe::conformance::pattern;
use tensorpipe::transports::{TcpTransport, Transport};
use tensorpipe::{
    Context, DType, Pool, Tensor,
    channels::{Pays, Threshold},
};
use tensorpipe_rpc::{CallContext, Server, Stream, Streaming, tensor_service};
pub(crate) use tensorpipe_tests::{Child, runtime, say, soon};

#[tensor_service]
pub(crate) trait Model {
    async fn take(&self, tensor: Tensor) -> u64;
    async fn give(&self, cx: &CallContext, len: u64, pooled: bool) -> Tensor;
    /// A tensor of the pool, one of the heap, and a small one; its lengths are those of what it is given.
    async fn mix(
        &self,
        cx: &CallContext,
        pooled: Tensor,
        heap: Tensor,
        small: Tensor,
    ) -> Vec<Tensor>;
    async fn sleep(&self, ms: u64) -> Result<u64, String>;
    /// So many letters, in the reply's own frame.
    async fn spell(&self, letters: u64) -> String;
    async fn panic(&self) -> u64;
    async fn refuse(&self, tensor: Tensor) -> Result<u64, String>;
    /// So many tensors.
    fn pour(
        &self,
        cx: CallContext,
        tensors: u64,
        len: u64,
        pooled: bool,
    ) -> impl Stream<Item = Tensor>;
    /// The bytes of all.
    async fn drink(&self, tensors: Streaming<Tensor>) -> u64;
    /// The first two come back, and then the second's refusal.
    fn sip(&self, tensors: Streaming<Tensor>) -> impl Stream<Item = Result<Tensor, String>>;
}

struct Plain;

impl Model for Plain {
    async fn take(&self, tensor: Tensor) -> u64 {
        tensor.byte_len() as u64
    }

    async fn give(&self, cx: &CallContext, len: u64, pooled: bool) -> Tensor {
        match pooled {
            true => of_pool(cx.pool(), len as usize),
            false => of_heap(len as usize),
        }
    }

    async fn mix(
        &self,
        cx: &CallContext,
        pooled: Tensor,
        heap: Tensor,
        small: Tensor,
    ) -> Vec<Tensor> {
        vec![
            of_pool(cx.pool(), pooled.byte_len()),
            of_heap(heap.byte_len()),
            of_heap(small.byte_len()),
        ]
    }

    async fn sleep(&self, ms: u64) -> Result<u64, String> {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        if ms == 0 {
            return Err("not at all".to_owned());
        }
        Ok(ms)
    }

    async fn spell(&self, letters: u64) -> String {
        "a".repeat(letters as usize)
    }

    async fn panic(&self) -> u64 {
        panic!("as it was asked to");
    }

    async fn refuse(&self, tensor: Tensor) -> Result<u64, String> {
        Err(format!("not {} bytes", tensor.byte_len()))
    }

    fn pour(
        &self,
        cx: CallContext,
        tensors: u64,
        len: u64,
        pooled: bool,
    ) -> impl Stream<Item = Tensor> {
        stream::iter(0..tensors).map(move |_| match pooled {
            true => of_pool(cx.pool(), len as usize),
            false => of_heap(len as usize),
        })
    }

    async fn drink(&self, tensors: Streaming<Tensor>) -> u64 {
        let sum = async |sum, tensor: Tensor| sum + tensor.byte_len() as u64;
        tensors.values().fold(0, sum).await
    }

    fn sip(&self, tensors: Streaming<Tensor>) -> impl Stream<Item = Result<Tensor, String>> {
        let last = stream::iter([Err("no more".to_owned())]);
        tensors.values().take(2).map(Ok).chain(last)
    }
}

pub(crate) fn of_heap(len: usize) -> Tensor {
    Tensor::from_vec(pattern(len, 3), [len as u64]).unwrap()
}

pub(crate) fn of_pool(pool: &Pool, len: usize) -> Tensor {
    let mut tensor = pool.tensor(DType::U8, [len as u64]).unwrap();
    let bytes = tensor.make_mut::<u8>().unwrap();
    bytes.copy_from_slice(&pattern(len, 3));
    tensor
}

/// What carries tensors.
pub(crate) fn context(way: &str) -> Context {
    let over_tcp = |channels: Vec<Arc<dyn Channel>>| {
        let tcp: Arc<dyn Transport> = Arc::new(TcpTransport::new());
        Context::builder().transports([tcp]).channels(channels)
    };
    let builder = match way {
        // Large heap tensors go through the rings, whichever processors this machine has.
        "defaults" => Context::builder().threshold("cma", Threshold::new(Pays::LastResort)),
        "basic" => over_tcp(vec![Arc::new(BasicChannel::new())]),
        "cma" => over_tcp(vec![
            Arc::new(CmaChannel::new()),
            Arc::new(BasicChannel::new()),
        ]),
        "mpt" => over_tcp(vec![
            Arc::new(MptChannel::new()),
            Arc::new(BasicChannel::new()),
        ]),
        other => panic!("no way {other}"),
    };
    builder.build().unwrap()
}

/// A client here, and its server in another process.
pub(crate) async fn client(way: &str) -> (ModelClient, Context, Child) {
    let server = Child::start("server", &[("TEST_WAY", way)]);
    let context = context(way);
    let client = ModelClient::connect_with(&context, server.hear("url"));
    let client = soon("a client", client).await.unwrap();
    (client, context, server)
}

pub(crate) fn play() {
    runtime().block_on(async {
        let way = std::env::var("TEST_WAY").unwrap();
        let server = Server::builder()
            .context(&context(&way))
            .service(ModelService::new(Plain))
            .listen("tcp://127.0.0.1:0");
        let server = server.await.unwrap();
        say("url", server.url());
        server.wait().await;
    });
}
