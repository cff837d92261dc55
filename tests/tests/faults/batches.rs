//! Several client processes of one batched method: one of them dies, is late, leaves, or exceeds a limit. Or the server dies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tensorpipe::Tensor;
use tensorpipe_rpc::batch::Batches;
use tensorpipe_rpc::{CallError, Server, ServerLimits, tensor_service};
use tensorpipe_tests::{Child, eventually, runtime, say, soon};
use tokio::sync::Semaphore;

use super::scene::{Way, context, each_way};

#[tensor_service]
trait Model {
    /// Twice each row, as soon as there are six and the test allows it.
    #[rpc(batch(max_size = 6, max_wait = "1000s"))]
    async fn double(&self, rows: Tensor) -> Result<Tensor, String>;
    /// Waits until a batch has begun.
    async fn begun(&self);
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

    async fn begun(&self) {
        while self.seen.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
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
            return call(&client, count, &told("TEST_DOES")).await;
        }
        let (server, batches, _) = serve(way).await;
        say("url", server.url());
        eventually("two calls", || waiting(&batches) == 2).await;
        say("gathering", 2);
        server.wait().await;
    });
}

/// What a client does with its call.
async fn call(client: &ModelClient, count: u64, does: &str) {
    let waits = match does {
        "is late" => client
            .with_deadline(Duration::from_millis(200))
            .double(rows(count)),
        _ => client.double(rows(count)),
    };
    match does {
        "waits" => {}
        "is late" => {
            let error = waits.await.unwrap_err();
            assert!(matches!(error, CallError::Deadline { .. }), "{error:?}");
            return say("late", error);
        }
        "leaves" => {
            client.begun().await.unwrap();
            drop(waits);
            say("left", count);
            // Its process, and its connection, stay.
            client.connection().pipe().ended().await;
            return;
        }
        "asks twice" => {
            let error = client.double(rows(1)).await.unwrap_err();
            assert!(matches!(error, CallError::Overloaded(_)), "{error:?}");
            say("refused", error);
        }
        other => panic!("no such thing as {other}"),
    }
    say("right", are_doubled(&waits.await.unwrap(), count));
}

async fn serve(way: Way) -> (Server, Batches, Held) {
    serve_within(way, ServerLimits::default()).await
}

async fn serve_within(way: Way, limits: ServerLimits) -> (Server, Batches, Held) {
    let held = Held {
        gate: Arc::new(Semaphore::new(0)),
        seen: Arc::default(),
    };
    let service = ModelService::new(held.clone());
    let batches = service.batches();
    let server = Server::builder().context(&context(way)).limits(limits);
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
    client_that("waits", way, server, count)
}

fn client_that(does: &str, way: Way, server: &Server, count: u64) -> Child {
    let (way, url, count) = (way.name(), server.url().to_string(), count.to_string());
    let variables = [
        ("TEST_WAY", &*way),
        ("TEST_URL", &url),
        ("TEST_ROWS", &count),
        ("TEST_DOES", does),
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
fn a_client_whose_time_is_short_has_its_batch_run_early_and_is_late_alone() {
    each_way(async |way| {
        let (server, batches, held) = serve(way).await;
        let late = client_that("is late", way, &server, 1);
        eventually("a run of one row", || running(&batches) == 1).await;
        late.hear("late");
        eventually("its end, since all have gone", || running(&batches) == 0).await;
        let all = [2, 4].map(|count| client(way, &server, count));
        held.gate.add_permits(1);
        assert_eq!(all.map(|one| one.hear("right")), ["true", "true"]);
        assert_eq!(held.seen.load(Ordering::SeqCst), 16);
        assert_eq!(server.shutdown().await, 0);
    });
}

#[test]
fn clients_that_leave_or_are_late_while_their_batch_runs_disturb_nobody() {
    each_way(async |way| {
        let (server, batches, held) = serve(way).await;
        let stays = client(way, &server, 3);
        let leaves = client_that("leaves", way, &server, 2);
        eventually("two calls", || waiting(&batches) == 2).await;
        let late = client_that("is late", way, &server, 1);
        late.hear("late");
        leaves.hear("left");
        eventually("their leaving", || server.calls_in_flight() == 1).await;
        assert_eq!(running(&batches), 1);
        held.gate.add_permits(1);
        assert_eq!(stays.hear("right"), "true");
        assert_eq!(held.seen.load(Ordering::SeqCst), 6);
        assert_eq!(server.shutdown().await, 0);
    });
}

#[test]
fn a_call_too_many_is_refused_at_once_and_is_in_no_batch() {
    each_way(async |way| {
        let mut limits = ServerLimits::default();
        limits.calls_per_connection = 1;
        let (server, _batches, held) = serve_within(way, limits).await;
        held.gate.add_permits(1);
        let twice = client_that("asks twice", way, &server, 2);
        let refused = twice.hear("refused");
        assert!(refused.contains("the limit"), "{refused}");
        let four = client(way, &server, 4);
        assert_eq!([twice.hear("right"), four.hear("right")], ["true", "true"]);
        assert_eq!(held.seen.load(Ordering::SeqCst), 6);
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
