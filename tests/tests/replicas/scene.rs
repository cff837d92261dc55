//! Setup of every test here: server processes, a client of all of them, and load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tensorpipe::{Context, Timeouts};
use tensorpipe_rpc::{
    CallError, Replicas, Server,
    replicas::{Backoff, ReplicaState, ReplicasBuilder},
    tensor_service,
};
use tensorpipe_tests::{Child, eventually, runtime, say, soon};
use tokio::task::JoinHandle;

#[tensor_service]
pub(crate) trait Work {
    /// The number of the server's process, after a while.
    #[rpc(idempotent)]
    async fn nap(&self, ms: u64) -> u32;
    /// The same; not to be run twice. The server says that it has begun.
    async fn once(&self, ms: u64) -> u32;
    /// Handlers of the two that are at it.
    async fn busy(&self) -> u64;
}

struct Worker {
    busy: Arc<AtomicU64>,
    /// It is there, and waits for something that never comes.
    is_stuck: bool,
}

/// One that is.
struct AtIt(Arc<AtomicU64>);

impl AtIt {
    fn new(busy: &Arc<AtomicU64>) -> Self {
        busy.fetch_add(1, Ordering::SeqCst);
        Self(busy.clone())
    }
}

impl Drop for AtIt {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Work for Worker {
    async fn nap(&self, ms: u64) -> u32 {
        let _at_it = AtIt::new(&self.busy);
        if self.is_stuck {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(Duration::from_millis(ms)).await;
        std::process::id()
    }

    async fn once(&self, ms: u64) -> u32 {
        say("begun", ms);
        self.nap(ms).await
    }

    async fn busy(&self) -> u64 {
        self.busy.load(Ordering::SeqCst)
    }
}

pub(crate) fn play() {
    runtime().block_on(async {
        let var = |name| std::env::var(name).ok();
        let builder = Server::builder().service(WorkService::new(Worker {
            busy: Arc::default(),
            is_stuck: var("TEST_STUCK").is_some(),
        }));
        let url = var("TEST_URL").unwrap_or_else(|| "tcp://127.0.0.1:0".to_owned());
        let server = builder.listen(url).await.unwrap();
        say("url", server.url());
        server.wait().await;
    });
}

/// A process that serves.
pub(crate) struct WorkerProcess {
    pub(crate) child: Child,
    pub(crate) url: String,
}

impl WorkerProcess {
    pub(crate) fn start(variables: &[(&str, &str)]) -> Self {
        let child = Child::start("server", variables);
        let url = child.hear("url");
        Self { child, url }
    }

    /// Another process takes its place.
    pub(crate) fn again(&mut self) {
        let url = self.url.clone();
        *self = Self::start(&[("TEST_URL", &url)]);
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

pub(crate) fn start<const N: usize>() -> [WorkerProcess; N] {
    std::array::from_fn(|_| WorkerProcess::start(&[]))
}

pub(crate) fn replicas_of(places: &[WorkerProcess]) -> ReplicasBuilder {
    let mut timeouts = Timeouts::default();
    timeouts.silence = Some(Duration::from_secs(1));
    let context = Context::builder().timeouts(timeouts).build().unwrap();
    let quick = Backoff {
        first: Duration::from_millis(10),
        longest: Duration::from_millis(100),
        ..Backoff::default()
    };
    let urls = places.iter().map(|place| &place.url);
    Replicas::builder()
        .context(&context)
        .urls(urls)
        .backoff(quick)
}

/// A client of all, when all are there.
pub(crate) async fn client_of(builder: ReplicasBuilder) -> (WorkClient, Replicas) {
    let replicas = soon("a replica", builder.connect()).await.unwrap();
    let client = WorkClient::on(&replicas).await.unwrap();
    all_live(&replicas).await;
    (client, replicas)
}

pub(crate) fn states(replicas: &Replicas) -> Vec<ReplicaState> {
    let status = replicas.status();
    status.iter().map(|replica| replica.state).collect()
}

pub(crate) async fn all_live(replicas: &Replicas) {
    eventually("all replicas are there", || {
        states(replicas)
            .iter()
            .all(|state| *state == ReplicaState::Live)
    })
    .await;
}

/// Calls without a pause, each of which must be answered.
pub(crate) struct Load {
    over: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<Result<(), CallError>>>,
}

impl Load {
    pub(crate) fn begin(client: &WorkClient) -> Self {
        let (over, answered) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let task = |ms| {
            let (client, over, answered) = (client.clone(), over.clone(), answered.clone());
            tokio::spawn(async move {
                while !over.load(Ordering::SeqCst) {
                    client.nap(ms).await?;
                    answered.fetch_add(1, Ordering::SeqCst);
                }
                Ok(())
            })
        };
        Self {
            tasks: (0..24).map(|index| task(index % 6)).collect(),
            over,
            answered,
        }
    }

    /// It goes on: this many more calls are answered.
    pub(crate) async fn goes_on(&self, calls: u64) {
        let upto = self.answered.load(Ordering::SeqCst) + calls;
        eventually("calls are answered", || {
            self.answered.load(Ordering::SeqCst) >= upto
                || self.tasks.iter().any(JoinHandle::is_finished)
        })
        .await;
    }

    /// None of its calls has failed.
    pub(crate) async fn end(self) {
        self.over.store(true, Ordering::SeqCst);
        for task in self.tasks {
            let calls = soon("the last calls", task).await.unwrap();
            calls.expect("no call fails");
        }
    }
}
