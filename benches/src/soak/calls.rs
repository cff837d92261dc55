//! `tp-bench churn`: two long-lived processes use every feature of calls at once, while the command checks that memory does not grow.
//!
//! ```text
//! caller (this process)                                    server (a child)
//!   workers, over shm and over tcp       -- calls -->        Everything
//!     one act after another (`acts`)     <-- calls back --   the same service is served here, too
//!   twice a second                       -- state? -->       Control, on a server of its own
//!     a rest: the acts under way end, no new ones begin, and nothing may be held or under way at either end; a sample
//! ```
//! Memory at rest does not depend on the acts in flight, so comparing its early and late medians reveals a leak of kilobytes a
//! second. Two sources of random, bounded variation are removed: at each rest, pools give back the memory that they keep warm, and
//! [`tune`] keeps holes in the allocator's arenas small.

mod site;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use fastrand::Rng;
use serde::Serialize;
use tokio::sync::RwLock;
use tokio::task::JoinSet;

use self::site::{ControlClient, Look, Orders, Served, Site, TRANSPORTS, Visit, context};
use super::acts::{ACTS, CALLER};
use super::{BOUND, Growth, Holdings, LOOK, differences, grown, holdings, settled, steady, tune};
use crate::peer::Peer;
use crate::plan::{Flavor, seconds};
use crate::report;
use crate::size::Size;

pub(crate) use self::site::play;

#[derive(Clone, Debug, Args)]
pub(crate) struct Churn {
    /// What is drawn by chance follows from it: what is done, sizes, what is given up.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How long memory is looked at, in seconds.
    #[arg(long, default_value_t = 60.0, value_parser = seconds)]
    seconds: f64,
    /// How long the same is done before, in seconds.
    #[arg(long, default_value_t = 60.0, value_parser = seconds)]
    warm_up: f64,
    /// The most that private memory, shared memory and what of the heap is in use (where that is counted) may grow after the
    /// warm-up, in percent; inf for no bound.
    #[arg(long, default_value_t = 5.0)]
    bound: f64,
    /// The largest tensor.
    #[arg(long, default_value = "2MiB")]
    largest: Size,
    /// Tasks over each transport that do one thing after another.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    workers: u32,
    /// The kind of tokio runtime on both sides.
    #[arg(long, value_enum, default_value_t = Flavor::Multi)]
    runtime: Flavor,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// The result of a churn.
#[derive(Clone, Debug, Serialize)]
struct Report {
    case: &'static str,
    seed: u64,
    seconds: f64,
    /// Samples after the warm-up, at rest.
    samples: usize,
    /// Number of acts by name.
    acts: BTreeMap<&'static str, u64>,
    /// Tensors and payloads that each channel of the lasting connections was given by the caller: `shm + lease`.
    given: BTreeMap<String, u64>,
    /// Pipes of replicas that were cut.
    cuts: u64,
    bound: f64,
    sides: Vec<Side>,
    /// Everything still held or in flight after all connections were closed; must be empty.
    left: Vec<String>,
    /// Every sample at rest, for plotting.
    rest: Vec<Sample>,
}

/// The state of both processes at one moment.
#[derive(Clone, Copy, Debug, Serialize)]
struct Sample {
    /// Seconds since the start.
    at: f64,
    caller: Look,
    server: Look,
}

/// Results for one process.
#[derive(Clone, Debug, Serialize)]
struct Side {
    name: &'static str,
    /// How memory at rest grew after the warm-up; `None`: too few samples.
    private: Option<Growth>,
    shared: Option<Growth>,
    /// Heap bytes in use, if they are counted.
    in_use: Option<Growth>,
}

/// Runs the command and prints what was done. An error lists everything that went wrong, including growth of memory and leftovers,
/// and the seed to repeat it.
pub(crate) fn run(arguments: &Churn) -> Result<()> {
    tune()?;
    let runtime = arguments.runtime.build()?;
    let churned = runtime.block_on(churn(arguments));
    runtime.shutdown_timeout(Duration::from_secs(1));
    let seed = arguments.seed;
    let report = churned.with_context(|| format!("seed {seed}"))?;
    report::say(match arguments.json {
        true => serde_json::to_string(&report)?,
        false => words(&report),
    });
    let faults = faults(&report).join("; ");
    ensure!(faults.is_empty(), "seed {seed}: {faults}");
    Ok(())
}

async fn churn(orders: &Churn) -> Result<Report> {
    let caller = Caller::start(orders.clone()).await?;
    // Lets the process make its lasting allocations before anything is counted.
    caller.rehearse(!orders.seed).await?;
    caller.churn(!orders.seed, 0.0, OVERTURE).await?;
    let before = steady(async || caller.held().await).await?;
    let mut report = caller
        .churn(orders.seed, orders.warm_up, orders.seconds)
        .await?;
    let left = settled(async || {
        let mut left = caller.control.state().await?.0.busy("server");
        let sides = ["caller", "server"].into_iter();
        for ((name, before), now) in sides.zip(&before).zip(&caller.held().await?) {
            let more = differences(before, now).into_iter();
            left.extend(more.map(|what| format!("{name}: {what}")));
        }
        Ok(left)
    });
    report.left = left.await?;
    Ok(report)
}

/// This process, and its connection to the server process.
struct Caller {
    orders: Churn,
    sites: Vec<Site>,
    served: Served,
    control: ControlClient,
    /// The server process, which ends when this is dropped.
    _peer: Peer,
}

impl Caller {
    async fn start(orders: Churn) -> Result<Self> {
        let mut sites = Vec::new();
        for transport in TRANSPORTS {
            sites.push(Site::open(transport, CALLER, None, orders.largest.0).await?);
        }
        let told = Orders {
            largest: orders.largest.0,
            runtime: orders.runtime,
            callers: sites.iter().map(|site| site.urls().main).collect(),
        };
        let starting = tokio::task::spawn_blocking(move || Peer::start("churn-peer", &told));
        let peer = starting.await??;
        let served: Served = serde_json::from_str(peer.address())?;
        for (site, there) in sites.iter().zip(&served.sites) {
            site.meet(there)?;
        }
        let control = ControlClient::connect_with(&context("tcp")?, served.control.clone()).await?;
        Ok(Self {
            orders,
            sites,
            served,
            control,
            _peer: peer,
        })
    }

    async fn visits(&self) -> Result<Vec<Visit>> {
        let mut visits = Vec::new();
        for (site, there) in self.sites.iter().zip(&self.served.sites) {
            let visit = site.visit(there).await;
            visits.push(visit.with_context(|| site.transport)?);
        }
        Ok(visits)
    }

    /// Performs each act once over each transport, because a slow machine might not reach all of them within a second.
    async fn rehearse(&self, seed: u64) -> Result<()> {
        let (mut rng, bustle) = (Rng::with_seed(seed), Bustle::default());
        for visit in self.visits().await? {
            for number in 0..ACTS.len() {
                bustle.act(number, &visit, &mut rng).await?;
            }
            // Opens the connections for rendezvous values, which stay open.
            visit.actor.meet(step(), &mut rng, true).await?;
            visit.close().await?;
        }
        Ok(())
    }

    /// Connects, performs acts for `warm_up` and then for `seconds`, and closes.
    async fn churn(&self, seed: u64, warm_up: f64, seconds: f64) -> Result<Report> {
        let visits = self.visits().await?;
        let bustle = Arc::new(Bustle::default());
        let mut rng = Rng::with_seed(seed);
        let mut workers = JoinSet::new();
        for visit in &visits {
            for _ in 0..self.orders.workers {
                workers.spawn(work(visit.clone(), bustle.clone(), rng.fork()));
            }
        }
        workers.spawn(cut(self.control.clone(), bustle.clone(), rng.fork()));
        let start = Instant::now();
        let interval = INTERVAL.max(Duration::from_secs_f64(warm_up + seconds) / MOST_SAMPLES);
        // Allocated up front, so that the samples themselves do not count as growth.
        let mut rest = Vec::with_capacity(2 * MOST_SAMPLES as usize);
        let progress = report::progress((warm_up + seconds).ceil() as u64);
        let mut watched = Ok(());
        while watched.is_ok() && start.elapsed().as_secs_f64() < warm_up + seconds {
            let next = start + interval * (rest.len() as u32 + 1);
            watched = tokio::select! {
                () = tokio::time::sleep_until(next.into()) => {
                    self.rest(start, &visits, &bustle).await.map(|sample| rest.push(sample))
                }
                // A worker never ends by itself.
                Some(ended) = workers.join_next() => ended?.and_then(|()| bail!("a worker ended too early")),
            };
            progress.set_position(start.elapsed().as_secs());
        }
        progress.finish_and_clear();
        bustle.is_over.store(true, Ordering::SeqCst);
        while let Some(worker) = workers.join_next().await {
            worker??;
        }
        watched?;
        let given = visits.iter().flat_map(Visit::given).collect();
        for visit in visits {
            visit.close().await?;
        }
        let acts = bustle.acts.iter().map(|count| count.load(Ordering::SeqCst));
        Ok(Report {
            case: "churn",
            seed,
            seconds: start.elapsed().as_secs_f64(),
            samples: rest.iter().filter(|one| one.at >= warm_up).count(),
            acts: ACTS.into_iter().zip(acts).collect(),
            given,
            cuts: bustle.cuts.load(Ordering::SeqCst),
            bound: self.orders.bound,
            sides: vec![
                side("caller", warm_up, &rest, |sample| &sample.caller),
                side("server", warm_up, &rest, |sample| &sample.server),
            ],
            left: Vec::new(),
            rest,
        })
    }

    /// Takes a sample at rest: no act begins, and all acts in flight have ended.
    async fn rest(&self, start: Instant, visits: &[Visit], bustle: &Bustle) -> Result<Sample> {
        let _resting = bustle.gate.write().await;
        for visit in visits {
            visit.everybody_is_there().await?;
        }
        let left = settled(async || {
            let Sample { caller, server, .. } = self.sample(start, visits).await?;
            let mut left = caller.busy("caller");
            left.extend(server.busy("server"));
            Ok(left)
        });
        let left = left.await?;
        ensure!(
            left.is_empty(),
            "nobody calls, and there are still {}",
            left.join(", ")
        );
        // The least of some samples, because a process unmaps returned memory only when it hears of the return.
        let mut least = self.sample(start, visits).await?;
        for _ in 0..LOOKS {
            tokio::time::sleep(LOOK).await;
            let again = self.sample(start, visits).await?;
            least.caller.at_most(&again.caller);
            least.server.at_most(&again.server);
        }
        Ok(least)
    }

    async fn sample(&self, start: Instant, visits: &[Visit]) -> Result<Sample> {
        let there = self.control.state().await;
        let there = there.context("the other process does not say how it is")?;
        Ok(Sample {
            at: start.elapsed().as_secs_f64(),
            caller: Look::here(&self.sites, visits)?,
            server: there.0,
        })
    }

    /// The holdings of both processes.
    async fn held(&self) -> Result<[Holdings; 2]> {
        let there = self.control.state().await?.1;
        Ok([
            holdings(self.sites.iter().map(|site| &site.hand.context))?,
            there,
        ])
    }
}

/// What workers share.
#[derive(Default)]
struct Bustle {
    /// Acts hold it for reading, a rest for writing.
    gate: RwLock<()>,
    is_over: AtomicBool,
    acts: [AtomicU64; ACTS.len()],
    cuts: AtomicU64,
}

impl Bustle {
    async fn act(&self, number: usize, visit: &Visit, rng: &mut Rng) -> Result<()> {
        let acting = tokio::time::timeout(BOUND, visit.actor.act(number, step(), rng)).await;
        let acted = acting.unwrap_or_else(|late| Err(late.into()));
        acted.with_context(|| format!("{} over {}", ACTS[number], visit.transport))?;
        self.acts[number].fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// The next rendezvous step, unique in this process.
fn step() -> u64 {
    static STEPS: AtomicU64 = AtomicU64::new(0);
    STEPS.fetch_add(1, Ordering::Relaxed)
}

async fn work(visit: Visit, bustle: Arc<Bustle>, mut rng: Rng) -> Result<()> {
    while !bustle.is_over.load(Ordering::SeqCst) {
        let _at_it = bustle.gate.read().await;
        bustle
            .act(rng.usize(..ACTS.len()), &visit, &mut rng)
            .await?;
    }
    Ok(())
}

/// Asks the server process again and again to close a pipe of a replica.
async fn cut(control: ControlClient, bustle: Arc<Bustle>, mut rng: Rng) -> Result<()> {
    while !bustle.is_over.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(rng.u64(..300))).await;
        let _at_it = bustle.gate.read().await;
        let was_cut = control.cut(rng.u64(..)).await?;
        bustle.cuts.fetch_add(u64::from(was_cut), Ordering::SeqCst);
    }
    Ok(())
}

/// Results for one process, from the samples after the warm-up.
fn side(name: &'static str, warm_up: f64, rest: &[Sample], of: fn(&Sample) -> &Look) -> Side {
    let warm: Vec<_> = rest.iter().filter(|sample| sample.at >= warm_up).collect();
    let growth = |kib: fn(&Look) -> Option<u64>| {
        Growth::of(warm.iter().filter_map(|sample| kib(of(sample))))
    };
    Side {
        name,
        private: growth(|look| Some(look.memory.anon)),
        shared: growth(|look| Some(look.memory.shmem)),
        in_use: growth(|look| Some(look.heap? >> 10)),
    }
}

/// Everything that went wrong.
fn faults(report: &Report) -> Vec<String> {
    let looked_at = report.sides.iter().flat_map(|side| {
        let of = |what: &str, growth| (format!("{what} of the {}", side.name), growth);
        [
            of("private memory", side.private),
            of("shared memory", side.shared),
            of("the heap in use", side.in_use),
        ]
    });
    let grown = grown(looked_at, report.bound).into_iter();
    let idle = report.given.iter().filter(|(_, given)| **given == 0);
    let idle = idle.map(|(way, _)| format!("nothing was carried by {way}"));
    let left = report.left.iter().map(|left| format!("left: {left}"));
    grown.chain(idle).chain(left).collect()
}

/// A line of the table.
#[derive(Serialize)]
struct Row {
    name: &'static str,
    private: Option<String>,
    shared: Option<String>,
    in_use: Option<String>,
}

fn words(report: &Report) -> String {
    let acts = report
        .acts
        .iter()
        .map(|(name, count)| format!("{name} {count}"));
    let given = report
        .given
        .iter()
        .map(|(way, count)| format!("{way} {count}"));
    let told = |growth: Option<Growth>| growth.map(|growth| growth.to_string());
    let sides = report.sides.iter().map(|side| Row {
        name: side.name,
        private: told(side.private),
        shared: told(side.shared),
        in_use: told(side.in_use),
    });
    let sides: Vec<_> = sides.collect();
    format!(
        "seed {}: {:.0} s over shm and tcp, every byte checked\n\n{}\n\n\
         memory at rest, medians of the first and the last quarter of {} samples after the warm-up; in_use: of the heap, with the feature `heap`.\n\
         At rest no call is under way, nothing is held by anybody, and pools are trimmed\n\
         done: {}; pipes of replicas cut {}\n\
         tensors and payloads by channel: {}\n\
         left when all was closed (descriptors, mappings, pools, references, calls): {}",
        report.seed,
        report.seconds,
        report::table(FIELDS, &sides),
        report.samples,
        acts.collect::<Vec<_>>().join(", "),
        report.cuts,
        given.collect::<Vec<_>>().join(", "),
        report.left.join("; "),
    )
}

const FIELDS: &str = "name private shared in_use";

/// Shortest time between two samples.
const INTERVAL: Duration = Duration::from_millis(500);
const MOST_SAMPLES: u32 = 600;
/// Seconds of the first visit, whose samples are not used.
const OVERTURE: f64 = 1.0;
/// Samples of a rest, 2 ms apart.
const LOOKS: u32 = 10;
