//! The service on a simulated network: workers on links that are slow, stall and are cut, and one worker that dies. You can test your own
//! service the same way.
//!
//! The model is minimal: the loss is half the sum of the parameters' squares, so the gradient equals the parameters.

use std::sync::Arc;
use std::time::Duration;

use tensorpipe::Tensor;
use tensorpipe::testing::{self, Host, Network};
use tensorpipe_rpc::{CallError, Server};

use crate::model::Tensors;
use crate::service::{ParameterServerClient, ParameterServerService, PushError, Status, Store};

const STEPS: u64 = 200;
const ELEMENTS: usize = 5_000;

/// Trains until the server says that the training is over. Connects anew when the connection has ended.
async fn work(host: Host, url: String) {
    let context = host.context().build().unwrap();
    loop {
        let connected = ParameterServerClient::connect_with(&context, &url).await;
        let server = connected.unwrap().with_deadline(Duration::from_secs(20));
        match train(&server).await {
            Err(CallError::Service(PushError::Over)) => return,
            // The worker cannot know whether its push was applied. One step more or less does no harm: the server counts.
            Err(CallError::Connection { .. } | CallError::Deadline { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

async fn train(server: &ParameterServerClient) -> Result<(), CallError<PushError>> {
    server.join().await.map_err(unserved)?;
    loop {
        let parameters = server.pull().await.map_err(unserved)?;
        let values = parameters["w"].as_slice::<f32>().unwrap();
        let loss: f32 = values.iter().map(|value| value * value / 2.0).sum();
        // Stands for the time that computing a gradient takes.
        tokio::time::sleep(Duration::from_millis(30)).await;
        server.push(&parameters, loss).await?;
    }
}

/// Converts the error of a method that has no service error of its own.
fn unserved(error: CallError) -> CallError<PushError> {
    error.map_service(|never| match never {})
}

/// Runs a training. Returns the status and the parameters at its end, and the simulated time that it took.
fn training(seed: u64) -> (Status, Vec<f32>, Duration) {
    testing::run(seed, async |network: Network| {
        let host = network.host("server");
        let context = host.context().build().unwrap();
        let start = Tensors::from([("w".to_owned(), Tensor::from(vec![1.0f32; ELEMENTS]))]);
        let store = Arc::new(Store::new(start, STEPS, context.pool()).unwrap());
        let service = ParameterServerService::from_arc(store.clone());
        let server = Server::builder().context(&context).service(service);
        let server = server.listen(host.url(1)).await.unwrap();

        let mut workers = Vec::new();
        for name in ["slow", "parted", "cut", "dies"] {
            let worker = network.host(name);
            for (from, to) in [(name, "server"), ("server", name)] {
                let (delay, jitter) = (Duration::from_millis(5), Duration::from_millis(20));
                network.link(from, to).delay(delay).jitter(jitter);
            }
            let task = worker.spawn(work(worker.clone(), server.url().to_string()));
            workers.push((name, task));
        }
        network
            .link("server", "slow")
            .delay(Duration::from_millis(300));
        network.link("cut", "server").cut_after(50_000);
        tokio::time::sleep(Duration::from_millis(500)).await;
        network.partition("parted", "server");
        network.crash("dies");
        // Longer than a pipe waits for a silent peer, so `parted` has to connect anew.
        tokio::time::sleep(Duration::from_secs(15)).await;
        network.heal("parted", "server");
        for (name, worker) in workers {
            let ended = worker.await;
            assert_eq!(ended.is_err(), name == "dies", "{name}");
        }
        let parameters = store.parameters();
        let values = parameters["w"].as_slice::<f32>().unwrap();
        (store.status(), values.to_vec(), network.elapsed())
    })
}

#[test]
fn every_step_is_taken_once_whatever_becomes_of_workers_and_links() {
    for seed in 0..20 {
        let (status, values, took) = training(seed);
        assert_eq!(status.done, STEPS, "seed {seed}");
        // The four workers, and each worker that joined again.
        assert!((6..20).contains(&status.workers), "seed {seed}: {status:?}");
        let largest = values
            .iter()
            .fold(0f32, |largest, value| largest.max(value.abs()));
        assert!(largest < 1e-3, "seed {seed}: {largest}");
        assert!(took < Duration::from_secs(60), "seed {seed}: {took:?}");
    }
}

#[test]
fn the_same_seed_trains_the_same_numbers() {
    let (first, values, took) = training(4);
    let (again, the_same, as_long) = training(4);
    assert_eq!(values, the_same);
    assert_eq!(took, as_long);
    assert_eq!((first.calls, first.bytes), (again.calls, again.bytes));
    assert_ne!(took, training(5).2);
}
