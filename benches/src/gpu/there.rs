//! The other process: takes tensors, on its GPU or in main memory.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tensorpipe::channels::LeaseChannel;
use tensorpipe::device::cuda::CudaDevices;
use tensorpipe::{Context, Device, Tensor};
use tensorpipe_rpc::{Server, tensor_service};

use super::{ready, sum};
use crate::peer::{Greeting, greet, orders};

/// What it must know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Orders {
    /// Whether it reads what is lent where that lies.
    pub(super) borrows: bool,
}

#[tensor_service]
pub(super) trait Taker {
    /// Its length, when all of it is there.
    async fn take(&self, x: Tensor) -> Result<u64, String>;
    /// The same on the GPU, from wherever it comes.
    async fn lift(&self, #[tensor(device = "cuda:0")] x: Tensor) -> Result<u64, String>;
    /// What all of its bytes come to.
    async fn sum(&self, x: Tensor) -> Result<u64, String>;
}

struct There(Context);

impl There {
    async fn taken(x: &Tensor) -> Result<u64, String> {
        ready(x.buffer()).await.map_err(|error| error.to_string())?;
        Ok(x.byte_len() as u64)
    }
}

impl Taker for There {
    async fn take(&self, x: Tensor) -> Result<u64, String> {
        Self::taken(&x).await
    }

    async fn lift(&self, x: Tensor) -> Result<u64, String> {
        Self::taken(&x).await
    }

    async fn sum(&self, x: Tensor) -> Result<u64, String> {
        let here = x.to(Device::CPU, &self.0).await;
        let here = here.map_err(|error| error.to_string())?;
        Ok(sum(here.as_bytes().map_err(|error| error.to_string())?))
    }
}

/// Serves until stdin ends. This is what `tp-bench gpu-peer` does.
///
/// # Errors
/// When it cannot serve; the parent was told so.
pub(crate) fn play() -> Result<()> {
    let orders: Orders = orders()?;
    let runtime = tokio::runtime::Runtime::new()?;
    let served = runtime.block_on(serve(&orders));
    if let Err(error) = &served {
        greet(&Greeting::Failed(format!("{error:#}")))?;
    }
    served
}

async fn serve(orders: &Orders) -> Result<()> {
    let cuda = CudaDevices::open()?;
    let mut builder = Context::builder().cuda(&cuda);
    if !orders.borrows {
        builder = builder.prefer_channel(LeaseChannel::lends_only());
    }
    let context = builder.build()?;
    let server = Server::builder()
        .context(&context)
        .service(TakerService::new(There(context.clone())))
        .listen("tcp://127.0.0.1:0")
        .await?;
    greet(&Greeting::Ready(server.url().to_string()))?;
    server.wait().await;
    anyhow::bail!("the listener failed")
}
