//! A worker: pulls the parameters, computes gradients on a batch of its own, pushes them, until the training is over.
//!
//! It never waits for other workers. The next pull is on its way together with the push, so that a step costs one
//! round trip; the parameters that it brings may or may not hold somebody else's newest step.

use std::sync::Arc;

use anyhow::{Context as _, Error, Result};
use tensorpipe_rpc::CallError;
use tokio::task::spawn_blocking;

use crate::args::Work;
use crate::connection::{connect, failed};
use crate::data::{self, Batches, Digits};
use crate::ending::{Ending, interrupted, released};
use crate::model::{Network, names};
use crate::progress::Progress;
use crate::service::{ParameterServerClient, PushError};

/// Works for the server at `work.connect` until the training is over.
pub(crate) async fn run(work: Work) -> Result<Ending> {
    tokio::select! {
        result = join_in(&work) => result,
        ending = interrupted() => ending,
        ending = released(work.supervised) => Ok(ending),
    }
}

async fn join_in(work: &Work) -> Result<Ending> {
    let images = Arc::new(data::load()?.train);
    let url = &work.connect;
    let server = connect(url).await?;
    let mut worker = Worker::new(server, images, work).await?;
    let result = worker.train(work.steps).await;
    worker.progress.end();
    result?;
    // The server need not be there any more.
    let _ = worker.server.connection().close().await;
    if !work.supervised {
        worker
            .progress
            .say(format!("done, after {} steps of this worker", worker.steps));
    }
    Ok(Ending::Done)
}

struct Worker {
    server: ParameterServerClient,
    url: String,
    images: Arc<Digits>,
    batches: Batches,
    progress: Progress,
    /// Own steps taken.
    steps: u64,
}

impl Worker {
    async fn new(server: ParameterServerClient, images: Arc<Digits>, work: &Work) -> Result<Self> {
        let url = work.connect.clone();
        let welcome = server.join().await.map_err(|error| failed(error, &url))?;
        let progress = if work.supervised {
            Progress::silent()
        } else {
            let progress = Progress::new(welcome.steps);
            progress.say(format!("worker {} of {url}", welcome.worker));
            progress
        };
        let batch = welcome.batch as usize;
        Ok(Self {
            server,
            url,
            batches: Batches::new(images.len(), batch, u64::from(welcome.worker)),
            images,
            progress,
            steps: 0,
        })
    }

    async fn train(&mut self, limit: Option<u64>) -> Result<()> {
        let mut pull = self.server.pull(names());
        while limit != Some(self.steps) {
            let parameters = pull.await.map_err(|error| self.failed(error))?;
            let batch = self.images.select(self.batches.draw());
            // Milliseconds of arithmetic: not on a thread that serves connections.
            let computed = spawn_blocking(move || Network::new(parameters)?.gradients(&batch));
            let found = computed.await.context("computing gradients")??;
            let push = self.server.push(&found.tensors, found.loss);
            pull = self.server.pull(names());
            match push.await {
                Ok(done) => {
                    self.steps += 1;
                    self.progress.show(done, Some(found.loss), None);
                }
                Err(CallError::Service(PushError::Over)) => return Ok(()),
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(())
    }

    fn failed<E>(&self, error: CallError<E>) -> Error
    where
        CallError<E>: std::error::Error + Send + Sync + 'static,
    {
        let Self { url, steps, .. } = self;
        failed(error, &format!("{url} after {steps} steps of this worker"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model;
    use crate::service::ParameterServer as _;
    use crate::store::Store;

    /// As many workers as `workers` take turns, so each pushes gradients of parameters that are as many steps old.
    async fn accuracy_of_a_training(workers: u64, steps: u64) -> f64 {
        let split = data::load().unwrap();
        let store = Store::new(
            model::initial(7).unwrap(),
            steps,
            &tensorpipe::Pool::default(),
        )
        .unwrap();
        let mut crew = Vec::new();
        for _ in 0..workers {
            let welcome = store.join().await;
            let seed = u64::from(welcome.worker);
            let batches = Batches::new(split.train.len(), welcome.batch as usize, seed);
            crew.push((batches, store.pull(names()).await));
        }
        for step in 0..steps {
            let (batches, pulled) = &mut crew[(step % workers) as usize];
            let batch = split.train.select(batches.draw());
            let found = Network::new(pulled.clone())
                .unwrap()
                .gradients(&batch)
                .unwrap();
            store.push(found.tensors, found.loss).await.unwrap();
            *pulled = store.pull(names()).await;
        }
        let network = Network::new(store.parameters()).unwrap();
        network.accuracy(&split.test).unwrap()
    }

    #[tokio::test]
    async fn one_worker_learns_the_digits() {
        let accuracy = accuracy_of_a_training(1, 2000).await;
        assert!(accuracy >= 0.97, "{accuracy}");
    }

    #[tokio::test]
    async fn the_old_gradients_of_many_workers_do_no_harm() {
        let accuracy = accuracy_of_a_training(16, 2000).await;
        assert!(accuracy >= 0.96, "{accuracy}");
    }
}
