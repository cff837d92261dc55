//! The clients: each has a connection of its own, and one call under way at any time.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures_util::future::try_join_all;
use hdrhistogram::Histogram;
use tensorpipe::Tensor;

use super::model::{ModelClient, context};
use super::{BatchRow, Orders};
use crate::peer::Peer;

/// A row of what a small model takes, in `f32`s.
const WIDTH: u64 = 384;

/// Before anything is counted, as a part of what is measured.
const WARM_UP: f64 = 0.1;

/// Clients that are connected.
pub(crate) struct Load {
    orders: Orders,
    clients: Vec<ModelClient>,
    _server: Peer,
}

impl Load {
    /// Starts a server and connects so many clients.
    ///
    /// # Errors
    /// When it does not serve.
    pub(crate) async fn start(orders: Orders, clients: u32) -> Result<Self> {
        let server = Peer::start("serve-batch", &orders)?;
        let mut connected = Vec::new();
        for _ in 0..clients.max(1) {
            let context = context(orders.transport)?;
            connected.push(ModelClient::connect_with(&context, server.address()).await?);
        }
        Ok(Self {
            orders,
            clients: connected,
            _server: server,
        })
    }

    /// All clients call one of the methods for so long.
    ///
    /// # Errors
    /// When a call fails, or returns what it should not.
    pub(crate) async fn measure(&self, batched: bool, seconds: f64) -> Result<BatchRow> {
        self.calls(batched, Duration::from_secs_f64(WARM_UP * seconds))
            .await?;
        let before = self.clients[0].runs().await?;
        let begun = Instant::now();
        let times = self
            .calls(batched, Duration::from_secs_f64(seconds))
            .await?;
        let took = begun.elapsed().as_secs_f64();
        let runs = self.clients[0].runs().await? - before;
        let calls = times.len();
        let micros = |quantile: f64| times.value_at_quantile(quantile) as f64 / 1e3;
        Ok(BatchRow {
            case: "batch",
            method: if batched { "batched" } else { "single" },
            transport: self.orders.transport.name(),
            clients: self.clients.len() as u32,
            cost_us: self.orders.cost_us,
            seconds,
            calls,
            calls_per_s: calls as f64 / took,
            p50_us: micros(0.5),
            p99_us: micros(0.99),
            runs,
            mean_batch: calls as f64 / runs.max(1) as f64,
            ratio: None,
        })
    }

    /// The times of all calls, in nanoseconds.
    async fn calls(&self, batched: bool, length: Duration) -> Result<Histogram<u64>> {
        let until = Instant::now() + length;
        let each = self.clients.iter().enumerate().map(|(number, client)| {
            let client = client.clone();
            let calls = tokio::spawn(one_after_another(client, number, batched, until));
            async move { calls.await.context("a client's task")? }
        });
        let mut all = Histogram::new(3)?;
        for times in try_join_all(each).await? {
            all.add(times)?;
        }
        Ok(all)
    }
}

async fn one_after_another(
    client: ModelClient,
    number: usize,
    batched: bool,
    until: Instant,
) -> Result<Histogram<u64>> {
    let mut times = Histogram::new(3)?;
    let row = Tensor::from_vec(vec![number as f32; WIDTH as usize], [1, WIDTH])?;
    loop {
        let begun = Instant::now();
        let call = match batched {
            true => client.batched(&row),
            false => client.single(&row),
        };
        let answer = call.await?;
        times.record(begun.elapsed().as_nanos() as u64)?;
        let values = answer.as_slice::<f32>()?;
        let is_own = values.iter().all(|value| *value == number as f32 + 1.0);
        ensure!(
            answer.shape() == [1, WIDTH] && is_own,
            "client {number} got the rows of another one"
        );
        if Instant::now() >= until {
            return Ok(times);
        }
    }
}
