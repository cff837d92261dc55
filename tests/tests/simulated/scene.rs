//! The service of these tests, and helpers to serve it and connect to it.

use std::cell::Cell;
use std::time::Duration;

use tensorpipe::testing::{Host, Network};
use tensorpipe::{Tensor, Timeouts};
use tensorpipe_rpc::{Server, tensor_service};

thread_local! {
    /// How often `scale_once` has run: a simulation is one thread.
    pub(crate) static RUNS: Cell<u32> = const { Cell::new(0) };
}

#[tensor_service]
pub(crate) trait Scaler {
    /// Multiplies every element.
    #[rpc(idempotent)]
    async fn scale(&self, tensor: Tensor, factor: f32) -> Tensor;
    /// The same, and never again.
    async fn scale_once(&self, tensor: Tensor, factor: f32) -> Tensor;
    /// Answers after so many milliseconds.
    async fn nap(&self, millis: u64);
}

pub(crate) struct Cpu;

impl Scaler for Cpu {
    async fn scale(&self, mut tensor: Tensor, factor: f32) -> Tensor {
        let values = tensor.make_mut::<f32>().unwrap();
        values.iter_mut().for_each(|value| *value *= factor);
        tensor
    }

    async fn scale_once(&self, tensor: Tensor, factor: f32) -> Tensor {
        RUNS.set(RUNS.get() + 1);
        self.scale(tensor, factor).await
    }

    async fn nap(&self, millis: u64) {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
}

/// Serves at port 1 of `host`.
pub(crate) async fn serve(host: &Host) -> Server {
    serve_with(host, Timeouts::default()).await
}

async fn serve_with(host: &Host, timeouts: Timeouts) -> Server {
    let context = host.context().timeouts(timeouts).build().unwrap();
    let server = Server::builder().context(&context);
    let server = server.service(ScalerService::new(Cpu));
    server.listen(host.url(1)).await.unwrap()
}

/// A server at `server`, and a client of it at `client`.
pub(crate) async fn pair(network: &Network) -> (Server, ScalerClient) {
    pair_with(network, Timeouts::default()).await
}

/// The same, where both contexts have these.
pub(crate) async fn pair_with(network: &Network, timeouts: Timeouts) -> (Server, ScalerClient) {
    let server = serve_with(&network.host("server"), timeouts.clone()).await;
    let context = network.host("client").context();
    let context = context.timeouts(timeouts).build().unwrap();
    let client = ScalerClient::connect_with(&context, server.url()).await;
    (server, client.unwrap())
}

pub(crate) fn tensor(len: usize) -> Tensor {
    Tensor::from(vec![1.0f32; len])
}

pub(crate) fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
