//! Setup of every test here: a child that connects or listens, a survivor that serves others, and a final check of
//! descriptors and mappings.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tensorpipe::transports::{ShmTransport, TcpTransport, Transport};
use tensorpipe::{Context, Error, Listener, Message, Payload, Pipe, Tensor, Timeouts};
use tensorpipe_tests::{Over, descriptors, over, runtime, say};

/// Within this the survivor knows: a killed process closes its sockets, so nothing has to time out.
pub(crate) const SOON: Duration = Duration::from_secs(5);

/// Bytes of the tensor of [`big`]: far more than the system takes without a reader.
const BIG: usize = 64 << 20;

/// How the two processes are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Tcp,
    /// Rings in memory that both have mapped, from the first byte.
    Shm,
    /// Begins on tcp, is upgraded to another address of tcp.
    TcpToSide,
    /// As two processes of one machine do by default.
    TcpToShm,
}

/// Those without an upgrade, and those with one.
pub(crate) const DIRECT: [Way; 2] = [Way::Tcp, Way::Shm];
pub(crate) const UPGRADED: [Way; 2] = [Way::TcpToSide, Way::TcpToShm];
/// Once a pipe is open, it matters only what carries it.
pub(crate) const CARRIED: [Way; 2] = [Way::Tcp, Way::TcpToShm];

impl Way {
    const ALL: [Self; 4] = [Self::Tcp, Self::Shm, Self::TcpToSide, Self::TcpToShm];

    /// As it is told to the child.
    pub(crate) fn name(self) -> String {
        format!("{self:?}")
    }

    pub(crate) fn named(name: &str) -> Self {
        let known = Self::ALL.into_iter().find(|way| way.name() == name);
        known.unwrap_or_else(|| panic!("no way `{name}`"))
    }

    /// Where a listener can listen: at an address that is free.
    pub(crate) fn url(self) -> String {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        match self {
            Self::Shm => {
                let number = NEXT.fetch_add(1, Ordering::Relaxed);
                format!("shm://faults {} {number}", std::process::id())
            }
            _ => "tcp://127.0.0.1:0".to_owned(),
        }
    }

    fn transports(self) -> Vec<Arc<dyn Transport>> {
        let shm = Arc::new(ShmTransport::new());
        let tcp = Arc::new(TcpTransport::new());
        match self {
            Self::Tcp => vec![tcp],
            Self::Shm => vec![shm],
            Self::TcpToSide => {
                // At which each listener has an address of its own: pipes are upgraded to it between processes.
                let side = Over::new("side", TcpTransport::new()).at_side("127.0.0.1:0");
                vec![Arc::new(side), tcp]
            }
            Self::TcpToShm => vec![shm, tcp],
        }
    }

    /// What carries an open pipe.
    pub(crate) fn carrier(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::TcpToSide => "side",
            Self::Shm | Self::TcpToShm => "shm",
        }
    }
}

pub(crate) fn context(way: Way) -> Context {
    context_with(way, Timeouts::default())
}

pub(crate) fn context_with(way: Way, timeouts: Timeouts) -> Context {
    let builder = over(way.transports()).timeouts(timeouts);
    builder.build().unwrap()
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
    // The first runtime of a process opens what tokio keeps for signals.
    drop(runtime());
    let before = descriptors();
    let runtime = runtime();
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(120), test())
            .await
            .expect("a test of faults hangs");
    });
    drop(runtime);
    let begun = Instant::now();
    while descriptors() > before || shared_memory().next().is_some() {
        assert!(
            begun.elapsed() < SOON,
            "not closed: {:?}, {before} before; mapped: {:?}",
            open_files(),
            shared_memory().collect::<Vec<_>>(),
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Mappings of memory that is shared with another process.
fn shared_memory() -> impl Iterator<Item = String> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
    let shared = maps
        .lines()
        .filter(|line| line.contains("memfd:tensorpipe"));
    shared.map(str::to_owned).collect::<Vec<_>>().into_iter()
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

/// Runs a test over everything that can carry a pipe.
pub(crate) fn each_way(test: impl AsyncFn(Way)) {
    for way in CARRIED {
        alone(async || test(way).await);
    }
}

/// The survivor: a listener that answers everybody.
pub(crate) struct Survivor {
    way: Way,
    pub(crate) context: Context,
    listener: Arc<Listener>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Survivor {
    pub(crate) async fn new(way: Way) -> Self {
        let context = context(way);
        let listener = Arc::new(context.listen([way.url()]).await.unwrap());
        let accepting = tokio::spawn({
            let listener = listener.clone();
            async move {
                while let Ok(pipe) = listener.accept().await {
                    tokio::spawn(async move { while echo(&pipe).await.is_ok() {} });
                }
            }
        });
        Self {
            way,
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
        let other = context(self.way);
        let serve = async {
            let pipe = other.connect(self.url()).await?;
            assert_eq!(pipe.route().transport, self.way.carrier());
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
    runtime().block_on(async {
        let way = Way::named(&variable("TEST_WAY"));
        let context = context(way);
        let url = variable("TEST_URL");
        // Kept open: the peer may still join.
        let listener;
        let pipe = if variable("TEST_SIDE") == "connects" {
            context.connect(url).await.unwrap()
        } else {
            if let Ok(millis) = variable("TEST_LATE").parse() {
                tokio::time::sleep(Duration::from_millis(millis)).await;
            }
            let url = if url.is_empty() { way.url() } else { url };
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
