//! A simulated network on a virtual clock, to test your own services.
//!
//! Servers, clients and pipes run in one thread, each on a [`Host`] of a [`Network`]. Links between hosts delay, stall and are cut; hosts
//! are partitioned and crash. Time passes only while everybody waits: an hour of silence takes milliseconds. The same seed repeats the same
//! story.
//!
//! ```
//! use std::time::Duration;
//! use tensorpipe::{Error, Message, testing};
//!
//! let took = testing::run(7, async |network| {
//!     let (server, client) = (network.host("server"), network.host("client"));
//!     network.link("client", "server").delay(Duration::from_millis(20));
//!     let listener = server.context().build()?.listen([server.url(1)]).await?;
//!     let context = client.context().build()?;
//!     let (pipe, accepted) = tokio::try_join!(context.connect(server.url(1)), listener.accept())?;
//!
//!     network.partition("client", "server");
//!     let written = pipe.write(Message::new("it waits"));
//!     tokio::time::sleep(Duration::from_secs(3)).await;
//!     network.heal("client", "server");
//!     assert_eq!(&accepted.read().await?.metadata[..], b"it waits");
//!     written.await?;
//!     Ok::<_, Error>(network.elapsed())
//! });
//! assert!(took.unwrap() >= Duration::from_secs(3));
//! ```
//!
//! Serve and call a service as usual, with [`Host::context`] as its context: `Server::builder().context(&context)` and
//! `Client::connect_with(&context, url)`.
//!
//! # What a network does
//!
//! - Each connection carries two streams of bytes, which arrive once and in order, like those of tcp. Packet loss, duplication and
//!   reordering below show only as time: as a [delay](Link::delay), [jitter](Link::jitter) or [stall](Link::stall). Over a link with
//!   jitter, different connections overtake each other.
//! - A link leads one way. It also carries the news that a peer connects, closes or resets: over a link that [stalls](Link::stall), none of
//!   that arrives until it heals.
//! - A connection holds 256 KiB of unread bytes each way; then its writer waits.
//! - Bandwidth is unlimited; only delays cost time. Timers, and so delays, have a resolution of a millisecond, as tokio's do.
//! - Contexts of a host have only transport `sim` and channel `basic`. Anything else that is added to them bypasses the network, and works
//!   in real time: the clock runs on meanwhile, so that its timeouts may pass at once.
//!
//! # What follows from the seed, and what does not
//!
//! Within [`run`], delays, timers, deadlines, back-off pauses and random tokens follow from the seed and the story. Not part of the
//! simulation are
//!
//! - threads: a blocking handler and `spawn_blocking` take no virtual time, and end in an order of their own. The clock stands still
//!   meanwhile, so they must not wait for time, or for a peer;
//! - `std::time`: [`tokio::time::Instant`] is the virtual clock. Deadlines of calls use it; tarpc's do not. The same holds in any test that
//!   pauses tokio's clock while this feature is on;
//! - the iteration order of a `HashMap`, and the branch order of `tokio::select!` without `biased;`;
//! - details of a rendezvous: it names loans by secret numbers of varying length, and reports aborts in no fixed order.

mod state;
mod transport;
mod watchdog;

use std::time::Duration;

use tokio::task::JoinHandle;

use self::state::{Shared, Way};
pub use self::transport::SimTransport;
use self::watchdog::{Bound, Watchdog};
use crate::ambient::Simulated;
use crate::channels::BasicChannel;
use crate::context::{Context, ContextBuilder};
use crate::sync::Arc;
use crate::transports::Transport;

/// The longest that a story may run, on the virtual clock.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// How long blocking work may hold the clock, in real time.
const HELD: Bound = Bound {
    step: Duration::from_secs(1),
    steps: 300,
};

/// Runs a story on a runtime of this thread, whose clock advances only while everybody waits.
///
/// # Panics
/// If the story panics, or has not ended after a day of virtual time: then it waits for something that never comes. If it has waited for
/// blocking work for five minutes of real time, during which the clock stands still. Also within another runtime.
pub fn run<T>(seed: u64, story: impl AsyncFnOnce(Network) -> T) -> T {
    run_within(HELD, seed, story)
}

fn run_within<T>(held: Bound, seed: u64, story: impl AsyncFnOnce(Network) -> T) -> T {
    let _simulated = Simulated::new(seed);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let watchdog = Watchdog::new(&mut builder);
    let runtime = builder.enable_all().start_paused(true).build();
    let runtime = runtime.unwrap_or_else(|error| panic!("no runtime: {error}"));
    let _watches = watchdog.watch(held);
    let ended = runtime.block_on(async {
        let story = tokio::time::timeout(LONGEST, story(Network::new(seed)));
        tokio::select! {
            biased;
            ended = story => Some(ended),
            () = watchdog.barks() => None,
        }
    });
    match ended {
        Some(Ok(told)) => told,
        Some(Err(_)) => panic!("the story of seed {seed} has not ended after a day"),
        None => {
            // Otherwise it would wait for that work, too.
            runtime.shutdown_background();
            panic!(
                "the story of seed {seed} waits for blocking work, which holds the clock: such work must not wait for time, or for a peer"
            )
        }
    }
}

/// Hosts and the links between them. A clone is a handle.
#[derive(Clone, Debug)]
pub struct Network(Arc<Shared>);

/// Something that a network saw or did, with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Time since the network was made, on the virtual clock.
    pub at: Duration,
    /// In words: `1 client -> server: 24 bytes`, where 1 is the number of the connection.
    pub what: String,
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:>12.3} ms  {}", self.at.as_secs_f64() * 1e3, self.what)
    }
}

impl Network {
    /// A network in real time, for any runtime. [`run`] makes one on a virtual clock.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Shared::new(seed)))
    }

    /// The host with this name, created when it is first mentioned. A host that has crashed starts again, with nothing.
    ///
    /// # Panics
    /// If the name is empty, or has other characters than letters, digits, `-`, `_` and `.`.
    pub fn host(&self, name: &str) -> Host {
        let is_good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let is_name = !name.is_empty() && name.chars().all(is_good);
        assert!(is_name, "{name:?} is no name of a host");
        let (number, life) = self.0.with(|state| state.start(name));
        Host {
            shared: self.0.clone(),
            name: name.into(),
            number,
            life,
        }
    }

    /// The link that carries what `from` sends to `to`.
    ///
    /// # Panics
    /// If no host has that name.
    pub fn link(&self, from: &str, to: &str) -> Link {
        let way = self.0.with(|state| (state.number(from), state.number(to)));
        Link {
            shared: self.0.clone(),
            way,
        }
    }

    /// Stalls both links between two hosts until they [heal](Network::heal): their connections carry nothing, and no new ones are made.
    /// Nobody is notified. To other hosts, a machine without power looks the same.
    ///
    /// # Panics
    /// As [`Network::link`].
    pub fn partition(&self, a: &str, b: &str) {
        self.link(a, b).stall();
        self.link(b, a).stall();
    }

    /// Both links work again, and first deliver what has waited.
    ///
    /// # Panics
    /// As [`Network::link`].
    pub fn heal(&self, a: &str, b: &str) {
        self.link(a, b).heal();
        self.link(b, a).heal();
    }

    /// The process of this host dies: its connections are reset, its addresses become free, and tasks of [`Host::spawn`] are dropped.
    /// Anything else that was started for it runs on, but reaches nobody.
    ///
    /// # Panics
    /// As [`Network::link`].
    pub fn crash(&self, name: &str) {
        for task in self.0.with(|state| state.crash(name)) {
            task.abort();
        }
        self.0.changed.notify_waiters();
    }

    /// Time since the network was made, on the virtual clock.
    pub fn elapsed(&self) -> Duration {
        self.0.with(|state| state.elapsed())
    }

    /// Adds the story's own line to the trace.
    pub fn note(&self, what: impl Into<String>) {
        self.0.with(|state| state.tell(what.into()));
    }

    /// Everything that happened so far: connections, writes to them and how they ended, faults, notes. It grows by a line for each
    /// write.
    pub fn trace(&self) -> Vec<Event> {
        self.0.with(|state| state.trace.clone())
    }
}

/// The link from one host to another. A new link has no delay. Settings apply to bytes that are sent from then on.
#[derive(Clone, Debug)]
pub struct Link {
    shared: Arc<Shared>,
    way: (usize, usize),
}

impl Link {
    /// Everything arrives later by `delay`.
    pub fn delay(&self, delay: Duration) -> &Self {
        self.set(&format!("delay {delay:?}"), |way| way.delay = delay)
    }

    /// Adds a random delay of up to `jitter` to each write, so that connections overtake each other.
    pub fn jitter(&self, jitter: Duration) -> &Self {
        self.set(&format!("jitter {jitter:?}"), |way| way.jitter = jitter)
    }

    /// After this link has carried so many more bytes, the connection that sent the last one is cut behind it: both ends see a reset. 0
    /// cuts the connection that sends next. This happens once; the last setting counts.
    pub fn cut_after(&self, bytes: u64) -> &Self {
        let cut = Some(bytes);
        self.set(&format!("cut after {bytes} bytes"), |way| {
            way.cut_after = cut;
        })
    }

    /// Nothing arrives any more, including what is on its way.
    pub fn stall(&self) -> &Self {
        self.set("stall", |way| way.stalled = true)
    }

    /// Everything that has waited arrives, and so does what follows.
    pub fn heal(&self) -> &Self {
        self.set("heal", |way| way.stalled = false)
    }

    fn set(&self, what: &str, change: impl FnOnce(&mut Way)) -> &Self {
        self.shared
            .with(|state| state.change(self.way.0, self.way.1, what, change));
        self.shared.changed.notify_waiters();
        self
    }
}

/// A host of a [`Network`], until it crashes.
#[derive(Clone, Debug)]
pub struct Host {
    shared: Arc<Shared>,
    name: Arc<str>,
    number: usize,
    life: u64,
}

impl Host {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A URL where it listens or may listen, e.g. `sim://server:1`. When it listens at port 0, it gets a free one.
    pub fn url(&self, port: u16) -> String {
        format!("sim://{}:{port}", self.name)
    }

    /// Begins a context of this host.
    pub fn context(&self) -> ContextBuilder {
        let transport: Arc<dyn Transport> = Arc::new(self.transport());
        Context::builder()
            .name(&*self.name)
            .transports([transport])
            .channels([Arc::new(BasicChannel::new()) as _])
    }

    /// The transport of this host, for a context that is made in another way.
    pub fn transport(&self) -> SimTransport {
        SimTransport::new(self.clone())
    }

    /// Runs a task until it ends or the host crashes. If the host has already crashed, the task does not start.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let host = self.clone();
        let task = tokio::spawn(async move {
            // On a runtime of several threads it is here before it is adopted.
            if !host.shared.with(|state| state.lives(&host)) {
                std::future::pending::<()>().await;
            }
            work.await
        });
        let lives = self.shared.with(|state| state.adopt(self, &task));
        if !lives {
            task.abort();
        }
        task
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    #[should_panic(expected = "the story of seed 7 waits for blocking work")]
    fn blocking_work_that_waits_for_the_story_is_noticed() {
        let bound = Bound {
            step: Duration::from_millis(20),
            steps: 5,
        };
        run_within(bound, 7, async |_| {
            let (go_on, goes_on) = mpsc::channel();
            let waits = tokio::task::spawn_blocking(move || goes_on.recv());
            // The runtime's thread wakes for this timer again and again.
            tokio::time::sleep(Duration::from_millis(15)).await;
            go_on.send(()).unwrap();
            waits.await.unwrap().unwrap();
        });
    }
}
