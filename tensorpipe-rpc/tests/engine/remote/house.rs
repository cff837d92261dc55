//! A service that returns references to values that stay at the server, and counts the values that are held.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::{Stream, stream};
use serde::{Deserialize, Serialize};
use tensorpipe::{Context, Tensor};
use tensorpipe_rpc::{CallContext, Remote, Server, ServerLimits, Streaming, tensor_service};
use tokio::sync::Semaphore;

use crate::lab::{AtIt, in_each, until};

/// What does not travel, and is counted.
pub(super) struct Cache {
    steps: u64,
    _held: AtIt,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Pair {
    pub(super) left: Remote<u64>,
    pub(super) right: Vec<Remote<u64>>,
}

impl Pair {
    pub(super) fn new(number: u64) -> Self {
        Self {
            left: Remote::new(number),
            right: (0..3).map(|i| Remote::new(number + i)).collect(),
        }
    }
}

#[tensor_service]
pub(super) trait Attic {
    async fn keep(&self, tensor: Tensor) -> Remote<Tensor>;
    async fn length(&self, tensor: Remote<Tensor>) -> u64;
    async fn number(&self, number: u64) -> Remote<u64>;
    /// Waits until it may.
    async fn slow(&self, number: u64) -> Remote<u64>;
    async fn add(&self, left: Remote<u64>, right: Remote<u64>) -> Result<Remote<u64>, String>;
    async fn fails(&self) -> Result<Remote<u64>, String>;
    async fn begin(&self) -> Remote<Cache>;
    async fn step(&self, cache: Remote<Cache>) -> Result<Remote<Cache>, String>;
    async fn steps(&self, cache: Remote<Cache>) -> u64;
    async fn several(&self, many: u64) -> Vec<Remote<Cache>>;
    /// References, and a tensor that takes a while.
    async fn laden(&self, bytes: u64) -> (Vec<Remote<Cache>>, Tensor);
    /// Its type says nothing of the reference.
    async fn pair(&self, number: u64) -> Pair;
    async fn read(&self, pair: Pair) -> u64;
    /// References in a value that is referred to.
    async fn keep_pair(&self, number: u64) -> Remote<Pair>;
    /// References in an error.
    async fn refuses_with(&self, number: u64) -> Result<u64, Pair>;
    /// References in an error, where a reference was to be the result.
    async fn refuses_ref(&self, number: u64) -> Result<Remote<u64>, Pair>;
    /// Reads a copy of what is kept here.
    async fn read_copy(&self, kept: Remote<Pair>) -> Result<u64, String>;
    /// References in the error of a stream.
    fn fails_with(&self, number: u64) -> impl Stream<Item = Result<u64, Pair>>;
    async fn wrong(&self, number: Remote<String>) -> String;
    /// Never looks at its stream.
    async fn ignores(&self, tensors: Streaming<Tensor>) -> ();
    async fn back(&self, cx: &CallContext) -> Result<u64, String>;
}

#[derive(Clone)]
pub(super) struct Keeper {
    pub(super) held: Arc<AtomicUsize>,
    pub(super) begun: Arc<AtomicUsize>,
    pub(super) gate: Arc<Semaphore>,
}

impl Default for Keeper {
    fn default() -> Self {
        Self {
            held: Arc::default(),
            begun: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
        }
    }
}

impl Keeper {
    fn cache(&self, steps: u64) -> Remote<Cache> {
        Remote::unfetchable(Cache {
            steps,
            _held: AtIt::new(&self.held),
        })
    }
}

impl Attic for Keeper {
    async fn keep(&self, tensor: Tensor) -> Remote<Tensor> {
        Remote::new(tensor)
    }

    async fn length(&self, tensor: Remote<Tensor>) -> u64 {
        tensor.local_value().unwrap().byte_len() as u64
    }

    async fn number(&self, number: u64) -> Remote<u64> {
        Remote::new(number)
    }

    async fn slow(&self, number: u64) -> Remote<u64> {
        let _at_it = AtIt::new(&self.begun);
        self.gate.acquire().await.unwrap().forget();
        Remote::new(number)
    }

    async fn add(&self, left: Remote<u64>, right: Remote<u64>) -> Result<Remote<u64>, String> {
        let sum = *left.local_value().unwrap() + *right.local_value().unwrap();
        Ok(Remote::new(sum))
    }

    async fn fails(&self) -> Result<Remote<u64>, String> {
        Err("on purpose".to_owned())
    }

    async fn begin(&self) -> Remote<Cache> {
        self.cache(0)
    }

    async fn step(&self, cache: Remote<Cache>) -> Result<Remote<Cache>, String> {
        let cache = cache.local_value().map_err(|error| error.to_string())?;
        Ok(self.cache(cache.steps + 1))
    }

    async fn steps(&self, cache: Remote<Cache>) -> u64 {
        cache.local_value().unwrap().steps
    }

    async fn several(&self, many: u64) -> Vec<Remote<Cache>> {
        (0..many).map(|steps| self.cache(steps)).collect()
    }

    async fn laden(&self, bytes: u64) -> (Vec<Remote<Cache>>, Tensor) {
        let tensor = Tensor::zeros(tensorpipe::DType::U8, [bytes]).unwrap();
        (vec![self.cache(0), self.cache(1)], tensor)
    }

    async fn pair(&self, number: u64) -> Pair {
        Pair::new(number)
    }

    async fn keep_pair(&self, number: u64) -> Remote<Pair> {
        Remote::new(Pair::new(number))
    }

    async fn refuses_with(&self, number: u64) -> Result<u64, Pair> {
        Err(Pair::new(number))
    }

    async fn refuses_ref(&self, number: u64) -> Result<Remote<u64>, Pair> {
        Err(Pair::new(number))
    }

    async fn read_copy(&self, kept: Remote<Pair>) -> Result<u64, String> {
        let pair = kept.fetch().await.map_err(|error| error.to_string())?;
        let left = pair.left.local_value().map_err(|error| error.to_string())?;
        let right = pair.right[2].fetch().await;
        Ok(*left + right.map_err(|error| error.to_string())?)
    }

    fn fails_with(&self, number: u64) -> impl Stream<Item = Result<u64, Pair>> {
        stream::iter([Ok(number), Err(Pair::new(number))])
    }

    async fn read(&self, pair: Pair) -> u64 {
        let right = pair
            .right
            .iter()
            .map(|number| *number.local_value().unwrap());
        *pair.left.local_value().unwrap() + right.sum::<u64>()
    }

    async fn wrong(&self, number: Remote<String>) -> String {
        number.local_value().unwrap().to_string()
    }

    async fn ignores(&self, tensors: Streaming<Tensor>) {
        std::future::pending::<()>().await;
        drop(tensors);
    }

    async fn back(&self, cx: &CallContext) -> Result<u64, String> {
        let caller = cx.connection().ok_or("gone")?;
        let attic = AtticClient::on(&caller)
            .await
            .map_err(|error| error.to_string())?;
        let number = attic.number(7).await.map_err(|error| error.to_string())?;
        let sum = attic
            .add(&number, &number)
            .await
            .map_err(|error| error.to_string())?;
        sum.fetch().await.map_err(|error| error.to_string())
    }
}

pub(super) struct House {
    pub(super) client: AtticClient,
    pub(super) server: Server,
    pub(super) keeper: Keeper,
}

impl House {
    pub(super) async fn new(near: Context, far: Context, limits: ServerLimits) -> Self {
        let keeper = Keeper::default();
        let server = Server::builder()
            .context(&far)
            .limits(limits)
            .service(AtticService::new(keeper.clone()))
            .listen("tcp://127.0.0.1:0")
            .await
            .unwrap();
        let client = AtticClient::connect_with(&near, server.url()).await;
        Self {
            client: client.unwrap(),
            server,
            keeper,
        }
    }

    pub(super) fn held(&self) -> usize {
        self.keeper.held.load(Ordering::SeqCst)
    }

    /// The server keeps nothing for anybody.
    pub(super) async fn is_empty(&self) {
        until(|| self.held() == 0 && self.server.references() == 0).await;
        until(|| self.server.calls_in_flight() == 0).await;
        until(|| self.client.connection().calls_in_flight() == 0).await;
    }
}

pub(super) async fn over_each(test: impl AsyncFn(House)) {
    in_each(async |context| {
        let build = || context().build().unwrap();
        test(House::new(build(), build(), ServerLimits::default()).await).await;
    })
    .await;
}
