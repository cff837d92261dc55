//! What every test of this file has: a child that connects or listens, a survivor that serves others, and the account at
//! the end.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tensorpipe::channels::{BasicChannel, Channel};
use tensorpipe::transports::{Acceptor, BoxFuture, Connection, TcpTransport, Transport};
use tensorpipe::{Context, Error, Listener, Message, Payload, Pipe, Tensor, Timeouts};
use tensorpipe_tests::{descriptors, say};

/// Within this the survivor knows: a killed process closes its sockets, so nothing has to time out.
pub(crate) const SOON: Duration = Duration::from_secs(5);

/// Bytes of the tensor of [`big`]: far more than the system takes without a reader.
const BIG: usize = 64 << 20;

/// A second way over TCP, at which each listener has an address of its own: pipes are moved to it between processes.
pub(crate) struct SideTcp(TcpTransport);

impl Transport for SideTcp {
    fn name(&self) -> &'static str {
        "side"
    }

    fn domain(&self) -> Vec<u8> {
        b"side".to_vec()
    }

    fn connect<'a>(
        &'a self,
        address: &'a str,
    ) -> BoxFuture<'a, Result<Box<dyn Connection>, Error>> {
        self.0.connect(address)
    }

    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Box<dyn Acceptor>, Error>> {
        self.0.listen(address)
    }

    fn side_address(&self) -> Option<String> {
        Some("127.0.0.1:0".to_owned())
    }
}

/// A context of tcp, and, where pipes are to be `moved`, of a better transport too.
pub(crate) fn context(moved: bool) -> Context {
    context_with(moved, Timeouts::default())
}

pub(crate) fn context_with(moved: bool, timeouts: Timeouts) -> Context {
    let mut transports: Vec<Arc<dyn Transport>> = vec![Arc::new(TcpTransport::new())];
    if moved {
        transports.insert(0, Arc::new(SideTcp(TcpTransport::new())));
    }
    let channels: [Arc<dyn Channel>; 1] = [Arc::new(BasicChannel::new())];
    Context::builder()
        .transports(transports)
        .channels(channels)
        .timeouts(timeouts)
        .build()
        .unwrap()
}

/// A message with everything: a payload in its frame, and a tensor that waits for a go-ahead.
pub(crate) fn big() -> Message {
    Message::new("big")
        .payload(Payload::new(vec![7; 60_000]))
        .tensor(Tensor::from_vec(vec![1u8; BIG], [BIG as u64]).unwrap())
}

/// Runs a test while no other one of this binary runs (descriptors are counted by process), then sees to it that
/// everything is given back.
pub(crate) fn alone(test: impl AsyncFnOnce()) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let make = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(2).enable_all().build().unwrap()
    };
    // The first runtime of a process opens what tokio keeps for signals.
    drop(make());
    let before = descriptors();
    let runtime = make();
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(120), test())
            .await
            .expect("a test of faults hangs");
    });
    drop(runtime);
    let begun = Instant::now();
    while descriptors() > before {
        assert!(
            begun.elapsed() < SOON,
            "not closed: {:?}, {before} before",
            open_files()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What this process has open.
fn open_files() -> Vec<std::path::PathBuf> {
    let open = std::fs::read_dir("/proc/self/fd").expect("/proc");
    open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .collect()
}

/// Waits for something that happens soon.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < SOON, "too late: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The survivor: a listener that answers everybody.
pub(crate) struct Survivor {
    pub(crate) context: Context,
    listener: Arc<Listener>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Survivor {
    pub(crate) async fn new(moved: bool) -> Self {
        let context = context(moved);
        let listener = Arc::new(context.listen(["tcp://127.0.0.1:0"]).await.unwrap());
        let accepting = tokio::spawn({
            let listener = listener.clone();
            async move {
                while let Ok(pipe) = listener.accept().await {
                    tokio::spawn(async move { while echo(&pipe).await.is_ok() {} });
                }
            }
        });
        Self {
            context,
            listener,
            accepting,
        }
    }

    pub(crate) fn url(&self) -> String {
        self.listener.url().to_string()
    }

    /// Serves somebody else as if nothing had happened, and holds no memory of those who are gone.
    pub(crate) async fn goes_on(self) {
        let other = context(false);
        let serve = async {
            let pipe = other.connect(self.url()).await?;
            pipe.send(Message::new("still there?"))?;
            let answer = pipe.read().await?;
            assert_eq!(&answer.metadata[..], b"still there?");
            pipe.close().await
        };
        tokio::time::timeout(SOON, serve)
            .await
            .expect("the survivor serves others soon")
            .unwrap();
        self.accepting.abort();
        let pool = self.context.pool().clone();
        tokio::task::spawn_blocking(move || {
            until("pooled memory comes back", || {
                pool.stats().outstanding_bytes == 0
            });
        })
        .await
        .unwrap();
    }
}

async fn echo(pipe: &Pipe) -> Result<(), Error> {
    let message = pipe.read().await?;
    pipe.write(message).await
}

/// How an operation of a pipe whose peer is gone may end.
pub(crate) fn is_typed(error: &Error) -> bool {
    matches!(
        error,
        Error::Lost { .. }
            | Error::Closed { by_peer: true, .. }
            | Error::GoingAway { .. }
            | Error::Refused { .. }
    )
}

/// The child: makes a pipe one way or the other, does what it is told, and waits to be killed.
pub(crate) fn play() {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let context = context(variable("TEST_MOVED") == "yes");
        let url = variable("TEST_URL");
        // Kept open: the peer may still join.
        let listener;
        let pipe = if variable("TEST_SIDE") == "connects" {
            context.connect(url).await.unwrap()
        } else {
            if let Ok(millis) = variable("TEST_LATE").parse() {
                tokio::time::sleep(Duration::from_millis(millis)).await;
            }
            let url = if url.is_empty() {
                "tcp://127.0.0.1:0"
            } else {
                &url
            };
            listener = context.listen([url]).await.unwrap();
            say("url", listener.url());
            listener.accept().await.unwrap()
        };
        say("open", pipe.route().transport.as_str());
        match variable("TEST_DOES").as_str() {
            "writes" => drop(pipe.write(big()).await),
            "reads" => while pipe.read().await.is_ok() {},
            "echoes" => while echo(&pipe).await.is_ok() {},
            "closes" => {
                pipe.send(Message::new("last")).unwrap();
                drop(pipe.close().await);
            }
            _ => {}
        }
        tokio::time::sleep(Duration::from_secs(120)).await;
    });
}
