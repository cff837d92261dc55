//! A greedy client must not hold up another client's small call. The tests count how many calls and bytes of the greedy client are handled
//! before the small call's handler runs.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt, stream};
use tensorpipe::{Context, ContextBuilder, DType, Pipe, Tensor};
use tensorpipe_rpc::{Streaming, tensor_service};

use super::lab::{serve, shm, tcp};

#[tensor_service]
trait Orders {
    async fn tick(&self) -> ();
    async fn upload(&self, tensor: Tensor) -> u64;
    async fn pour(&self, tensors: Streaming<Tensor>) -> u64;
    /// The call that is not to be held up: what of the other client's had been done when it ran.
    async fn small(&self) -> (u64, u64);
}

/// What has been done for the greedy client, seen from everywhere.
#[derive(Clone, Default)]
struct Done {
    /// Calls of it that were handled, or items that were taken.
    ticks: Arc<AtomicU64>,
    /// The server's end of its pipe.
    pipe: Arc<OnceLock<Pipe>>,
}

impl Done {
    fn now(&self) -> (u64, u64) {
        let bytes = self.pipe.get().map_or(0, |pipe| pipe.stats().bytes_in);
        (self.ticks.load(Ordering::SeqCst), bytes)
    }
}

impl Orders for Done {
    async fn tick(&self) {
        // Some work, so that it is the server that is behind.
        std::hint::black_box((0..2000u64).fold(0, |sum: u64, i| sum.wrapping_mul(31) ^ i));
        self.ticks.fetch_add(1, Ordering::SeqCst);
    }

    async fn upload(&self, tensor: Tensor) -> u64 {
        tensor.byte_len() as u64
    }

    async fn pour(&self, mut tensors: Streaming<Tensor>) -> u64 {
        let mut taken = 0;
        while let Some(Ok(_)) = tensors.next().await {
            self.ticks.fetch_add(1, Ordering::SeqCst);
            taken += 1;
        }
        taken
    }

    async fn small(&self) -> (u64, u64) {
        self.now()
    }
}

fn on_a_thread<T: Send + 'static>(
    work: impl AsyncFnOnce() -> T + Send + 'static,
) -> std::thread::JoinHandle<T> {
    std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(work())
    })
}

/// What the greedy client does, until it is over.
type Greed = fn(OrdersClient, Arc<AtomicBool>) -> Doing;
type Doing = Pin<Box<dyn Future<Output = ()>>>;

/// The greedy client's calls and bytes that were dealt with between a small call's leaving and its handler's run.
#[derive(Debug)]
struct Held {
    most: (u64, u64),
    mean: (u64, u64),
}

/// Server and clients are on a thread each, as processes of their own would be; each thread has a runtime of one thread, on
/// which nobody runs while another does.
async fn held_up(context: fn() -> ContextBuilder, greed: Greed) -> Held {
    let build = move || -> Context { context().build().unwrap() };
    let done = Done::default();
    let (tell, told) = mpsc::channel();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let (orders, pipe) = (done.clone(), done.pipe.clone());
    let serving = on_a_thread(async move || {
        let server = serve(&build(), OrdersService::new(orders)).await;
        tell.send(server.url().to_string()).unwrap();
        while server.pipes().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        pipe.set(server.pipes().remove(0)).unwrap();
        let _ = stopped.await;
    });
    let url = told.recv().unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let (there, until) = (url.clone(), over.clone());
    let greedy = on_a_thread(async move || {
        let client = OrdersClient::connect_with(&build(), there).await.unwrap();
        greed(client, until).await;
    });
    // It is at it.
    let begun = Instant::now();
    while done.now().1 < 1 << 20 {
        assert!(begun.elapsed() < Duration::from_secs(100));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let client = OrdersClient::connect_with(&build(), url).await.unwrap();
    let mut most = (0, 0);
    let mut sum = (0, 0);
    for _ in 0..CALLS {
        let call = client.small();
        // It has left.
        let sent = done.now();
        let ran = call.await.unwrap();
        let held = (ran.0.saturating_sub(sent.0), ran.1.saturating_sub(sent.1));
        most = (most.0.max(held.0), most.1.max(held.1));
        sum = (sum.0 + held.0, sum.1 + held.1);
    }
    over.store(true, Ordering::SeqCst);
    greedy.join().unwrap();
    drop(stop);
    serving.join().unwrap();
    Held {
        most,
        mean: (sum.0 / CALLS, sum.1 / CALLS),
    }
}

/// Small calls, one after another.
const CALLS: u64 = 200;

/// Calls that the greedy client has in flight.
const IN_FLIGHT: u64 = 1000;

/// How often the small call stands behind the greedy one's: until its socket is looked at, until its pipe's task runs, and, the
/// first time, until its handler's does. Each time no more is before it than was in flight, and what came in its stead: as much
/// again.
const WAITS: u64 = 3;
const BEHIND: u64 = 2 * IN_FLIGHT;

/// Bytes that may come in before the other client's call is seen and its handler runs. A busy pipe lets sockets have their turn
/// after a mebibyte, and moves two more at most before it asks whether it is time. Once the other pipe's socket was seen, its task
/// waits for one more turn of two. So does the handler's own the first time.
const TURNS: u64 = 8 << 20;

/// A thousand in flight at any time.
fn a_thousand_calls(client: OrdersClient, over: Arc<AtomicBool>) -> Doing {
    Box::pin(async move {
        let mut calls = FuturesUnordered::new();
        while !over.load(Ordering::SeqCst) {
            while calls.len() < IN_FLIGHT as usize {
                calls.push(client.tick());
            }
            calls.next().await.unwrap().unwrap();
        }
    })
}

/// 4 GiB, again and again.
fn an_upload(client: OrdersClient, over: Arc<AtomicBool>) -> Doing {
    Box::pin(async move {
        let large = Tensor::zeros(DType::U8, [4u64 << 30]).unwrap();
        let mut upload = client.upload(&large);
        while !over.load(Ordering::SeqCst) {
            tokio::select! {
                biased;
                ended = &mut upload => { ended.unwrap(); upload = client.upload(&large); }
                () = tokio::time::sleep(Duration::from_millis(5)) => {}
            }
        }
    })
}

/// Without end.
fn a_stream(client: OrdersClient, over: Arc<AtomicBool>) -> Doing {
    Box::pin(async move {
        let item = Tensor::zeros(DType::U8, [4096u64]).unwrap();
        let items = stream::repeat_with(move || item.clone())
            .take_while(move |_| std::future::ready(!over.load(Ordering::SeqCst)));
        client.pour(items).await.unwrap();
    })
}

/// Over what goes through the kernel, and through rings in shared memory.
const OVER: [fn() -> ContextBuilder; 2] = [tcp, shm];

#[tokio::test]
async fn a_thousand_calls_in_flight_come_before_another_clients_call_a_few_times_at_most() {
    for context in OVER {
        let held = held_up(context, a_thousand_calls).await;
        assert!(held.most.0 <= WAITS * BEHIND, "{held:?}");
        assert!(held.mean.0 <= BEHIND, "{held:?}");
    }
}

#[tokio::test]
async fn of_an_upload_without_end_some_mebibytes_come_before_another_clients_call() {
    for context in OVER {
        let held = held_up(context, an_upload).await;
        assert!(held.most.1 <= TURNS, "{held:?}");
    }
}

#[tokio::test]
async fn of_a_stream_without_end_some_mebibytes_come_before_another_clients_call() {
    for context in OVER {
        let held = held_up(context, a_stream).await;
        assert!(held.most.1 <= TURNS, "{held:?}");
    }
}
