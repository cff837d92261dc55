//! Load test: many clients at once, each with its own connection and one call in flight.

use std::fmt;
use std::io::{IsTerminal as _, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures_util::future::try_join_all;
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::client::Client;
use crate::service::Work;

/// Significant digits of a latency.
const DIGITS: u8 = 3;

/// Parameters of a load test.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Clients at once.
    pub clients: usize,
    /// Calls of all of them together.
    pub calls: u64,
    /// Sentences of one call.
    pub sentences: usize,
}

/// Results of a load test.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Clients at once.
    pub clients: usize,
    /// Calls answered.
    pub calls: u64,
    /// Sentences embedded.
    pub sentences: u64,
    /// From the first call to the last answer.
    pub seconds: f64,
    /// Sentences embedded in a second.
    pub sentences_per_second: f64,
    /// Median latency of a call, in milliseconds.
    pub p50_ms: f64,
    /// 99th percentile of the latency, in milliseconds.
    pub p99_ms: f64,
    /// Sentences that the server computed at once, on average, from all clients together.
    pub mean_batch: f64,
    /// Share of the computed tokens that was padding.
    pub padding: f64,
    /// How the clients were connected.
    pub transport: String,
}

/// What the clients share.
struct Shared {
    load: Load,
    sentences: Vec<String>,
    begun: AtomicU64,
    bar: ProgressBar,
}

/// Makes `load.calls` calls with `sentences`, in turns, and measures them. Each client makes one warm-up call before the
/// measurement.
///
/// # Errors
/// `sentences` is empty, or a call failed. Then there are no results.
pub async fn run(client: &Client, load: Load, sentences: Vec<String>) -> Result<Report> {
    let first = sentences.first().context("there are no sentences")?;
    let clients = try_join_all((0..load.clients).map(|_| client.another())).await?;
    try_join_all(
        clients
            .iter()
            .map(|client| client.embed(std::slice::from_ref(first))),
    )
    .await?;
    let before = client.work().await?;
    let shared = Arc::new(Shared {
        load,
        sentences,
        begun: AtomicU64::new(0),
        bar: bar(load.calls),
    });
    let begun = Instant::now();
    let workers = clients.into_iter().map(|client| {
        let worker = tokio::spawn(work(client, Arc::clone(&shared)));
        async move { worker.await.context("a client panicked")? }
    });
    let parts = try_join_all(workers).await;
    let seconds = begun.elapsed().as_secs_f64();
    shared.bar.finish_and_clear();
    let mut latencies = Histogram::<u64>::new(DIGITS)?;
    for part in parts? {
        latencies.add(part)?;
    }
    let work = client.work().await?.since(&before);
    Ok(report(
        load,
        seconds,
        &latencies,
        &work,
        &client.route().transport,
    ))
}

/// Runs one client until all calls have begun.
async fn work(client: Client, shared: Arc<Shared>) -> Result<Histogram<u64>> {
    let mut latencies = Histogram::new(DIGITS)?;
    let Load {
        calls, sentences, ..
    } = shared.load;
    loop {
        let call = shared.begun.fetch_add(1, Ordering::Relaxed);
        if call >= calls {
            return Ok(latencies);
        }
        let from = call as usize * sentences;
        let all = &shared.sentences;
        let some: Vec<&String> = (from..from + sentences)
            .map(|at| &all[at % all.len()])
            .collect();
        let begun = Instant::now();
        client.embed(&some).await?;
        latencies.record(begun.elapsed().as_micros() as u64)?;
        shared.bar.inc(1);
    }
}

fn report(
    load: Load,
    seconds: f64,
    latencies: &Histogram<u64>,
    work: &Work,
    transport: &str,
) -> Report {
    let millis = |quantile| latencies.value_at_quantile(quantile) as f64 / 1000.0;
    let sentences = load.calls.saturating_mul(load.sentences as u64);
    let computed = work.tokens.saturating_add(work.padding).max(1);
    Report {
        clients: load.clients,
        calls: load.calls,
        sentences,
        seconds,
        sentences_per_second: sentences as f64 / seconds,
        p50_ms: millis(0.5),
        p99_ms: millis(0.99),
        mean_batch: work.mean_batch(),
        padding: work.padding as f64 / computed as f64,
        transport: transport.to_owned(),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} calls of {} clients over {} in {:.1} s: {:.0} sentences a second",
            self.calls, self.clients, self.transport, self.seconds, self.sentences_per_second
        )?;
        writeln!(
            f,
            "a call: p50 {:.1} ms, p99 {:.1} ms",
            self.p50_ms, self.p99_ms
        )?;
        write!(
            f,
            "mean batch {:.1} sentences, {:.0} % of what was computed was padding",
            self.mean_batch,
            100.0 * self.padding
        )
    }
}

/// A bar on a terminal; elsewhere (a log file, a CI job) the report alone is enough.
fn bar(calls: u64) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::with_draw_target(Some(calls), ProgressDrawTarget::hidden());
    }
    let look = ProgressStyle::with_template("{bar:32} {pos}/{len} calls, {per_sec}, {eta} left")
        .expect("a constant template");
    let bar = ProgressBar::with_draw_target(Some(calls), ProgressDrawTarget::stderr_with_hz(10));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar.with_style(look)
}
