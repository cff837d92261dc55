//! The back half: takes activations, sends gradients and the loss.

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tensorpipe::{Context, Tensor};
use tensorpipe_examples::data::{self, Batches};
use tensorpipe_rpc::Server;
use tensorpipe_rpc::rendezvous::Rendezvous;

use crate::args::Args;
use crate::front::LISTENING;
use crate::halves::BackHalf;
use crate::names::{ACCURACY, BACK, FRONT, LOSS, MICRO_BATCH, SEED, TEST, activations, gradients};

/// How long the front may take to receive the last value.
const FAREWELL: Duration = Duration::from_secs(10);

pub(crate) async fn run(args: &Args, front: &str) -> Result<()> {
    let rendezvous = Rendezvous::builder(BACK).peer(FRONT, front).build()?;
    let server = Server::builder()
        .service(rendezvous.service())
        .listen("tcp://127.0.0.1:0")
        .await?;
    writeln!(std::io::stdout(), "{LISTENING}{}", server.url())?;
    let split = data::load()?;
    let size = args.micro_batches as usize * MICRO_BATCH;
    let mut batches = Batches::new(split.train.count(), size, SEED);
    let mut half = BackHalf::new()?;
    for step in 0..args.steps {
        let labels = split.train.select(batches.draw()).labels;
        let mut coming = Vec::new();
        for micro_batch in 0..args.micro_batches {
            let name = activations(micro_batch);
            let key = rendezvous.key_from(FRONT, &name, step).await?;
            coming.push(rendezvous.recv(&key));
        }
        let mut losses = 0.0;
        for ((micro_batch, labels), coming) in (0..).zip(labels.chunks(MICRO_BATCH)).zip(coming) {
            let value = coming.await.context("waiting for activations")?;
            if micro_batch == 0 && step > 0 {
                // The front has begun this step, so it has received every value of the step before.
                rendezvous.finish(step - 1);
            }
            let (loss, gradient) = half.train(value.tensor.try_into()?, labels)?;
            let gradient = Context::global().pool().tensor_from_candle(&gradient)?;
            send(&rendezvous, &gradients(micro_batch), step, gradient).await?;
            losses += loss;
        }
        half.step(args.micro_batches)?;
        let loss = Tensor::scalar(losses / args.micro_batches as f32);
        send(&rendezvous, LOSS, step, loss).await?;
    }
    let key = rendezvous.key_from(FRONT, TEST, args.steps).await?;
    let value = rendezvous
        .recv(&key)
        .await
        .context("waiting for the test")?;
    let accuracy = half.accuracy(&value.tensor.try_into()?, &split.test.labels)?;
    send(&rendezvous, ACCURACY, args.steps, Tensor::scalar(accuracy)).await?;
    // The front ends this process once it has received the accuracy.
    tokio::time::sleep(FAREWELL).await;
    Ok(())
}

async fn send(rendezvous: &Rendezvous, name: &str, step: u64, tensor: Tensor) -> Result<()> {
    let key = rendezvous.key_to(FRONT, name, step)?;
    let sent = rendezvous.send_or_wait(&key, tensor).await;
    sent.with_context(|| format!("sending `{name}` of step {step}"))
}
