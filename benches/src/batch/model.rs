//! The second process: a model behind a method that is batched, and the same one behind a method that is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use tensorpipe::channels::{BasicChannel, Channel};
use tensorpipe::transports::{ShmTransport, TcpTransport, Transport as Backend};
use tensorpipe::{Context, Tensor};
use tensorpipe_rpc::{Server, tensor_service};
use tokio::sync::Mutex;

use super::Orders;
use crate::peer::{Greeting, greet, orders};
use crate::plan::Transport;

/// Both methods return a row for each row: its values and one.
#[tensor_service]
pub(super) trait Model {
    #[rpc(batch(max_size = 32, max_wait = "2ms"))]
    async fn batched(&self, rows: Tensor) -> Result<Tensor, String>;
    async fn single(&self, rows: Tensor) -> Result<Tensor, String>;
    /// How often the model has run.
    async fn runs(&self) -> u64;
}

struct Device {
    cost: Duration,
    /// It runs one thing at a time.
    free: Mutex<()>,
    runs: AtomicU64,
}

impl Device {
    async fn run(&self, mut rows: Tensor) -> Result<Tensor, String> {
        let _free = self.free.lock().await;
        self.runs.fetch_add(1, Ordering::Relaxed);
        let cost = self.cost;
        // Not tokio's sleep, which knows milliseconds.
        let slept = tokio::task::spawn_blocking(move || std::thread::sleep(cost));
        slept.await.map_err(|error| error.to_string())?;
        let values = rows.make_mut::<f32>().map_err(|error| error.to_string())?;
        values.iter_mut().for_each(|value| *value += 1.0);
        Ok(rows)
    }
}

impl Model for Device {
    async fn batched(&self, rows: Tensor) -> Result<Tensor, String> {
        self.run(rows).await
    }

    async fn single(&self, rows: Tensor) -> Result<Tensor, String> {
        self.run(rows).await
    }

    async fn runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }
}

/// Serves until stdin ends. This is what `tp-bench serve-batch` does.
///
/// # Errors
/// When it cannot serve; the parent was told so.
pub(crate) fn serve() -> Result<()> {
    let orders: Orders = orders()?;
    let runtime = orders.runtime.build()?;
    let served = runtime.block_on(async {
        let device = Device {
            cost: Duration::from_micros(orders.cost_us),
            free: Mutex::new(()),
            runs: AtomicU64::new(0),
        };
        let server = Server::builder().service(ModelService::new(device));
        let server = server
            .context(&context(orders.transport)?)
            .listen(match orders.transport {
                Transport::Shm => format!("shm://batch-{}", std::process::id()),
                _ => "tcp://127.0.0.1:0".to_owned(),
            })
            .await?;
        greet(&Greeting::Ready(server.url().to_string()))?;
        server.wait().await;
        Ok(())
    });
    if let Err(error) = &served {
        greet(&Greeting::Failed(format!("{error:#}")))?;
    }
    served
}

/// A context with this transport alone.
pub(super) fn context(transport: Transport) -> Result<Context> {
    let transport: Arc<dyn Backend> = match transport {
        Transport::Tcp => Arc::new(TcpTransport::new()),
        Transport::Shm => Arc::new(ShmTransport::new()),
        other => bail!("batches are measured over tcp or shm, not {}", other.name()),
    };
    let channel: Arc<dyn Channel> = Arc::new(BasicChannel::new());
    let context = Context::builder().transports([transport]);
    Ok(context.channels([channel]).build()?)
}
