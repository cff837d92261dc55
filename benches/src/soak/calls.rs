//! `tp-bench churn`: two processes that live, and do all that calls can do at once, while it is looked whether memory grows.
//!
//! ```text
//! caller (this process)                                    server (a child)
//!   workers, over shm and over tcp       -- calls -->        Everything
//!     one act after another (`acts`)     <-- calls back --   the same service is served here, too
//!   twice a second                       -- state? -->       Control, on a server of its own
//!     a rest: the acts under way end, no new ones begin, and nothing may be held or under way at either end; a sample
//! ```
//! Memory at rest does not depend on what happens to be under way, so its medians early and late tell a leak of kilobytes a second
//! from chance. Two things that are bounded, and vary by chance, are kept out of it. Pools give back at each rest what they keep
//! warm. Holes in the allocator's arenas are kept small ([`tune`]).

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

/// What came out.
#[derive(Clone, Debug, Serialize)]
struct Report {
    case: &'static str,
    seed: u64,
    seconds: f64,
    /// Samples after the warm-up, at rest.
    samples: usize,
    /// What was done, and how often.
    acts: BTreeMap<&'static str, u64>,
    /// Tensors and payloads that each channel of the lasting connections was given by the caller: `shm + lease`.
    given: BTreeMap<String, u64>,
    /// Pipes of replicas that were cut.
    cuts: u64,
    bound: f64,
    sides: Vec<Side>,
    /// What was still held or under way when all connections were closed; nothing.
    left: Vec<String>,
    /// Every sample at rest, for whoever draws them.
    rest: Vec<Sample>,
}

/// Both processes, at once.
#[derive(Clone, Copy, Debug, Serialize)]
struct Sample {
    /// Seconds since the start.
    at: f64,
    caller: Look,
    server: Look,
}

/// What is known of one process.
#[derive(Clone, Debug, Serialize)]
struct Side {
    name: &'static str,
    /// How memory at rest grew after the warm-up; `None`: too few samples.
    private: Option<Growth>,
    shared: Option<Growth>,
    /// What is in use of the heap, where that is counted.
    in_use: Option<Growth>,
}

/// Does it all, and prints what was done. An error says everything that was not as it should be, growth of memory and what is left
/// included, and the seed to have it again.
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
    // What is made once in a process and stays is there before anything is counted.
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

/// This process, and the one that it calls.
struct Caller {
    orders: Churn,
    sites: Vec<Site>,
    served: Served,
    control: ControlClient,
    /// Ends with this.
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

    /// Does each act once over each transport: a slow machine does not come to all of them in a second.
    async fn rehearse(&self, seed: u64) -> Result<()> {
        let (mut rng, bustle) = (Rng::with_seed(seed), Bustle::default());
        for visit in self.visits().await? {
            for number in 0..ACTS.len() {
                bustle.act(number, &visit, &mut rng).await?;
            }
            // The connections that values go over stay.
            visit.actor.meet(step(), &mut rng, true).await?;
            visit.close().await?;
        }
        Ok(())
    }

    /// Connects, does everything for so many seconds, and as many more, and closes.
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
        // They are no part of what grows.
        let mut rest = Vec::with_capacity(2 * MOST_SAMPLES as usize);
        let progress = report::progress((warm_up + seconds).ceil() as u64);
        let mut watched = Ok(());
        while watched.is_ok() && start.elapsed().as_secs_f64() < warm_up + seconds {
            let next = start + interval * (rest.len() as u32 + 1);
            watched = tokio::select! {
                () = tokio::time::sleep_until(next.into()) => {
                    self.rest(start, &visits, &bustle).await.map(|sample| rest.push(sample))
                }
                // It never ends by itself.
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

    /// A sample of a rest: nobody begins anything, and what is under way ends.
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
        // The least of some samples: a process unmaps what the other one has given back when it hears of it.
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

    /// What both hold.
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
    /// Read by whoever is at it, written by a rest.
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

/// The next step at any rendezvous, which nobody has had in this process.
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

/// Has pipes of replicas closed, by the server's process.
async fn cut(control: ControlClient, bustle: Arc<Bustle>, mut rng: Rng) -> Result<()> {
    while !bustle.is_over.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(rng.u64(..300))).await;
        let _at_it = bustle.gate.read().await;
        let was_cut = control.cut(rng.u64(..)).await?;
        bustle.cuts.fetch_add(u64::from(was_cut), Ordering::SeqCst);
    }
    Ok(())
}

/// What is known of one process; what comes before the end of the warm-up does not count.
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

/// What is not as it should be.
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

/// Between two samples, at least.
const INTERVAL: Duration = Duration::from_millis(500);
const MOST_SAMPLES: u32 = 600;
/// Seconds of the first visit, which is not looked at.
const OVERTURE: f64 = 1.0;
/// Samples of a rest, 2 ms apart.
const LOOKS: u32 = 10;
