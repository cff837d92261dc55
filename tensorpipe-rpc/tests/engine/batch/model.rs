//! A service with one method for each way to gather, and several clients of it, each with a connection of its own.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorpipe::{Context, ContextBuilder, Tensor};
use tensorpipe_rpc::batch::{BatchStats, Batches, Cut, Rows};
use tensorpipe_rpc::{CallContext, Remote, Server, ServerLimits, tensor_service};
use tokio::sync::Semaphore;

use crate::lab::{AtIt, in_each, until};

#[tensor_service]
pub(crate) trait Model {
    /// `x` times `factor`. Waits so long that only a full batch runs while a test looks.
    #[rpc(batch(max_size = 8, max_wait = "1000s"))]
    async fn scale(&self, x: Tensor, factor: f32, cx: &CallContext) -> Result<Tensor, String>;
    /// The same, and it may run again.
    #[rpc(idempotent, batch(max_size = 8, max_wait = "1000s"))]
    async fn careful(&self, x: Tensor, factor: f32, cx: &CallContext) -> Result<Tensor, String>;
    /// The same two after no time at all or a little, as they come.
    #[rpc(batch(max_size = 8, max_wait = "1ms", concurrency = 2))]
    async fn rough(&self, x: Tensor, factor: f32, cx: &CallContext) -> Result<Tensor, String>;
    #[rpc(idempotent, batch(max_size = 8, max_wait = "1ms", concurrency = 2))]
    async fn smooth(&self, x: Tensor, factor: f32, cx: &CallContext) -> Result<Tensor, String>;
    /// Two of each; several tensors in and out.
    #[rpc(batch(max_size = 8, max_wait = "1000s"))]
    async fn label(&self, name: String, x: Tensor, mask: Tensor) -> Labelled;
    /// Holds until the test lets it go on. Never waits when nothing runs.
    #[rpc(batch(max_size = 8, max_wait = "0s"))]
    async fn held(&self, x: Tensor) -> Tensor;
    /// The same in work of its own, which looks whether somebody waits.
    #[rpc(batch(max_size = 2, max_wait = "1000s"))]
    async fn work(&self, x: Tensor, cx: CallContext) -> ();
    #[rpc(batch(max_size = 16, max_wait = "5s"))]
    async fn slow(&self, x: Tensor) -> (Tensor, Option<Tensor>);
    /// Two at once.
    #[rpc(batch(max_size = 1, max_wait = "0s", concurrency = 2))]
    async fn two(&self, x: Tensor) -> Vec<Tensor>;
    /// By the value of what may hide a tensor or a reference.
    #[rpc(batch(max_size = 1, max_wait = "0s"))]
    async fn hidden(&self, x: Tensor, hidden: Hidden) -> Tensor;
    /// Returns what hides a reference.
    #[rpc(batch(max_size = 2, max_wait = "1000s"))]
    async fn reveal(&self, x: Tensor) -> Hidden;
    /// With an argument that panics when it is dropped.
    #[rpc(batch(max_size = 8, max_wait = "1000s"))]
    async fn armed(&self, x: Tensor, bomb: Bomb) -> Tensor;
    async fn keep(&self) -> Remote<u64>;
    async fn plain(&self, x: Tensor) -> Tensor;
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Labelled {
    pub(crate) sums: Tensor,
    pub(crate) labels: Vec<String>,
    pub(crate) name: String,
}

impl Rows for Labelled {
    fn cut(&self, cut: &mut Cut) -> Self {
        Self {
            sums: cut.tensor(&self.sums),
            labels: cut.items(&self.labels),
            name: self.name.clone(),
        }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Hidden {
    pub(crate) tensor: Option<Tensor>,
    pub(crate) number: Option<Remote<u64>>,
}

impl Rows for Hidden {
    fn cut(&self, _: &mut Cut) -> Self {
        self.clone()
    }
}

/// Panics when it is dropped, once its method has run on this thread.
#[derive(Serialize, Deserialize)]
pub(crate) struct Bomb;

thread_local! {
    static ARMED: Cell<bool> = const { Cell::new(false) };
}

impl Bomb {
    pub(crate) fn disarm() {
        ARMED.set(false);
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(!ARMED.get(), "an argument panics when it is dropped");
    }
}

/// In `scale`, the value of a row that makes the whole batch fail.
pub(crate) const ERROR: f32 = -1.0;
pub(crate) const PANIC: f32 = -2.0;
pub(crate) const SHORT: f32 = -3.0;
pub(crate) const SCALAR: f32 = -4.0;

/// The shape of a batch, and who called it.
type Seen = (Vec<u64>, String);

#[derive(Clone)]
pub(crate) struct Machine {
    /// The batches of `scale`.
    pub(crate) runs: Arc<Mutex<Vec<Seen>>>,
    /// Handlers of `held`, `two` and `work` that are at it.
    pub(crate) at_it: Arc<AtomicUsize>,
    /// What lets `held` and `two` go on.
    pub(crate) gate: Arc<Semaphore>,
    pub(crate) left: Arc<Mutex<Vec<Duration>>>,
}

impl Model for Machine {
    async fn scale(&self, mut x: Tensor, factor: f32, cx: &CallContext) -> Result<Tensor, String> {
        let run = (x.shape().to_vec(), cx.peer().to_owned());
        self.runs.lock().unwrap().push(run);
        self.left.lock().unwrap().push(cx.time_left().unwrap());
        assert_eq!(CallContext::current().unwrap().deadline(), cx.deadline());
        let rows = x.shape()[0];
        if let Ok(values) = x.as_slice::<f32>() {
            if values.contains(&ERROR) {
                return Err("no such row".to_owned());
            }
            assert!(!values.contains(&PANIC), "over {rows} rows");
            if values.contains(&SHORT) {
                return Ok(x.rows(1..rows).unwrap());
            }
            if values.contains(&SCALAR) {
                return Ok(Tensor::scalar(1f32));
            }
            let values = x.make_mut::<f32>().unwrap();
            values.iter_mut().for_each(|value| *value *= factor);
        }
        Ok(x)
    }

    async fn careful(&self, x: Tensor, factor: f32, cx: &CallContext) -> Result<Tensor, String> {
        self.scale(x, factor, cx).await
    }

    async fn rough(&self, x: Tensor, factor: f32, cx: &CallContext) -> Result<Tensor, String> {
        let _at_it = AtIt::new(&self.at_it);
        for _ in 0..x.shape()[0] % 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.scale(x, factor, cx).await
    }

    async fn smooth(&self, x: Tensor, factor: f32, cx: &CallContext) -> Result<Tensor, String> {
        self.rough(x, factor, cx).await
    }

    async fn label(&self, name: String, x: Tensor, mask: Tensor) -> Labelled {
        let rows = x.shape()[0] as usize;
        let sums: Vec<f32> = x
            .as_slice::<f32>()
            .unwrap()
            .iter()
            .zip(mask.as_slice::<u8>().unwrap())
            .map(|(x, mask)| x * f32::from(*mask))
            .collect();
        Labelled {
            labels: sums.iter().map(|sum| format!("{name} {sum}")).collect(),
            sums: Tensor::from_vec(sums, [rows as u64]).unwrap(),
            name,
        }
    }

    async fn held(&self, x: Tensor) -> Tensor {
        let _at_it = AtIt::new(&self.at_it);
        self.gate.acquire().await.unwrap().forget();
        x
    }

    async fn work(&self, _: Tensor, cx: CallContext) {
        let at_it = AtIt::new(&self.at_it);
        let work = tokio::task::spawn_blocking(move || {
            let _at_it = at_it;
            while !cx.is_cancelled() {
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        work.await.unwrap();
    }

    async fn slow(&self, x: Tensor) -> (Tensor, Option<Tensor>) {
        tokio::time::sleep(Duration::from_millis(2)).await;
        (x.clone(), Some(x))
    }

    async fn two(&self, x: Tensor) -> Vec<Tensor> {
        vec![self.held(x).await]
    }

    async fn hidden(&self, x: Tensor, _: Hidden) -> Tensor {
        x
    }

    async fn reveal(&self, _: Tensor) -> Hidden {
        let number = Some(Remote::new(7));
        Hidden {
            number,
            ..Hidden::default()
        }
    }

    async fn armed(&self, x: Tensor, bomb: Bomb) -> Tensor {
        drop(bomb);
        ARMED.set(true);
        x
    }

    async fn keep(&self) -> Remote<u64> {
        Remote::new(7)
    }

    async fn plain(&self, x: Tensor) -> Tensor {
        x
    }
}

pub(crate) struct Models {
    pub(crate) clients: Vec<ModelClient>,
    pub(crate) server: Server,
    pub(crate) machine: Machine,
    pub(crate) batches: Batches,
    contexts: Vec<Context>,
}

async fn models(context: fn() -> ContextBuilder, clients: usize, limits: ServerLimits) -> Models {
    let machine = Machine {
        runs: Arc::default(),
        at_it: Arc::default(),
        gate: Arc::new(Semaphore::new(0)),
        left: Arc::default(),
    };
    let far = context().name("far").build().unwrap();
    let service = ModelService::new(machine.clone());
    let batches = service.batches();
    let server = Server::builder().context(&far).limits(limits);
    let server = server.service(service).listen("tcp://127.0.0.1:0");
    let server = server.await.unwrap();
    let mut contexts = vec![far];
    let mut connected = Vec::new();
    for number in 0..clients {
        let near = context().name(format!("near {number}")).build().unwrap();
        let client = ModelClient::connect_with(&near, server.url());
        connected.push(client.await.unwrap());
        contexts.push(near);
    }
    Models {
        clients: connected,
        server,
        machine,
        batches,
        contexts,
    }
}

pub(crate) async fn over_each_with(
    clients: usize,
    limits: ServerLimits,
    test: impl AsyncFn(Models),
) {
    in_each(async |context| test(models(context, clients, limits.clone()).await).await).await;
}

/// Runs a test with so many clients, over what goes through the kernel, through shared memory, and inside the process.
pub(crate) async fn over_each(clients: usize, test: impl AsyncFn(Models)) {
    over_each_with(clients, ServerLimits::default(), test).await;
}

impl Models {
    pub(crate) fn stats(&self, method: &str) -> BatchStats {
        self.batches.stats(method).unwrap()
    }

    /// So many calls of a method wait for their batch.
    pub(crate) async fn waiting(&self, method: &str, calls: usize) {
        until(|| self.stats(method).waiting == calls).await;
    }

    pub(crate) fn at_it(&self) -> usize {
        self.machine.at_it.load(Ordering::SeqCst)
    }

    /// The shapes that `scale` was given.
    pub(crate) fn shapes(&self) -> Vec<Vec<u64>> {
        let runs = self.machine.runs.lock().unwrap();
        runs.iter().map(|(shape, _)| shape.clone()).collect()
    }

    /// Nothing waits, runs, or is held, and the connections go on.
    pub(crate) async fn is_clean(&self) {
        until(|| self.at_it() == 0 && self.server.calls_in_flight() == 0).await;
        for method in [
            "scale", "careful", "rough", "smooth", "label", "held", "work", "slow", "two",
            "hidden", "armed",
        ] {
            // A batch is over a moment after the work that it waited for on another thread.
            let is_still = || {
                let stats = self.stats(method);
                (stats.waiting, stats.running) == (0, 0)
            };
            until(is_still).await;
        }
        let held = |context: &Context| context.pool().stats().outstanding_bytes;
        until(|| self.contexts.iter().all(|context| held(context) == 0)).await;
        for client in &self.clients {
            let x = client.plain(rows(2, 5.0)).await.unwrap();
            assert_eq!(x.as_slice::<f32>().unwrap(), [5.0; 4]);
        }
    }
}

/// So many rows of two of this value.
pub(crate) fn rows(rows: u64, value: f32) -> Tensor {
    Tensor::from_vec(vec![value; 2 * rows as usize], [rows, 2]).unwrap()
}

/// Whether these are so many rows of this value.
pub(crate) fn are(x: &Tensor, count: u64, value: f32) -> bool {
    x.shape() == [count, 2] && x.as_slice::<f32>().unwrap().iter().all(|x| *x == value)
}
