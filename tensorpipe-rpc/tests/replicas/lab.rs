//! Servers of one service that share a ledger of what has run, each behind a link that can be cut.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tensorpipe::{Context, Tensor};
use tensorpipe_rpc::{
    CallContext, CallError, Remote, Replicas, Server, ServerLimits, Stream, Streaming,
    replicas::{Backoff, ReplicaState, ReplicasBuilder},
    service::Service,
    tensor_service,
};

use super::common;
pub(crate) use super::common::{soon, until};
use super::proxy::Proxy;

#[tensor_service]
pub(crate) trait Work {
    /// Which server this is.
    #[rpc(idempotent)]
    async fn who(&self, id: u64) -> u64;
    /// The first run of each id never ends; later ones say how many there were.
    #[rpc(idempotent)]
    async fn second(&self, id: u64) -> u32;
    /// The same, and not to be run twice.
    async fn once(&self, id: u64) -> u32;
    /// Not to be run twice, and ends by itself.
    async fn add(&self, id: u64, ms: u64) -> u64;
    /// The time left, at the second run.
    #[rpc(idempotent)]
    async fn left(&self, id: u64, cx: &CallContext) -> Duration;
    /// The lengths of both, at the second run.
    #[rpc(idempotent)]
    async fn large(&self, id: u64, text: String, tensor: Tensor) -> (u64, u64);
    /// Says which server this is, and then nothing more.
    #[rpc(idempotent)]
    fn names(&self, id: u64) -> impl Stream<Item = u64>;
    async fn sum(&self, id: u64, numbers: Streaming<u64>) -> u64;
    /// The name of this server, which stays here.
    #[rpc(idempotent)]
    async fn stays(&self, id: u64) -> Remote<u64>;
    /// The same, where a signature does not show it.
    #[rpc(idempotent)]
    async fn several(&self, id: u64) -> Vec<Remote<u64>>;
    /// The same, and not to be run twice.
    async fn gives(&self, id: u64) -> Vec<Remote<u64>>;
    /// The name of this server, and the one that stayed.
    #[rpc(idempotent)]
    async fn both(&self, id: u64, stayed: Remote<u64>) -> (u64, u64);
    /// The same, and the length of a text.
    #[rpc(idempotent)]
    async fn beside(&self, text: String, stayed: Remote<u64>) -> (u64, u64, u64);
}

/// How often each id has run, on any server.
#[derive(Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<HashMap<u64, u32>>>);

impl Ledger {
    pub(crate) fn begin(&self, id: u64) -> u32 {
        let mut runs = self.0.lock().unwrap();
        let runs = runs.entry(id).or_default();
        *runs += 1;
        *runs
    }

    pub(crate) fn runs(&self, id: u64) -> u32 {
        self.0.lock().unwrap().get(&id).copied().unwrap_or_default()
    }
}

pub(crate) struct Worker {
    pub(crate) name: u64,
    pub(crate) ledger: Ledger,
}

impl Work for Worker {
    async fn who(&self, id: u64) -> u64 {
        self.ledger.begin(id);
        self.name
    }

    async fn second(&self, id: u64) -> u32 {
        match self.ledger.begin(id) {
            1 => std::future::pending().await,
            runs => runs,
        }
    }

    async fn once(&self, id: u64) -> u32 {
        self.second(id).await
    }

    async fn add(&self, id: u64, ms: u64) -> u64 {
        self.ledger.begin(id);
        tokio::time::sleep(Duration::from_millis(ms)).await;
        self.name
    }

    async fn left(&self, id: u64, cx: &CallContext) -> Duration {
        self.second(id).await;
        cx.time_left().unwrap()
    }

    async fn large(&self, id: u64, text: String, tensor: Tensor) -> (u64, u64) {
        self.second(id).await;
        (text.len() as u64, tensor.byte_len() as u64)
    }

    fn names(&self, id: u64) -> impl Stream<Item = u64> {
        self.ledger.begin(id);
        stream::iter([self.name]).chain(stream::pending())
    }

    async fn stays(&self, id: u64) -> Remote<u64> {
        self.ledger.begin(id);
        Remote::new(self.name)
    }

    async fn several(&self, id: u64) -> Vec<Remote<u64>> {
        self.ledger.begin(id);
        vec![Remote::new(self.name), Remote::new(self.name)]
    }

    async fn gives(&self, id: u64) -> Vec<Remote<u64>> {
        self.several(id).await
    }

    async fn both(&self, id: u64, stayed: Remote<u64>) -> (u64, u64) {
        self.ledger.begin(id);
        (self.name, *stayed.local_value().unwrap())
    }

    async fn beside(&self, text: String, stayed: Remote<u64>) -> (u64, u64, u64) {
        (self.name, *stayed.local_value().unwrap(), text.len() as u64)
    }

    async fn sum(&self, id: u64, numbers: Streaming<u64>) -> u64 {
        self.ledger.begin(id);
        numbers
            .values()
            .fold(0, async |sum, number| sum + number)
            .await
    }
}

/// A server and the link to it.
pub(crate) struct Site {
    pub(crate) server: Option<Server>,
    pub(crate) proxy: Proxy,
    pub(crate) context: Context,
    url: String,
}

impl Site {
    pub(crate) async fn new(name: u64, ledger: &Ledger, limits: ServerLimits) -> Self {
        let context = tcp();
        let worker = Worker {
            name,
            ledger: ledger.clone(),
        };
        let server = Server::builder()
            .context(&context)
            .limits(limits)
            .service(WorkService::new(worker))
            .listen("tcp://127.0.0.1:0")
            .await
            .unwrap();
        let url = server.url().to_string();
        Self {
            proxy: Proxy::to(&url).await,
            server: Some(server),
            context,
            url,
        }
    }

    /// Another server takes the place of one that is gone.
    pub(crate) async fn replace(&mut self, name: u64, ledger: &Ledger) {
        let worker = Worker {
            name,
            ledger: ledger.clone(),
        };
        self.server = Some(self.serve(WorkService::new(worker)).await);
    }

    /// A server of anything in its place.
    pub(crate) async fn serve(&self, service: impl Service) -> Server {
        let server = Server::builder().context(&self.context);
        let listening = server.service(service).listen(&self.url);
        soon(listening).await.unwrap()
    }
}

pub(crate) async fn sites(count: u64, ledger: &Ledger) -> Vec<Site> {
    let mut sites = Vec::new();
    for name in 0..count {
        sites.push(Site::new(name, ledger, ServerLimits::default()).await);
    }
    sites
}

/// What goes through sockets, and can be cut.
pub(crate) fn tcp() -> Context {
    common::tcp().build().unwrap()
}

pub(crate) fn replicas_of<'a>(sites: impl IntoIterator<Item = &'a Site>) -> ReplicasBuilder {
    let urls = sites.into_iter().map(|site| &site.proxy.url);
    Replicas::builder()
        .context(&tcp())
        .urls(urls)
        .backoff(quick())
}

pub(crate) fn quick() -> Backoff {
    Backoff {
        first: Duration::from_millis(5),
        longest: Duration::from_millis(20),
        ..Backoff::default()
    }
}

pub(crate) fn states(replicas: &Replicas) -> Vec<ReplicaState> {
    let status = replicas.status();
    status.iter().map(|replica| replica.state).collect()
}

fn count_live(replicas: &Replicas) -> usize {
    let is_live = |state: &&ReplicaState| **state == ReplicaState::Live;
    states(replicas).iter().filter(is_live).count()
}

/// A client of all, when all are there.
pub(crate) async fn client_of(builder: ReplicasBuilder) -> (WorkClient, Replicas) {
    let replicas = builder.connect().await.unwrap();
    let client = WorkClient::on(&replicas).await.unwrap();
    until(|| count_live(&replicas) == replicas.status().len()).await;
    (client, replicas)
}

/// A client whose servers were all there, and of which none can be reached.
pub(crate) async fn all_gone(count: u64, ledger: &Ledger) -> (Vec<Site>, WorkClient, Replicas) {
    let sites = sites(count, ledger).await;
    let (client, replicas) = client_of(replicas_of(&sites)).await;
    sites.iter().for_each(|site| site.proxy.cut());
    until(|| count_live(&replicas) == 0).await;
    (sites, client, replicas)
}

/// It failed for want of servers, and may or may not have run.
#[track_caller]
pub(crate) fn assert_unavailable(error: &CallError, ran: bool) {
    let CallError::Unavailable { may_have_run, .. } = error else {
        panic!("{error:?}");
    };
    assert_eq!(*may_have_run, ran, "{error:?}");
}

/// Cuts the only one that is at work.
pub(crate) async fn cut_the_busy(sites: &[Site]) -> usize {
    let busy = |site: &Site| site.server.as_ref().unwrap().calls_in_flight() > 0;
    until(|| sites.iter().any(busy)).await;
    let index = sites.iter().position(busy).unwrap();
    sites[index].proxy.cut();
    index
}
