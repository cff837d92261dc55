//! Calls that have arrived whole and wait for other calls or for their batch. Their memory counts until their handlers start.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tensorpipe::{Context, DType, Limits, Tensor, Timeouts};
use tensorpipe_rpc::{CallError, Remote, Server, tensor_service};
use tensorpipe_tests::{Child, resident, runtime, say, soon};
use tokio::sync::Notify;

use super::server::context;

const BUDGET: u64 = 64 << 20;

/// Beside what calls keep: one that is being refused, buffers, and what the allocator keeps.
const BESIDE: u64 = 40 << 20;

const TENSOR: usize = 4 << 20;

const CALLS: usize = 50;

/// More than a tensor takes, on a machine that is not too busy: on one that is, some more are on their way at once.
const PAUSE: Duration = Duration::from_millis(50);

#[tensor_service]
pub(crate) trait Waits {
    /// Its batch is full much later than anybody waits.
    #[rpc(batch(max_size = 1_000_000_000, max_wait = "600s"))]
    async fn gather(&self, rows: Tensor) -> Tensor;
    /// The result of a call that takes long.
    async fn late(&self, ms: u64) -> Remote<u64>;
    /// The result of a call that takes until somebody calls `let_go`.
    async fn held(&self) -> Remote<u64>;
    async fn let_go(&self);
    async fn after(&self, late: Remote<u64>, tensor: Tensor) -> u64;
    async fn now(&self, tensor: Tensor) -> u64;
}

#[derive(Default)]
struct Patient(Notify);

impl Waits for Patient {
    async fn gather(&self, rows: Tensor) -> Tensor {
        rows
    }

    async fn late(&self, ms: u64) -> Remote<u64> {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        Remote::unfetchable(ms)
    }

    async fn held(&self) -> Remote<u64> {
        self.0.notified().await;
        Remote::unfetchable(0)
    }

    async fn let_go(&self) {
        self.0.notify_one();
    }

    async fn after(&self, _: Remote<u64>, tensor: Tensor) -> u64 {
        tensor.byte_len() as u64
    }

    async fn now(&self, tensor: Tensor) -> u64 {
        tensor.byte_len() as u64
    }
}

/// The server.
pub(crate) fn play() {
    runtime().block_on(async {
        let mut limits = Limits::default();
        limits.receive_budget = BUDGET;
        let context = context(Timeouts::default(), limits);
        let server = Server::builder()
            .context(&context)
            .service(WaitsService::new(Patient::default()))
            .listen("tcp://127.0.0.1:0")
            .await
            .unwrap();
        say("url", server.url());
        server.wait().await;
    });
}

fn tensor() -> Tensor {
    Tensor::zeros(DType::U8, [TENSOR as u64]).unwrap()
}

/// Fills the server with calls that wait; why others are refused.
async fn fill<T>(
    child: &Child,
    client: &WaitsClient,
    call: impl AsyncFn() -> Result<T, CallError>,
) -> Vec<CallError> {
    soon("a call", client.now(tensor())).await.unwrap();
    let before = resident(child.id());
    let (mut calls, mut refused) = (FuturesUnordered::new(), Vec::new());
    // One after another: each is there before the next one is announced. Those that are refused end, the others do not.
    for _ in 0..CALLS {
        calls.push(call());
        while let Ok(ended) = tokio::time::timeout(PAUSE, calls.next()).await {
            let Some(ended) = ended else { break };
            refused.extend(ended.err());
        }
    }
    let grown = resident(child.id()).saturating_sub(before);
    println!("{} wait, {} MiB more", calls.len(), grown >> 20);
    assert!(grown <= BUDGET / 2 + BESIDE, "{grown}");
    // Those that are refused are many, those that wait as many as there is room for.
    let fit = (BUDGET / 2) as usize / TENSOR;
    while calls.len() > fit {
        // On a busy machine the last of them have not heard yet.
        let ended = soon("a refusal", calls.next()).await.unwrap();
        refused.extend(ended.err());
    }
    assert!((fit / 2..=fit).contains(&calls.len()), "{}", calls.len());
    // What comes finds room.
    let len = soon("a call", client.now(tensor())).await.unwrap();
    assert_eq!(len, TENSOR as u64);
    refused
}

fn is_refused(error: &CallError) {
    assert!(matches!(error, CallError::Overloaded(_)), "{error:?}");
    assert!(!error.may_have_run());
    assert!(error.to_string().contains("receive_budget"), "{error}");
}

fn story(test: impl AsyncFnOnce(Child, WaitsClient)) {
    runtime().block_on(async {
        let child = Child::start("waiting", &[]);
        let context: Context = context(Timeouts::default(), Limits::default());
        let client = WaitsClient::connect_with(&context, child.hear("url")).await;
        test(child, client.unwrap()).await;
    });
}

#[test]
fn calls_that_wait_for_their_batch_keep_half_of_the_budget() {
    story(async |child, client| {
        let tensor = tensor();
        let refused = fill(&child, &client, async || client.gather(&tensor).await).await;
        refused.iter().for_each(is_refused);
    });
}

#[test]
fn calls_that_wait_for_others_keep_half_of_the_budget_and_run_when_those_have_ended() {
    story(async |child, client| {
        let tensor = tensor();
        let late = client.late(600_000);
        let refused = fill(&child, &client, async || client.after(&late, &tensor).await).await;
        refused.iter().for_each(is_refused);
        drop(late);
        // Those that are taken run.
        let held = client.held();
        let calls = (0..CALLS).map(|_| client.after(&held, &tensor));
        let mut calls: FuturesUnordered<_> = calls.collect();
        while calls.len() > BUDGET as usize / 2 / TENSOR {
            let ended = soon("a refusal", calls.next()).await.unwrap();
            is_refused(&ended.unwrap_err());
        }
        client.let_go().await.unwrap();
        let ended = soon("the others", calls.collect::<Vec<_>>()).await;
        let ran = ended.iter().filter(|call| call.is_ok()).count();
        println!("{ran} of {CALLS} ran");
        assert!(ran >= 4, "{ran}");
        for call in ended {
            match call {
                Ok(len) => assert_eq!(len, TENSOR as u64),
                Err(error) => is_refused(&error),
            }
        }
        // And there is room again.
        let late = client.late(1);
        let len = soon("one more", client.after(&late, &tensor)).await;
        assert_eq!(len.unwrap(), TENSOR as u64);
    });
}
