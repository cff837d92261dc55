//! The front half: starts the back, sends activations, takes gradients, reports.

use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use tensorpipe::{Context, Tensor};
use tensorpipe_examples::data::{self, Batches, PIXELS};
use tensorpipe_examples::process::Process;
use tensorpipe_examples::progress::Progress;
use tensorpipe_rpc::Server;
use tensorpipe_rpc::rendezvous::{Limits, Rendezvous};

use crate::args::Args;
use crate::halves::FrontHalf;
use crate::names::{ACCURACY, BACK, FRONT, LOSS, MICRO_BATCH, SEED, TEST, activations, gradients};

/// How the back says where it listens.
pub(crate) const LISTENING: &str = "listening on ";

/// How long the back may take to listen, and to end.
const BOUND: Duration = Duration::from_secs(10);

/// What a training came to.
#[derive(Debug, Serialize)]
struct Report {
    /// Share of the test images that is recognised, from 0 to 1.
    accuracy: f64,
    steps: u64,
    micro_batches: u32,
    /// The most values that waited here at once: sent, and not yet received by the back.
    in_flight: usize,
    seconds: f64,
    transport: String,
}

pub(crate) async fn run(args: &Args) -> Result<()> {
    let mut limits = Limits::default();
    // Room for one whole step and one value of the next. A front that runs further ahead waits.
    limits.values = args.micro_batches as usize + 1;
    let rendezvous = Rendezvous::builder(FRONT).limits(limits).build()?;
    let server = Server::builder()
        .service(rendezvous.service())
        .listen("tcp://127.0.0.1:0")
        .await?;
    let mut progress = Progress::new(args.steps);
    let (url, steps) = (server.url().to_string(), args.steps.to_string());
    let micro_batches = args.micro_batches.to_string();
    let role = [
        ["--back", &url],
        ["--steps", &steps],
        ["--micro-batches", &micro_batches],
    ];
    let mut back = Process::start(BACK, role.as_flattened(), progress.voice())?;
    let theirs = back.said(LISTENING, BOUND).await?;
    progress.say(format!("{} listens on {theirs}", back.title()));
    rendezvous.add_peer(BACK, &theirs)?;

    let title = back.title();
    let trained = tokio::select! {
        trained = train(args, &rendezvous, &mut progress) => trained,
        // The exit of the back's process says more than a broken connection.
        exit = back.exited() => exit.and_then(|exit| bail!("{title} ended ({exit})")),
    };
    progress.end();
    back.end(BOUND).await;
    let report = trained?;
    let mut out = std::io::stdout();
    writeln!(
        out,
        "test accuracy {:.2} % after {} steps of {} micro-batches in {:.1} s, up to {} values in flight over {}",
        100.0 * report.accuracy,
        report.steps,
        report.micro_batches,
        report.seconds,
        report.in_flight,
        report.transport,
    )?;
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    }
    Ok(())
}

async fn train(args: &Args, rendezvous: &Rendezvous, progress: &mut Progress) -> Result<Report> {
    let split = data::load()?;
    let size = args.micro_batches as usize * MICRO_BATCH;
    let mut batches = Batches::new(split.train.count(), size, SEED);
    let mut half = FrontHalf::new()?;
    let begun = Instant::now();
    let mut in_flight = 0;
    for step in 0..args.steps {
        let batch = split.train.select(batches.draw());
        // Asks for all gradients of the step before the first one can arrive.
        let mut coming = Vec::new();
        for micro_batch in 0..args.micro_batches {
            let name = gradients(micro_batch);
            let key = rendezvous.key_from(BACK, &name, step).await?;
            coming.push(rendezvous.recv(&key));
        }
        let loss = rendezvous.key_from(BACK, LOSS, step).await?;
        let loss = rendezvous.recv(&loss);
        let mut sent = Vec::new();
        for (micro_batch, images) in (0..).zip(batch.images.chunks(MICRO_BATCH * PIXELS)) {
            // Milliseconds of arithmetic on the main thread: the runtime's other threads serve the connections.
            let found = half.forward(images)?;
            send(rendezvous, &activations(micro_batch), step, &found).await?;
            sent.push(found);
            in_flight = in_flight.max(rendezvous.stats().values);
        }
        for (activations, gradient) in sent.iter().zip(coming) {
            let gradient = gradient.await.context("waiting for a gradient")?;
            half.backward(activations, &gradient.tensor.try_into()?)?;
        }
        half.step(args.micro_batches)?;
        let loss = loss.await.context("waiting for the loss")?;
        progress.show(step + 1, Some(loss.tensor.item()?), None);
        // All gradients are here, so the back has received all activations of this step.
        rendezvous.finish(step);
    }
    let seconds = begun.elapsed().as_secs_f64();
    let accuracy = rendezvous.key_from(BACK, ACCURACY, args.steps).await?;
    let accuracy = rendezvous.recv(&accuracy);
    let found = half.forward(&split.test.images)?;
    send(rendezvous, TEST, args.steps, &found).await?;
    let accuracy = accuracy.await.context("waiting for the accuracy")?;
    let connection = rendezvous.connection(BACK);
    Ok(Report {
        accuracy: accuracy.tensor.item::<f64>()?,
        steps: args.steps,
        micro_batches: args.micro_batches,
        in_flight,
        seconds,
        transport: connection.map_or_else(String::new, |it| it.route().transport.clone()),
    })
}

/// Sends a candle tensor from the context's pool, memory that the other process can read in place.
async fn send(
    rendezvous: &Rendezvous,
    name: &str,
    step: u64,
    found: &candle_core::Tensor,
) -> Result<()> {
    let tensor: Tensor = Context::global().pool().tensor_from_candle(found)?;
    let key = rendezvous.key_to(BACK, name, step)?;
    let sent = rendezvous.send_or_wait(&key, tensor).await;
    sent.with_context(|| format!("sending `{name}` of step {step}"))
}
