//! Handlers that panic, block, or call back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tensorpipe::Context;
use tensorpipe_rpc::{CallError, Server, ServerLimits, tensor_service};

use super::lab::{in_time, over_each, serve, tcp, tensor, until};

#[tokio::test]
async fn a_panic_is_its_calls_alone_wherever_it_happens() {
    over_each(async |both| {
        for len in [10, 10, 1 << 20] {
            match both.client.panic(tensor(len, 1)).await {
                Err(error @ CallError::Panicked { .. }) => {
                    let said = error.to_string();
                    let wanted = format!("`Lab::panic` panicked: with {len} bytes");
                    assert_eq!(said, wanted);
                }
                other => panic!("{other:?}"),
            }
        }
        // While the handler's locals are dropped: on its own task, and then on the connection's.
        for _ in 0..4 {
            match both.client.panic_when_dropped(false).await {
                Err(CallError::Panicked { message: text, .. }) => {
                    assert_eq!(&*text, "while it was dropped")
                }
                other => panic!("{other:?}"),
            }
        }
        // While it is dropped because of a cancel, or of its deadline.
        let call = both.client.panic_when_dropped(true);
        until(|| both.at_it() == 1).await;
        drop(call);
        until(|| both.at_it() == 0).await;
        let hurried = both.client.with_deadline(Duration::from_millis(30));
        let error = hurried.panic_when_dropped(true).await.unwrap_err();
        assert!(matches!(error, CallError::Deadline { .. }), "{error}");
        both.is_clean().await;
    })
    .await;
}

#[tensor_service]
trait Odd {
    /// Calls this very service over the connection of its own.
    async fn factorial(&self, n: u64) -> u64;
    async fn block(&self, ms: u64) -> ();
    async fn block_until_told(&self) -> ();
    async fn quick(&self) -> ();
}

#[derive(Default)]
struct Oddity {
    own: OnceLock<OddClient>,
    is_blocked: AtomicBool,
    is_told: AtomicBool,
}

impl Odd for Arc<Oddity> {
    async fn factorial(&self, n: u64) -> u64 {
        if n == 0 {
            return 1;
        }
        n * self.own.get().unwrap().factorial(n - 1).await.unwrap()
    }

    async fn block(&self, ms: u64) {
        std::thread::sleep(Duration::from_millis(ms));
    }

    async fn block_until_told(&self) {
        self.is_blocked.store(true, Ordering::SeqCst);
        let begun = Instant::now();
        while !self.is_told.load(Ordering::SeqCst) && begun.elapsed() < Duration::from_secs(120) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    async fn quick(&self) {}
}

async fn odd(context: &Context) -> (OddClient, Server, Arc<Oddity>) {
    let oddity = Arc::<Oddity>::default();
    let server = serve(context, OddService::new(oddity.clone())).await;
    let client = OddClient::connect_with(context, server.url())
        .await
        .unwrap();
    let _ = oddity.own.set(client.clone());
    (client, server, oddity)
}

#[tokio::test]
async fn calls_made_inside_a_handler_on_the_connection_that_it_came_from() {
    for context in [tcp, Context::builder] {
        let (client, server, _) = odd(&context().build().unwrap()).await;
        for _ in 0..20 {
            assert_eq!(client.factorial(12).await.unwrap(), 479_001_600);
        }
        let calls: Vec<_> = (0..50).map(|i| client.factorial(i % 15)).collect();
        for call in calls {
            assert!(call.await.unwrap() >= 1);
        }
        until(|| server.calls_in_flight() == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_handler_that_blocks_holds_up_nobody_else() {
    for context in [tcp, Context::builder] {
        let (client, _server, oddity) = odd(&context().build().unwrap()).await;
        client.quick().await.unwrap();
        let blocked = client.block_until_told();
        until(|| oddity.is_blocked.load(Ordering::SeqCst)).await;
        in_time(async {
            for _ in 0..50 {
                client.quick().await.unwrap();
            }
        })
        .await;
        oddity.is_told.store(true, Ordering::SeqCst);
        blocked.await.unwrap();
    }
}

/// On the connection's task, where a method runs that has been quick.
#[tokio::test]
async fn what_a_handler_returns_when_its_time_is_up_is_no_result() {
    let mut limits = ServerLimits::default();
    limits.longest_call = Duration::from_millis(500);
    let context = tcp().build().unwrap();
    let server = Server::builder().context(&context).limits(limits);
    let server = server.service(OddService::new(Arc::default()));
    let server = server.listen("tcp://127.0.0.1:0").await.unwrap();
    let client = OddClient::connect_with(&context, server.url());
    let client = client.await.unwrap();
    for _ in 0..50 {
        client.block(0).await.unwrap();
    }
    let late = client.block(600).await;
    assert!(matches!(late, Err(CallError::Deadline { .. })), "{late:?}");
}
