//! A worker: pulls the parameters, computes gradients on a batch of its own, pushes them, until the training is over.
//!
//! A worker never waits for other workers. It sends the next pull together with the push, so a step costs one round trip. The pulled
//! parameters may or may not include the newest steps of other workers.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Error, Result};
use tensorpipe::Context;
use tensorpipe_examples::data::{self, Batches};
use tensorpipe_examples::ending::{Ending, interrupted, released};
use tensorpipe_rpc::CallError;
use tokio::task::spawn_blocking;

use crate::model;
use crate::service::{ParameterServerClient, PushError};

/// How long a worker waits for an answer. The pipe gives up a silent peer after 10 s, and its error says more, so this
/// bound is longer.
const BOUND: Duration = Duration::from_secs(15);
/// Images a batch.
const BATCH: usize = 64;

/// Works for the server at `url` until the training is over, or for `limit` steps.
pub(crate) async fn run(url: &str, limit: Option<u64>, supervised: bool) -> Result<Ending> {
    tokio::select! {
        result = train(url, limit, supervised) => result,
        ending = interrupted() => ending,
        ending = released(supervised) => Ok(ending),
    }
}

async fn train(url: &str, limit: Option<u64>, supervised: bool) -> Result<Ending> {
    let images = Arc::new(data::load()?.train);
    // Waits for a server that is not up yet.
    let connected = ParameterServerClient::connect_with(Context::global(), url).await;
    let server = connected.with_context(|| format!("cannot reach the server at {url}"))?;
    let server = server.with_deadline(BOUND);
    let number = server.join().await.map_err(|error| failed(error, url))?;
    let mut batches = Batches::new(images.count(), BATCH, number.into());
    let mut steps = 0;
    let mut pull = server.pull();
    while limit != Some(steps) {
        let parameters = pull.await.map_err(|error| failed(error, url))?;
        let batch = images.select(batches.draw());
        // Milliseconds of arithmetic must not block a thread that serves connections.
        let computed = spawn_blocking(move || model::gradients(parameters, &batch));
        let (loss, gradients) = computed.await.context("computing gradients")??;
        let push = server.push(&gradients, loss);
        pull = server.pull();
        match push.await {
            Ok(()) => steps += 1,
            Err(CallError::Service(PushError::Over)) => break,
            Err(error) => return Err(failed(error, url)),
        }
    }
    // The server may already be gone.
    let _ = server.connection().close().await;
    if !supervised {
        eprintln!("done, after {steps} steps of this worker");
    }
    Ok(Ending::Done)
}

/// A failed call as an error for people.
fn failed<E>(error: CallError<E>, url: &str) -> Error
where
    CallError<E>: std::error::Error + Send + Sync + 'static,
{
    let verdict = match &error {
        CallError::Connection { .. } => "lost the server",
        CallError::Deadline { .. } => "no answer from the server",
        CallError::ShuttingDown => "sent away by the server",
        _ => "a call failed on the server",
    };
    Error::new(error).context(format!("{verdict} at {url}"))
}
