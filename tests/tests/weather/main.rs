//! Weather: limits of all sizes, links that are slow, stall and are cut, servers that die, and clients that do a bit of everything. All of
//! it follows from a seed.
//!
//! - An act ends in time, with the right result or with an error. In calm weather it has no error.
//! - Afterwards nothing is under way, nothing is held, and whatever fits through a new connection fits through those that are left.
//! - Closing and shutting down end in time.
//! - The clock moves on: no task keeps its thread busy.
//!
//! `WEATHER=1000..2000 cargo test -p tensorpipe-tests --test weather -- --nocapture` runs other seeds than those of a usual run.
#![allow(missing_docs, reason = "a test")]

#[allow(dead_code, reason = "stories of devices count more")]
#[path = "../cuda/driver.rs"]
mod driver;
mod errands;
#[allow(dead_code, reason = "others hold streams up")]
#[path = "../cuda/fixture.rs"]
mod fixture;
mod meetings;
mod memories;
mod pipes;
mod proxy;
mod world;

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use tensorpipe::testing::{self, Network};
use tensorpipe::{Context, ambient};
use tensorpipe_rpc::{CallError, ConnectError, Connection, Replicas};
use tokio::runtime::{Builder, Handle};
use tokio::time::{Instant, sleep, timeout};

use self::errands::{ACTS, Errand, ErrandsClient, ErrandsService, Parcel, act, longest};
use self::memories::Memories;
use self::world::{Ground, Life, Weather, World};

/// The seeds of a usual run.
const SEEDS: std::ops::Range<u64> = 0..100;

/// The same in real time.
const REAL_SEEDS: std::ops::Range<u64> = 0..12;

/// An act ends at most so long after its time.
const LATE: Duration = Duration::from_millis(10);

/// In real time, for a story: otherwise a thread that spins would hang the test.
const PATIENCE: Duration = Duration::from_secs(300);

tensorpipe_tests::child! {
    "server" => world::serves(),
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// How often what has happened, by kind.
type Seen = Arc<Mutex<BTreeMap<String, u64>>>;

/// What happens in a story.
#[derive(Clone)]
struct Log {
    seen: Seen,
    network: Option<Network>,
}

impl Log {
    fn new(ground: &Ground, seen: Seen) -> Self {
        let network = match ground {
            Ground::Simulated(network) => Some(network.clone()),
            _ => None,
        };
        Self { seen, network }
    }

    fn count(&self, kind: &str) {
        *self
            .seen
            .lock()
            .unwrap()
            .entry(kind.to_owned())
            .or_default() += 1;
    }

    /// Adds a line to the network's trace.
    fn note(&self, words: String) {
        if let Some(network) = &self.network {
            network.note(words);
        }
    }
}

fn one_of<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.usize(..of.len())]
}

/// On top of a bound, where the clock is not virtual: for busy machines.
fn slack() -> Duration {
    match ambient::is_virtual(&Handle::current()) {
        true => Duration::ZERO,
        false => Duration::from_secs(20),
    }
}

/// Waits until it is so.
async fn until(what: &str, within: Duration, so: impl Fn() -> bool) {
    let within = within + slack();
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < within, "{what} after {within:?}");
        sleep(millis(1)).await;
    }
}

async fn in_time<T>(what: &str, within: Duration, work: impl Future<Output = T>) -> T {
    let within = within + slack();
    let ended = timeout(within, work).await;
    ended.unwrap_or_else(|_| panic!("{what} goes on after {within:?}"))
}

/// Neither tensors nor loans nor a part of the budget. Copies for others stay for some seconds.
async fn holds_nothing(context: &Context, within: Duration) {
    let held = || {
        let stats = context.pool().stats();
        stats.outstanding_bytes + stats.lendable.outstanding_bytes + stats.lendable.lent_bytes
    };
    until("tensors are held", within, || held() == 0).await;
    let taken = || {
        let stats = context.receive_budget();
        stats.taken + stats.waiting + stats.decoded + stats.announced
    };
    until("a budget is taken", within, || taken() == 0).await;
}

/// A client, on one connection or on replicas.
struct Visitor {
    client: ErrandsClient,
    on: On,
    memories: Memories,
}

enum On {
    Connection(Connection),
    Replicas(Replicas),
}

impl On {
    fn calls_in_flight(&self) -> usize {
        match self {
            Self::Connection(connection) => connection.calls_in_flight(),
            Self::Replicas(replicas) => {
                let status = replicas.status();
                status.iter().map(|one| one.calls_in_flight).sum()
            }
        }
    }

    async fn close(&self) -> Result<(), tensorpipe::Error> {
        match self {
            Self::Connection(connection) => connection.close().await,
            Self::Replicas(replicas) => replicas.close().await,
        }
    }
}

impl Visitor {
    async fn connect(
        world: &World,
        context: &Context,
        rng: &mut Rng,
    ) -> Result<Self, ConnectError> {
        let within = millis(60_000);
        let memories = Memories::of(context, world.fixture());
        if rng.u8(..4) == 0 {
            let urls = world.sites.iter().map(|site| site.front());
            let replicas = Replicas::builder().context(context).urls(urls).connect();
            let replicas = in_time("connecting", within, replicas).await?;
            let client = in_time("asking", within, ErrandsClient::on(&replicas)).await?;
            let on = On::Replicas(replicas);
            return Ok(Self {
                client,
                on,
                memories,
            });
        }
        let site = rng.usize(..world.sites.len());
        let connection = Connection::builder()
            .context(context)
            .service(ErrandsService::new(Errand(memories.clone())))
            .connect(world.sites[site].front());
        let connection = in_time("connecting", within, connection).await?;
        let client = in_time("asking", within, ErrandsClient::on(&connection)).await?;
        let on = On::Connection(connection);
        Ok(Self {
            client,
            on,
            memories,
        })
    }

    /// Some acts, several at a time.
    async fn acts(&self, weather: Weather, log: &Log, rng: &mut Rng) {
        let mut tasks = Vec::new();
        for _ in 0..rng.usize(1..8) {
            let (client, memories) = (self.client.clone(), self.memories.clone());
            let (log, mut rng) = (log.clone(), rng.fork());
            tasks.push(tokio::spawn(async move {
                for _ in 0..rng.usize(1..6) {
                    one_act(&client, &memories, weather, &log, &mut rng).await;
                }
            }));
        }
        // Nobody waits for what it began.
        if weather >= Weather::Cuts && rng.u8(..8) == 0 {
            sleep(millis(rng.u64(..500))).await;
            let _ = self.on.close().await;
        }
        for task in tasks {
            if let Err(error) = task.await {
                std::panic::resume_unwind(error.into_panic());
            }
        }
    }

    /// Nothing is under way, and as much fits through as through a new connection.
    async fn is_well(&self, world: &World) {
        let calls = || self.on.calls_in_flight() > 0;
        until("calls are under way", millis(1000), || !calls()).await;
        if let On::Connection(connection) = &self.on {
            let pipe = connection.pipe();
            until("messages are queued", millis(30_000), || {
                pipe.unwritten() == 0
            })
            .await;
            until("a client is referred to", millis(1000), || {
                connection.references() == 0
            })
            .await;
        }
        let weather = world.weather;
        let client = self.client.with_deadline(millis(20_000));
        for bytes in [0, 1 << 10, 100 << 10, 1 << 20] {
            // Until the server has the last word of the answer before, that one takes room.
            if weather > Weather::Calm {
                sleep(millis(200)).await;
            }
            match client.echo(Parcel::of(bytes, &self.memories)).await {
                Ok(_) => {}
                Err(CallError::Deadline { after, .. }) if after < millis(1000) => {
                    assert_eq!(world.limits.longest_call, millis(200));
                }
                // Calls that it had before may still be under way.
                Err(CallError::ShuttingDown) => {
                    assert_eq!(weather, Weather::Deaths);
                    return;
                }
                Err(error) => {
                    let has_ended = match &self.on {
                        On::Connection(connection) => connection.pipe().has_ended(),
                        On::Replicas(replicas) => {
                            replicas.status().iter().all(|one| one.route.is_none())
                        }
                    };
                    assert!(
                        weather >= Weather::Stalls && has_ended,
                        "{bytes} bytes: {error}"
                    );
                    return;
                }
            }
        }
    }
}

/// A visit on a runtime of its own, which ends in the middle of it.
async fn visit_for_a_while(world: Arc<World>, context: Context, log: Log, mut rng: Rng) {
    let visit = move || {
        let mut builder = match rng.bool() {
            true => Builder::new_current_thread(),
            false => Builder::new_multi_thread(),
        };
        let runtime = builder.worker_threads(2).enable_all().build().unwrap();
        let ends = millis(rng.u64(..1000));
        let is_abrupt = rng.bool();
        let visit = async {
            if let Ok(visitor) = Visitor::connect(&world, &context, &mut rng).await {
                // To its tasks it is the end of the world.
                visitor.acts(Weather::Deaths, &log, &mut rng).await;
            }
        };
        let _ = runtime.block_on(async { timeout(ends, visit).await });
        match is_abrupt {
            true => runtime.shutdown_background(),
            false => drop(runtime),
        }
        log.count("runtimes ended");
    };
    tokio::task::spawn_blocking(visit).await.unwrap();
}

async fn one_act(
    client: &ErrandsClient,
    memories: &Memories,
    weather: Weather,
    log: &Log,
    rng: &mut Rng,
) {
    let number = rng.usize(..ACTS.len());
    let deadline = match weather {
        Weather::Calm => millis(1_000_000),
        _ => millis(one_of(rng, &[3, 100, 2000, 20_000])),
    };
    let (name, id) = (ACTS[number], rng.u16(..));
    log.note(format!("act {id}: {name} within {deadline:?}"));
    let act = act(number, client.with_deadline(deadline), memories, rng.fork());
    if rng.u8(..5) == 0 {
        let up_to = one_of(rng, &[2, 50, 500]);
        let _ = timeout(millis(rng.u64(..up_to)), act).await;
        log.note(format!("act {id} is dropped"));
        return log.count("dropped");
    }
    let ended = in_time(name, longest(number, deadline) + LATE, act).await;
    log.note(format!("act {id} ends: {ended:?}"));
    let Err(error) = ended else {
        return log.count("done");
    };
    assert!(weather > Weather::Calm, "{name} in calm weather: {error}");
    let kind = error.split([' ', '(', '{']).next().unwrap();
    let never = ["Decode", "Panicked", "Unimplemented", "Denied", "NoPlace"];
    assert!(!never.contains(&kind), "{name}: {error}");
    let is_full = ["Misuse", "OutOfMemory"];
    let is_full = is_full.iter().any(|why| error.contains(why));
    let has_ended = kind == "Connection" && !is_full;
    assert!(weather >= Weather::Stalls || !has_ended, "{name}: {error}");
    log.count(kind);
}

async fn story(ground: Ground, seed: u64, seen: Seen) {
    let rng = &mut Rng::with_seed(seed);
    let weather = one_of(rng, &Weather::ALL);
    let log = Log::new(&ground, seen);
    let world = Arc::new(World::new(ground, weather, seed, rng));
    println!(
        "seed {seed}: {weather:?}, {} servers, {} clients",
        world.sites.len(),
        world.clients.len()
    );
    for site in &world.sites {
        world.serve(site, rng).await;
    }
    let contexts = world.clients.iter().map(|name| world.context(name, rng));
    let contexts: Vec<_> = contexts.collect();
    for _ in 0..rng.usize(1..4) {
        let visits = contexts.iter().map(|context| {
            let (world, log, mut rng) = (&world, &log, rng.fork());
            async move {
                if world.is_real() && rng.u8(..4) == 0 {
                    visit_for_a_while(world.clone(), context.clone(), log.clone(), rng).await;
                    return None;
                }
                match Visitor::connect(world, context, &mut rng).await {
                    Ok(visitor) => {
                        visitor.acts(weather, log, &mut rng).await;
                        Some(visitor)
                    }
                    Err(error) => {
                        assert!(weather > Weather::Calm, "{error}");
                        log.count("not connected");
                        None
                    }
                }
            }
        });
        let visits = join_all(visits);
        let strikes = world.strikes(rng.fork());
        let visitors = tokio::select! {
            biased;
            visitors = visits => visitors,
            () = strikes => unreachable!("without end"),
        };
        world.clears(rng).await;
        let visitors: Vec<_> = visitors.into_iter().flatten().collect();
        for site in &world.sites {
            let at_rest = || {
                site.with(|server, _| {
                    let queued = server.pipes().iter().any(|pipe| pipe.unwritten() > 0);
                    server.calls_in_flight() == 0 && !queued
                })
            };
            until("a server is at work", millis(30_000), || {
                at_rest().unwrap_or(true)
            })
            .await;
        }
        for visitor in &visitors {
            visitor.is_well(&world).await;
        }
        for site in &world.sites {
            let Some(context) = site.with(|_, context| context.clone()) else {
                continue;
            };
            let free = || site.with(|server, _| server.references() == 0);
            until("a server is referred to", millis(1000), || {
                free() == Some(true)
            })
            .await;
            holds_nothing(&context, millis(1000)).await;
        }
        for context in &contexts {
            holds_nothing(context, millis(1000)).await;
        }
        // Some say goodbye, others are dropped.
        for Visitor { client, on, .. } in visitors {
            drop(client);
            if rng.bool() {
                let bound = world.timeouts.linger + millis(1000);
                let closed = in_time("closing", bound, on.close()).await;
                assert!(closed.is_ok() || weather >= Weather::Stalls, "{closed:?}");
            }
        }
        for site in &world.sites {
            let empty = || site.with(|server, _| server.pipes().is_empty());
            until("a server keeps pipes", millis(60_000), || {
                empty().unwrap_or(true)
            })
            .await;
        }
    }
    world.has_shut_down().await;
    for site in &world.sites {
        if let Some(Life::Here(server, context)) = site.take() {
            in_time("a shutdown", world.shutdown(), server.shutdown()).await;
            holds_nothing(&context, millis(1000)).await;
        }
    }
    for context in &contexts {
        holds_nothing(context, millis(1000)).await;
        let bound = world.timeouts.linger + millis(1000);
        let _ = in_time("closing a context", bound, context.close()).await;
    }
}

fn seeds(usual: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let Ok(asked) = std::env::var("WEATHER") else {
        return usual;
    };
    let (from, to) = asked.split_once("..").expect("WEATHER is FROM..TO");
    from.parse().unwrap()..to.parse().unwrap()
}

/// Shows the end of the trace of a story that panics.
struct Shows(Network);

impl Drop for Shows {
    fn drop(&mut self) {
        if thread::panicking() {
            let trace = self.0.trace();
            let last = trace.len().saturating_sub(200);
            trace[last..].iter().for_each(|event| println!("{event}"));
        }
    }
}

/// Runs a story for each seed on a thread of its own, so many at a time.
fn runs(seeds: std::ops::Range<u64>, at_a_time: usize, story: fn(u64, Seen)) {
    let (seen, mut running) = (Seen::default(), VecDeque::new());
    let mut seeds = seeds.peekable();
    while seeds.peek().is_some() || !running.is_empty() {
        while running.len() < at_a_time
            && let Some(seed) = seeds.next()
        {
            let (tell, told) = mpsc::channel();
            let seen = seen.clone();
            let thread = thread::spawn(move || {
                story(seed, seen);
                let _ = tell.send(());
            });
            running.push_back((seed, thread, told));
        }
        let (seed, thread, told) = running.pop_front().unwrap();
        match told.recv_timeout(PATIENCE) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => panic!("seed {seed} goes on after {PATIENCE:?}"),
            Err(RecvTimeoutError::Disconnected) => {
                let _ = thread.join();
                panic!("seed {seed} failed");
            }
        }
    }
    println!("{:?}", seen.lock().unwrap());
}

#[test]
fn acts_end_in_time_and_leave_nothing() {
    runs(seeds(SEEDS), 1, |seed, seen| {
        testing::run(seed, async |network: Network| {
            let _shows = Shows(network.clone());
            story(Ground::Simulated(network), seed, seen).await;
        });
    });
}

#[test]
fn pipes_carry_what_they_can_and_keep_nothing() {
    runs(seeds(SEEDS), 1, |seed, seen| {
        testing::run(seed, async |network: Network| {
            let _shows = Shows(network.clone());
            pipes::story(Ground::Simulated(network), seed, seen).await;
        });
    });
}

#[test]
fn values_meet_those_who_ask_for_them() {
    runs(seeds(SEEDS), 1, |seed, seen| {
        testing::run(seed, async |network: Network| {
            let _shows = Shows(network.clone());
            meetings::story(Ground::Simulated(network), seed, seen).await;
        });
    });
}

/// Several threads, memory that is lent, and tcp through a proxy.
fn in_real_time(seed: u64, story: impl Future<Output = ()>) {
    let mut builder = match seed % 3 {
        0 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    let runtime = builder.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(story);
}

#[test]
fn acts_in_real_time() {
    runs(seeds(REAL_SEEDS), 4, |seed, seen| {
        in_real_time(seed, story(Ground::here(seed), seed, seen));
    });
}

/// Processes stop and go on, and are killed.
#[test]
fn acts_between_processes() {
    runs(seeds(REAL_SEEDS), 4, |seed, seen| {
        in_real_time(seed, story(Ground::processes(seed), seed, seen));
    });
}

#[test]
fn pipes_in_real_time() {
    runs(seeds(REAL_SEEDS), 4, |seed, seen| {
        in_real_time(seed, pipes::story(Ground::here(seed), seed, seen));
    });
}

#[test]
fn meetings_in_real_time() {
    runs(seeds(REAL_SEEDS), 4, |seed, seen| {
        in_real_time(seed, meetings::story(Ground::here(seed), seed, seen));
    });
}

/// Tensors on the devices of the driver for tests, which sees what is done wrong there.
#[test]
fn acts_and_pipes_of_gpus() {
    runs(seeds(REAL_SEEDS), 4, |seed, seen| {
        let ground = || Ground::gpus(seed);
        in_real_time(seed, async move {
            pipes::story(ground(), seed, seen.clone()).await;
            story(ground(), seed, seen).await;
        });
    });
    driver::nothing_went_wrong();
}
