//! A service of streams, and both ends of it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use tensorpipe::{Context, Tensor};
use tensorpipe_rpc::{CallContext, Connection, Server, ServerLimits, Streaming, tensor_service};

use crate::lab::{
    AtIt, Bench, LabClient, LabService, holds_nothing, in_each, is_at_rest, tensor, until,
};

#[tensor_service]
pub(crate) trait Flow {
    fn count(&self, to: u64) -> impl Stream<Item = u64>;
    fn tensors(&self, sizes: Vec<u64>) -> impl Stream<Item = Tensor>;
    /// Items of so many tensors of one byte, and texts of so many.
    fn groups(&self, sizes: Vec<u64>) -> impl Stream<Item = (Vec<Tensor>, String)>;
    /// Counts until somebody is against it.
    fn fails_at(&self, at: u64) -> impl Stream<Item = Result<u64, String>>;
    fn panics_at(&self, at: u64) -> impl Stream<Item = u64>;
    /// Tensors of so many bytes, without end.
    fn forever(&self, bytes: u64) -> impl Stream<Item = Tensor>;
    /// Items that come no faster than asked for.
    fn slow(&self, to: u64, ms: u64) -> impl Stream<Item = u64>;
    async fn sum(&self, numbers: Streaming<u64>) -> u64;
    /// Bytes of the first so many.
    async fn first(&self, tensors: Streaming<Tensor>, many: u64) -> u64;
    /// Drops its stream, and goes on for a while.
    async fn drops_it(&self, numbers: Streaming<u64>, ms: u64) -> ();
    /// Has its stream read by a task of its own, and returns at once or never.
    async fn reads_elsewhere(&self, numbers: Streaming<u64>, returns: bool) -> ();
    /// Keeps its thread until it is given up, and returns all the same.
    async fn insists(&self, numbers: Streaming<u64>, cx: &CallContext) -> u64;
    /// Never looks at its stream.
    async fn ignores_it(&self, tensors: Streaming<Tensor>) -> ();
    fn back(&self, tensors: Streaming<Tensor>) -> impl Stream<Item = Tensor>;
}

/// So many items, and why not more.
pub(crate) type Read = (u64, Option<String>);

#[derive(Clone, Default)]
pub(crate) struct River {
    /// Streams that exist.
    pub(crate) at_it: Arc<AtomicUsize>,
    /// Items that streams without end have made.
    pub(crate) made: Arc<AtomicUsize>,
    /// What each task of a handler's has read.
    pub(crate) elsewhere: Arc<Mutex<Vec<Read>>>,
}

impl River {
    fn guarded<S: Stream>(&self, items: S) -> impl Stream<Item = S::Item> + use<S> {
        let guard = AtIt::new(&self.at_it);
        items.map(move |item| {
            let _guard = &guard;
            item
        })
    }
}

/// Tensor number `seed` of a stream.
pub(crate) fn numbered(bytes: u64, seed: usize) -> Tensor {
    tensor(bytes as usize, seed as u8)
}

/// Whether it is that one.
#[track_caller]
pub(crate) fn assert_numbered(tensor: &Tensor, bytes: u64, seed: usize) {
    let sent = numbered(bytes, seed);
    assert!(
        tensor.as_slice::<u8>().unwrap() == sent.as_slice::<u8>().unwrap(),
        "not number {seed} of {bytes} bytes"
    );
}

impl Flow for River {
    fn count(&self, to: u64) -> impl Stream<Item = u64> {
        self.guarded(stream::iter(0..to))
    }

    fn tensors(&self, sizes: Vec<u64>) -> impl Stream<Item = Tensor> {
        let tensors = sizes.into_iter().enumerate();
        self.guarded(stream::iter(
            tensors.map(|(seed, bytes)| numbered(bytes, seed)),
        ))
    }

    fn groups(&self, sizes: Vec<u64>) -> impl Stream<Item = (Vec<Tensor>, String)> {
        let groups = sizes.into_iter().map(|size| {
            let tensors = (0..size as usize).map(|seed| numbered(1, seed));
            (tensors.collect(), "x".repeat(size as usize))
        });
        self.guarded(stream::iter(groups))
    }

    fn fails_at(&self, at: u64) -> impl Stream<Item = Result<u64, String>> {
        let items = (0..).map(move |i| match i == at {
            true => Err(format!("at {at}")),
            false => Ok(i),
        });
        self.guarded(stream::iter(items))
    }

    fn panics_at(&self, at: u64) -> impl Stream<Item = u64> {
        self.guarded(stream::iter((0..).inspect(move |i| {
            assert!(*i < at, "at {at}");
        })))
    }

    fn forever(&self, bytes: u64) -> impl Stream<Item = Tensor> {
        let made = self.made.clone();
        let items = (0..).map(move |seed| {
            made.fetch_add(1, Ordering::SeqCst);
            numbered(bytes, seed)
        });
        self.guarded(stream::iter(items))
    }

    fn slow(&self, to: u64, ms: u64) -> impl Stream<Item = u64> {
        self.guarded(stream::iter(0..to).then(move |i| async move {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            i
        }))
    }

    async fn sum(&self, mut numbers: Streaming<u64>) -> u64 {
        let _at_it = AtIt::new(&self.at_it);
        let mut sum = 0;
        while let Some(number) = numbers.next().await {
            sum += number.unwrap();
        }
        sum
    }

    async fn first(&self, tensors: Streaming<Tensor>, many: u64) -> u64 {
        let _at_it = AtIt::new(&self.at_it);
        let bytes = tensors.values().take(many as usize);
        bytes
            .fold(0, async |sum, tensor| sum + tensor.byte_len() as u64)
            .await
    }

    async fn drops_it(&self, numbers: Streaming<u64>, ms: u64) {
        let _at_it = AtIt::new(&self.at_it);
        drop(numbers);
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    async fn reads_elsewhere(&self, mut numbers: Streaming<u64>, returns: bool) {
        let (elsewhere, at_it) = (self.elsewhere.clone(), AtIt::new(&self.at_it));
        tokio::spawn(async move {
            let _at_it = at_it;
            let mut came = 0;
            let end = loop {
                match numbers.next().await {
                    Some(Ok(_)) => came += 1,
                    Some(Err(error)) => break Some(error.to_string()),
                    None => break None,
                }
            };
            assert!(numbers.next().await.is_none(), "an error is the last");
            elsewhere.lock().unwrap().push((came, end));
        });
        if !returns {
            std::future::pending().await
        }
    }

    async fn insists(&self, numbers: Streaming<u64>, cx: &CallContext) -> u64 {
        let _at_it = AtIt::new(&self.at_it);
        tokio::task::block_in_place(|| {
            while !cx.is_cancelled() {
                std::thread::sleep(Duration::from_micros(10));
            }
        });
        drop(numbers);
        7
    }

    async fn ignores_it(&self, tensors: Streaming<Tensor>) {
        let _at_it = AtIt::new(&self.at_it);
        std::future::pending::<()>().await;
        drop(tensors);
    }

    fn back(&self, tensors: Streaming<Tensor>) -> impl Stream<Item = Tensor> {
        self.guarded(tensors.values())
    }
}

pub(crate) struct Banks {
    pub(crate) client: FlowClient,
    pub(crate) lab: LabClient,
    pub(crate) server: Server,
    pub(crate) river: River,
    pub(crate) near: Context,
    pub(crate) far: Context,
}

impl Banks {
    pub(crate) async fn new(near: Context, far: Context, limits: ServerLimits) -> Self {
        let river = River::default();
        let server = Server::builder()
            .context(&far)
            .limits(limits)
            .service(FlowService::new(river.clone()))
            .service(LabService::new(Bench::default()))
            .listen("tcp://127.0.0.1:0")
            .await
            .unwrap();
        let url = server.url().to_string();
        let connection = Connection::connect_with(&near, url).await.unwrap();
        Self {
            client: FlowClient::on(&connection).await.unwrap(),
            lab: LabClient::on(&connection).await.unwrap(),
            server,
            river,
            near,
            far,
        }
    }

    pub(crate) fn made(&self) -> usize {
        self.river.made.load(Ordering::SeqCst)
    }

    pub(crate) fn at_it(&self) -> usize {
        self.river.at_it.load(Ordering::SeqCst)
    }

    /// Nothing is under way, nothing is held, and the connection goes on.
    pub(crate) async fn is_clean(&self) {
        until(|| self.at_it() == 0).await;
        is_at_rest(&self.server, self.client.connection()).await;
        holds_nothing([&self.near, &self.far]).await;
        assert_eq!(self.lab.echo("still here").await.unwrap(), "still here");
        let counted: Vec<_> = self.client.count(3).map(Result::unwrap).collect().await;
        assert_eq!(counted, [0, 1, 2]);
    }
}

pub(crate) async fn over_each(test: impl AsyncFn(Banks)) {
    in_each(async |context| {
        let build = |name| context().name(name).build().unwrap();
        let banks = Banks::new(build("near"), build("far"), ServerLimits::default());
        test(banks.await).await;
    })
    .await;
}
