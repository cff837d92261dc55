//! Arguments that take far more memory than their bytes, or long to decode.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tensorpipe::{Context, ContextBuilder, DType, Limits, Tensor};
use tensorpipe_rpc::{CallContext, CallError, Server, tensor_service};
use tokio::sync::Semaphore;

use super::lab::{shm, tcp, until};

/// The thread that decoded it.
struct DecodedOn(ThreadId);

impl Serialize for DecodedOn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

impl<'de> Deserialize<'de> for DecodedOn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <()>::deserialize(deserializer)?;
        Ok(Self(thread::current().id()))
    }
}

/// How many are being decoded, beside the thread of the test.
static DECODING: AtomicUsize = AtomicUsize::new(0);

/// The most at once.
static MOST: AtomicUsize = AtomicUsize::new(0);

struct Slow;

impl Serialize for Slow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

impl<'de> Deserialize<'de> for Slow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <()>::deserialize(deserializer)?;
        if thread::current().name() == Some("tp-work") {
            MOST.fetch_max(
                DECODING.fetch_add(1, Ordering::SeqCst) + 1,
                Ordering::SeqCst,
            );
            thread::sleep(Duration::from_millis(20));
            DECODING.fetch_sub(1, Ordering::SeqCst);
        }
        Ok(Self)
    }
}

/// Takes long enough for many others to come, and is not counted.
#[derive(Serialize)]
struct Pause;

impl<'de> Deserialize<'de> for Pause {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <()>::deserialize(deserializer)?;
        thread::sleep(Duration::from_millis(200));
        Ok(Self)
    }
}

#[tensor_service]
trait Keeps {
    /// Keeps its argument until it may end.
    async fn keep(&self, words: Vec<String>) -> u64;
    async fn count(&self, words: Vec<String>) -> u64;
    /// Keeps its context for ever.
    async fn keep_context(&self, words: Vec<String>, cx: &CallContext) -> u64;
    async fn slow(&self, slow: Slow, beside: Vec<u8>) -> ();
    async fn pause(&self, pause: Pause, beside: String) -> ();
    /// Blocks its thread, if it is to, until it may end.
    async fn block(&self, blocks: bool, beside: Vec<u8>) -> ();
    #[rpc(batch(max_size = 8, max_wait = "1ms"))]
    async fn joined(&self, words: Vec<String>, rows: Tensor) -> Tensor;
    /// Whether it was decoded on the thread of this test.
    async fn is_decoded_here(&self, on: DecodedOn, beside: Vec<u8>) -> bool;
}

struct Keeper {
    may_end: Arc<Semaphore>,
    here: ThreadId,
    contexts: Mutex<Vec<CallContext>>,
}

impl Keeps for Keeper {
    async fn keep(&self, words: Vec<String>) -> u64 {
        self.may_end.acquire().await.unwrap().forget();
        words.len() as u64
    }

    async fn count(&self, words: Vec<String>) -> u64 {
        words.len() as u64
    }

    async fn keep_context(&self, words: Vec<String>, cx: &CallContext) -> u64 {
        self.contexts.lock().unwrap().push(cx.clone());
        words.len() as u64
    }

    async fn slow(&self, _slow: Slow, beside: Vec<u8>) {
        drop(beside);
    }

    async fn pause(&self, _pause: Pause, beside: String) {
        drop(beside);
    }

    async fn block(&self, blocks: bool, _beside: Vec<u8>) {
        let until = Instant::now() + Duration::from_secs(60);
        while blocks && self.may_end.available_permits() == 0 && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
    }

    async fn joined(&self, _words: Vec<String>, rows: Tensor) -> Tensor {
        rows
    }

    async fn is_decoded_here(&self, on: DecodedOn, beside: Vec<u8>) -> bool {
        drop(beside);
        on.0 == self.here
    }
}

async fn keeper(receive_budget: u64) -> (Server, Arc<Semaphore>, KeepsClient) {
    keeper_over(tcp, receive_budget).await
}

async fn keeper_over(
    context: fn() -> ContextBuilder,
    receive_budget: u64,
) -> (Server, Arc<Semaphore>, KeepsClient) {
    let mut limits = Limits::default();
    limits.receive_budget = receive_budget;
    let may_end = Arc::new(Semaphore::new(0));
    let keeper = Keeper {
        may_end: may_end.clone(),
        here: thread::current().id(),
        contexts: Mutex::default(),
    };
    let far = context().limits(limits).build().unwrap();
    let server = Server::builder().context(&far);
    let server = server.service(KeepsService::new(keeper));
    let server = server.listen("tcp://127.0.0.1:0").await.unwrap();
    let near = context().build().unwrap();
    let client = KeepsClient::connect_with(&near, server.url()).await;
    (server, may_end, client.unwrap())
}

/// A string without a character takes a byte on the wire, and 24 in memory.
#[tokio::test]
async fn what_decoding_makes_of_a_call_counts_until_the_call_ends() {
    const WORDS: usize = 400_000;
    let (server, may_end, client) = keeper(32 << 20).await;
    let words = || vec![String::new(); WORDS];
    for _ in 0..2 {
        let first = tokio::spawn(client.keep(words()));
        until(|| server.calls_in_flight() == 1).await;
        let refused = client.keep(words()).await.unwrap_err();
        assert!(matches!(refused, CallError::Overloaded(_)), "{refused}");
        assert!(refused.to_string().contains("receive_budget"), "{refused}");
        // What takes little is not counted.
        let small = tokio::spawn(client.keep(vec![String::new(); 1000]));
        until(|| server.calls_in_flight() == 2).await;
        may_end.add_permits(2);
        assert_eq!(first.await.unwrap().unwrap(), WORDS as u64);
        assert_eq!(small.await.unwrap().unwrap(), 1000);
    }
}

/// Other connections of the thread would wait for it.
#[tokio::test]
async fn a_large_body_is_decoded_on_another_thread() {
    let (_server, _, client) = keeper(Limits::default().receive_budget).await;
    for (bytes, here) in [(100, true), (2 << 20, false)] {
        let on = DecodedOn(thread::current().id());
        let is_here = client.is_decoded_here(on, vec![1; bytes]).await;
        assert_eq!(is_here.unwrap(), here, "{bytes}");
    }
}

#[tokio::test]
async fn a_context_that_outlives_its_call_keeps_nothing_counted() {
    let (_server, _, client) = keeper(32 << 20).await;
    for _ in 0..3 {
        let words = vec![String::new(); 400_000];
        assert_eq!(client.keep_context(words).await.unwrap(), 400_000);
    }
}

/// Half of the budget is 22 MiB.
#[tokio::test]
async fn arguments_take_half_of_the_budget_and_no_more() {
    let (_server, _, client) = keeper(44 << 20).await;
    let most = vec![String::new(); 850_000];
    assert_eq!(client.count(most).await.unwrap(), 850_000);
    let refused = client
        .count(vec![String::new(); 1_040_000])
        .await
        .unwrap_err();
    // Nobody else has any: to call again is of no use.
    assert!(matches!(refused, CallError::BadArguments(_)), "{refused}");
    assert!(refused.to_string().contains("receive_budget"), "{refused}");
}

/// The call's rows wait for its batch alone, and take more than half.
#[tokio::test]
async fn arguments_do_not_count_as_what_waits() {
    let (_server, _, client) = keeper(32 << 20).await;
    for words in [0, 10_000] {
        let rows = Tensor::zeros(DType::U8, [1, 20 << 20]).unwrap();
        let joined = client.joined(vec![String::new(); words], rows).await;
        joined.unwrap();
    }
}

#[tokio::test]
async fn a_connection_has_one_large_body_decoded_at_a_time() {
    let (server, _, client) = keeper(Limits::default().receive_budget).await;
    let beside = || vec![1; (1 << 20) + 9];
    let late = client.with_deadline(Duration::from_millis(1));
    let late = tokio::spawn(late.slow(Slow, beside()));
    let calls = [(); 20].map(|()| tokio::spawn(client.slow(Slow, beside())));
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let late = late.await.unwrap();
    assert!(matches!(late, Err(CallError::Deadline { .. })), "{late:?}");
    assert_eq!(MOST.load(Ordering::SeqCst), 1);
    until(|| server.calls_in_flight() == 0).await;
}

/// Where it comes in one piece, or in memory of its caller's that is copied, nothing counted it on the way.
#[tokio::test]
async fn large_bodies_that_wait_to_be_decoded_count_however_they_came() {
    for context in [tcp, shm, Context::builder] {
        let (server, _, client) = keeper_over(context, 24 << 20).await;
        let text = "x".repeat(4 << 20);
        let calls = [(); 20].map(|()| tokio::spawn(client.pause(Pause, &text)));
        let mut refused = 0;
        for call in calls {
            match call.await.unwrap() {
                Err(CallError::Overloaded(_)) => refused += 1,
                answered => answered.unwrap(),
            }
        }
        assert!((1..20).contains(&refused), "{refused}");
        until(|| server.calls_in_flight() == 0).await;
    }
}

/// On a busy machine the method may count as long, and block a worker of the runtime instead.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_handler_that_blocks_keeps_no_other_large_body_from_being_decoded() {
    let (server, may_end, client) = keeper(Limits::default().receive_budget).await;
    // Until it is polled where it is made.
    for _ in 0..200 {
        client.block(false, Vec::new()).await.unwrap();
    }
    let beside = || vec![1; (1 << 20) + 9];
    let blocks = tokio::spawn(client.block(true, beside()));
    until(|| server.calls_in_flight() == 1).await;
    let client = client.with_deadline(Duration::from_secs(20));
    let other = client.block(false, beside()).await;
    may_end.add_permits(1);
    other.unwrap();
    blocks.await.unwrap().unwrap();
}
