//! Several client processes of one batched method: some of them die, or the server does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tensorpipe::Tensor;
use tensorpipe_rpc::batch::Batches;
use tensorpipe_rpc::{CallError, Server, tensor_service};
use tensorpipe_tests::{Child, eventually, runtime, say, soon};
use tokio::sync::Semaphore;

use super::scene::{Way, context, each_way};

#[tensor_service]
trait Model {
    /// Twice each row, as soon as there are six and the test allows it.
    #[rpc(batch(max_size = 6, max_wait = "1000s"))]
    async fn double(&self, rows: Tensor) -> Result<Tensor, String>;
}

#[derive(Clone)]
struct Held {
    gate: Arc<Semaphore>,
    /// The rows of each batch, as digits.
    seen: Arc<AtomicU64>,
}

impl Model for Held {
    async fn double(&self, mut rows: Tensor) -> Result<Tensor, String> {
        let digit = |seen: u64| Some(10 * seen + rows.shape()[0]);
        let _ = self
            .seen
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, digit);
        self.gate.acquire().await.unwrap().forget();
        let values = rows.make_mut::<f32>().map_err(|error| error.to_string())?;
        values.iter_mut().for_each(|value| *value *= 2.0);
        Ok(rows)
    }
}

fn rows(count: u64) -> Tensor {
    Tensor::from_vec(vec![count as f32; 3 * count as usize], [count, 3]).unwrap()
}

fn are_doubled(answer: &Tensor, count: u64) -> bool {
    let values = answer.as_slice::<f32>().unwrap();
    answer.shape() == [count, 3] && values.iter().all(|value| *value == 2.0 * count as f32)
}

/// A client that makes one call, or a server: as it is told.
pub(crate) fn play() {
    let told = |name| std::env::var(name).unwrap();
    let way = Way::named(&told("TEST_WAY"));
    runtime().block_on(async {
        if let Ok(url) = std::env::var("TEST_URL") {
            let count = told("TEST_ROWS").parse().unwrap();
            let client = ModelClient::connect_with(&context(way), url).await.unwrap();
            assert_eq!(client.connection().route().transport, way.carrier());
            let answer = client.double(rows(count)).await.unwrap();
            return say("right", are_doubled(&answer, count));
        }
        let (server, batches, _) = serve(way).await;
        say("url", server.url());
        eventually("two calls", || waiting(&batches) == 2).await;
        say("gathering", 2);
        server.wait().await;
    });
}

async fn serve(way: Way) -> (Server, Batches, Held) {
    let held = Held {
        gate: Arc::new(Semaphore::new(0)),
        seen: Arc::default(),
    };
    let service = ModelService::new(held.clone());
    let batches = service.batches();
    let server = Server::builder().context(&context(way));
    let server = server.service(service).listen(way.url()).await.unwrap();
    (server, batches, held)
}

fn waiting(batches: &Batches) -> usize {
    batches.stats("double").unwrap().waiting
}

fn running(batches: &Batches) -> usize {
    batches.stats("double").unwrap().running
}

/// A client in a process of its own, with so many rows.
fn client(way: Way, server: &Server, count: u64) -> Child {
    let (way, url, count) = (way.name(), server.url().to_string(), count.to_string());
    let variables = [
        ("TEST_WAY", &*way),
        ("TEST_URL", &url),
        ("TEST_ROWS", &count),
    ];
    Child::start("batches", &variables)
}

#[test]
fn a_client_dies_while_its_call_waits_and_the_others_make_the_batch() {
    each_way(async |way| {
        let (server, batches, held) = serve(way).await;
        let mut dies = client(way, &server, 2);
        eventually("its call", || waiting(&batches) == 1).await;
        let two = client(way, &server, 2);
        eventually("a second call", || waiting(&batches) == 2).await;
        dies.kill();
        eventually("its leaving", || waiting(&batches) == 1).await;
        held.gate.add_permits(1);
        let four = client(way, &server, 4);
        assert_eq!([two.hear("right"), four.hear("right")], ["true", "true"]);
        assert_eq!(held.seen.load(Ordering::SeqCst), 6);
        let stats = batches.stats("double").unwrap();
        assert_eq!((stats.runs, stats.calls, stats.rows), (1, 2, 6));
        assert_eq!(server.shutdown().await, 0);
    });
}

#[test]
fn clients_die_while_their_batch_runs_and_it_goes_on_for_those_that_live() {
    each_way(async |way| {
        let (server, batches, held) = serve(way).await;
        let mut dies = client(way, &server, 2);
        let lives = client(way, &server, 4);
        eventually("the run", || running(&batches) == 1).await;
        dies.kill();
        eventually("its leaving", || server.calls_in_flight() == 1).await;
        held.gate.add_permits(1);
        assert_eq!(lives.hear("right"), "true");

        // When all have died, nobody is left to run for.
        let mut all = [2, 4].map(|count| client(way, &server, count));
        eventually("the next run", || running(&batches) == 1).await;
        all.iter_mut().for_each(Child::kill);
        eventually("its end", || running(&batches) == 0).await;
        assert_eq!(held.seen.load(Ordering::SeqCst), 66);
        assert_eq!(server.shutdown().await, 0);
    });
}

#[test]
fn the_server_dies_and_every_call_that_waits_hears_of_it() {
    each_way(async |way| {
        let name = way.name();
        let mut child = Child::start("batches", &[("TEST_WAY", &*name)]);
        let url = child.hear("url");
        let mut calls = Vec::new();
        for _ in 0..2 {
            let client = ModelClient::connect_with(&context(way), &url).await;
            calls.push(tokio::spawn(client.unwrap().double(rows(1))));
        }
        child.hear("gathering");
        child.kill();
        for call in calls {
            let error = soon("an error", call).await.unwrap().unwrap_err();
            let lost = CallError::may_have_run(&error);
            assert!(
                matches!(error, CallError::Connection { .. }) && lost,
                "{error:?}"
            );
        }
    });
}
