//! The server's process: it answers calls on a [`Store`] until the training is over, and measures what came out.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;
use tensorpipe::{Context, Timeouts};
use tensorpipe_examples::data;
use tensorpipe_examples::ending::{Ending, interrupted, released};
use tensorpipe_examples::progress::Progress;
use tensorpipe_rpc::Server;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::model;
use crate::service::{ParameterServerService, Store};

/// Start of the line on standard output that tells a launcher, or a person, the address.
pub(crate) const LISTENING: &str = "listening on ";

/// How often the display is brought up to date.
const GLANCE: Duration = Duration::from_millis(100);
/// How often the accuracy is measured during the training.
const MEASURE: Duration = Duration::from_millis(500);
/// How long workers get to hear that the training is over.
const FAREWELL: Duration = Duration::from_secs(2);

const SEED: u64 = 7;

/// What a training came to.
#[derive(Serialize)]
struct Report {
    /// Share of the test images that is recognised, from 0 to 1.
    accuracy: f64,
    /// Steps taken, all workers together.
    steps: u64,
    workers: u32,
    /// Calls that the server answered.
    calls: u64,
    /// Bytes of tensors in these calls, both ways.
    bytes: u64,
    /// From the first worker's arrival to the last step.
    seconds: f64,
    /// Transports that carried the calls, separated by commas.
    transport: String,
}

/// Serves at `listen`.
pub(crate) async fn run(listen: &str, steps: u64, json: bool, supervised: bool) -> Result<Ending> {
    let mut timeouts = Timeouts::default();
    // A worker that hangs must not keep the server from ending.
    timeouts.linger = FAREWELL;
    let context = Context::builder().timeouts(timeouts).build()?;
    let store = Arc::new(Store::new(model::initial(SEED)?, steps, context.pool())?);
    let server = Server::builder()
        .context(&context)
        .service(ParameterServerService::from_arc(Arc::clone(&store)))
        .listen(listen)
        .await
        .with_context(|| format!("cannot listen on {listen}"))?;
    println!("{LISTENING}{}", server.url());
    let ending = tokio::select! {
        result = oversee(&store, &server, json, supervised) => result.map(|()| Ending::Done),
        ending = interrupted() => ending,
        ending = released(supervised) => Ok(ending),
    };
    server.shutdown().await;
    ending
}

async fn oversee(store: &Store, server: &Server, json: bool, supervised: bool) -> Result<()> {
    let mut progress = Progress::new(store.status().steps);
    if !supervised {
        let url = server.url();
        progress.say(format!(
            "start workers with: parameter_server --role worker --connect {url}"
        ));
    }
    let (mut accuracy, mut measured) = (None, Instant::now());
    let mut workers = 0;
    loop {
        let pipes = server.pipes().len();
        if !supervised && pipes != workers {
            progress.say(format!("workers connected: {pipes}"));
            workers = pipes;
        }
        let status = store.status();
        if status.last.is_some() {
            break;
        }
        if status.done > 0 && measured.elapsed() >= MEASURE {
            accuracy = Some(measure(store).await?);
            measured = Instant::now();
        }
        progress.show(status.done, status.loss, accuracy);
        sleep(GLANCE).await;
    }
    progress.end();
    // Waits until each worker knows that the training is over, but not for long: some may be dead.
    let until = Instant::now() + FAREWELL;
    while store.status().dismissed < store.status().workers && Instant::now() < until {
        sleep(GLANCE / 10).await;
    }
    let accuracy = measure(store).await?;
    let status = store.status();
    let took = status
        .last
        .zip(status.first)
        .map(|(last, first)| last - first);
    let routes = store.routes();
    let transports: Vec<_> = routes.iter().map(|route| &*route.transport).collect();
    let report = Report {
        accuracy: (accuracy * 1e4).round() / 1e4,
        steps: status.done,
        workers: status.workers,
        calls: status.calls,
        bytes: status.bytes,
        seconds: took.unwrap_or_default().as_millis() as f64 / 1e3,
        transport: transports.join(", "),
    };
    let lent = match server.stats().bytes_lent {
        0 => String::new(),
        lent => format!(", {:.1} MB of them without a copy", lent as f64 / 1e6),
    };
    println!(
        "test accuracy {:.2} % after {} steps of {} workers in {:.1} s; {} calls moved {:.1} MB of tensors over {}{lent}",
        100.0 * report.accuracy,
        report.steps,
        report.workers,
        report.seconds,
        report.calls,
        report.bytes as f64 / 1e6,
        report.transport,
    );
    for route in routes {
        println!("{route}");
    }
    if json {
        println!("{}", serde_json::to_string(&report)?);
    }
    Ok(())
}

/// Share of the test images that the current parameters recognise, from 0 to 1.
async fn measure(store: &Store) -> Result<f64> {
    let parameters = store.parameters();
    let measured = spawn_blocking(move || model::accuracy(parameters, &data::load()?.test));
    measured.await.context("measuring the accuracy")?
}
