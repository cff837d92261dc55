//! The process that calls: workers, rests between them, and what was seen meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use tokio::sync::RwLock;
use tokio::task::JoinSet;

use super::acts::{ACTS, act, rendezvous};
use super::road::{self, Road};
use super::service::ControlClient;
use super::site::{Site, Visit};
use super::watch::{self, LOOK, Look, PATIENCE, Report, Sample, side};
use super::{Addresses, Busy, Orders, PeerOrders, State};
use crate::memory::resident;
use crate::peer::Peer;
use crate::progress::Progress;
use crate::soak::dice::Dice;
use crate::soak::residue::Holdings;

/// Does it all.
///
/// # Errors
/// When something that comes back is not right, or does not come; the seed to have it again. Memory that grows, and what is
/// left, is in the report.
pub(crate) fn run(orders: &Orders, progress: &Progress) -> Result<Report> {
    let runtime = orders.runtime.build()?;
    let churned = runtime.block_on(async {
        let (orders, progress) = (orders.clone(), progress.clone());
        // A task, so that it is polled where its connections are, on either kind of runtime.
        tokio::spawn(async move {
            let caller = Caller::start(&orders).await?;
            // What is made once in a process and stays is there before anything is counted.
            caller.rehearse(!orders.seed).await?;
            caller
                .churn(!orders.seed, 0.0, OVERTURE, &Progress::new(0))
                .await?;
            let before = caller.holdings().await?;
            let (warm_up, seconds) = (orders.warm_up, orders.seconds);
            let mut report = caller
                .churn(orders.seed, warm_up, seconds, &progress)
                .await?;
            report.left = caller.left(&before).await?;
            anyhow::Ok(report)
        })
        .await
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    churned?.with_context(|| format!("seed {}", orders.seed))
}

/// This process, and the one that it calls.
struct Caller {
    orders: Orders,
    sites: Vec<Arc<Site>>,
    addresses: Addresses,
    control: ControlClient,
    peer: Peer,
}

impl Caller {
    async fn start(orders: &Orders) -> Result<Self> {
        let mut sites = Vec::new();
        for road in road::ALL {
            sites.push(Arc::new(Site::open(road, orders.largest).await?));
        }
        let told = PeerOrders {
            largest: orders.largest,
            runtime: orders.runtime,
            callers: sites.iter().map(|site| site.url()).collect(),
        };
        let starting = tokio::task::spawn_blocking(move || Peer::start("churn-peer", &told));
        let peer = starting.await??;
        let addresses: Addresses = serde_json::from_str(peer.address())?;
        for (site, there) in sites.iter().zip(&addresses.roads) {
            site.meet(there)?;
        }
        let context = Road::Tcp.context()?;
        let control = ControlClient::connect_with(&context, addresses.control.clone()).await?;
        Ok(Self {
            orders: orders.clone(),
            sites,
            addresses,
            control,
            peer,
        })
    }

    /// Does each act once over each road: a slow machine does not come to all of them in a second.
    async fn rehearse(&self, seed: u64) -> Result<()> {
        let mut dice = Dice::new(seed);
        for (site, there) in self.sites.iter().zip(&self.addresses.roads) {
            let visit = site.visit(there).await?;
            for (number, name) in ACTS.iter().enumerate() {
                let acted = act(number, &visit, &mut dice).await;
                acted.with_context(|| format!("{name} over {}", site.road.name()))?;
            }
            // The connections that values go over stay.
            rendezvous(&visit, &mut dice, true).await?;
            visit.close().await?;
        }
        Ok(())
    }

    /// Connects, does everything for so many seconds, and as many more, and closes.
    async fn churn(
        &self,
        seed: u64,
        warm_up: f64,
        seconds: f64,
        progress: &Progress,
    ) -> Result<Report> {
        let mut visits = Vec::new();
        for (site, there) in self.sites.iter().zip(&self.addresses.roads) {
            let visit = site.visit(there).await;
            visits.push(visit.with_context(|| site.road.name())?);
        }
        let bustle = Arc::new(Bustle::default());
        let mut dice = Dice::new(seed);
        let mut workers = JoinSet::new();
        for visit in &visits {
            for _ in 0..self.orders.workers {
                let (visit, bustle, dice) = (visit.clone(), bustle.clone(), dice.fork());
                workers.spawn(work(visit, bustle, dice));
            }
        }
        workers.spawn(cut(self.control.clone(), bustle.clone(), dice.fork()));
        let start = Instant::now();
        let watched = self
            .watch(
                start,
                warm_up + seconds,
                &visits,
                &bustle,
                &mut workers,
                progress,
            )
            .await;
        bustle.is_over.store(true, Ordering::SeqCst);
        while let Some(worker) = workers.join_next().await {
            worker??;
        }
        let (busy, rest) = watched?;
        let given = visits.iter().flat_map(Visit::given).collect();
        for visit in visits {
            visit.close().await?;
        }
        let side = |name, of| side(name, warm_up, &busy, &rest, of);
        Ok(Report {
            case: "churn",
            seed,
            seconds: start.elapsed().as_secs_f64(),
            samples: rest.iter().filter(|one| one.at >= warm_up).count(),
            acts: bustle.acts(),
            given,
            cuts: bustle.cuts.load(Ordering::SeqCst),
            bound: self.orders.bound,
            sides: vec![
                side("caller", |sample| &sample.caller),
                side("server", |sample| &sample.server),
            ],
            left: Vec::new(),
            rest,
        })
    }

    /// A sample of the bustle and one of a rest, twice a second.
    async fn watch(
        &self,
        start: Instant,
        seconds: f64,
        visits: &[Visit],
        bustle: &Bustle,
        workers: &mut JoinSet<Result<()>>,
        progress: &Progress,
    ) -> Result<(Vec<Sample>, Vec<Sample>)> {
        let (mut busy, mut rest) = (Vec::new(), Vec::new());
        let mut next = start;
        while start.elapsed().as_secs_f64() < seconds {
            next += INTERVAL;
            tokio::select! {
                () = tokio::time::sleep_until(next.into()) => {}
                // It never ends by itself.
                Some(ended) = workers.join_next() => {
                    ended??;
                    bail!("a worker ended too early");
                }
            }
            busy.push(self.sample(start, visits, false).await?);
            let resting = tokio::time::timeout(PATIENCE, bustle.gate.write());
            let resting = resting.await.map_err(|_| {
                anyhow!(
                    "after {PATIENCE:?} somebody is still at it: {}",
                    bustle.at_it()
                )
            })?;
            rest.push(self.rest(start, visits).await?);
            drop(resting);
            if busy.len().is_multiple_of(2) {
                progress.end();
            }
        }
        Ok((busy, rest))
    }

    async fn sample(&self, start: Instant, visits: &[Visit], trim: bool) -> Result<Sample> {
        let there = self.state(trim).await?;
        if trim {
            self.trim();
        }
        let caller = Look {
            memory: resident(std::process::id())?,
            descriptors: Holdings::now()?.descriptors(),
            kept: self
                .sites
                .iter()
                .map(|site| watch::kept(&site.hand.context))
                .sum(),
            heap: crate::memory::in_use(),
            busy: visits.iter().map(Visit::busy).sum(),
        };
        Ok(Sample {
            at: start.elapsed().as_secs_f64(),
            caller,
            server: Look {
                memory: resident(self.peer.id())?,
                descriptors: there.descriptors,
                kept: there.kept,
                heap: there.heap,
                busy: there.busy,
            },
        })
    }

    /// A sample as soon as nothing is under way or held.
    async fn rest(&self, start: Instant, visits: &[Visit]) -> Result<Sample> {
        let end = Instant::now() + PATIENCE;
        for visit in visits {
            visit.everybody_is_there().await?;
        }
        loop {
            let sample = self.sample(start, visits, true).await?;
            let Sample { caller, server, .. } = &sample;
            if caller.busy == Busy::default() && server.busy == Busy::default() {
                return self.least(sample, start, visits).await;
            }
            let mut left = caller.busy.words("caller");
            left.extend(server.busy.words("server"));
            ensure!(
                Instant::now() < end,
                "nobody calls, and there are still {}",
                left.join(", ")
            );
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Pools keep nothing warm.
    fn trim(&self) {
        for site in &self.sites {
            site.hand.context.pool().trim(0);
        }
    }

    /// The least of some samples: a process unmaps what the other one has given back when it hears of it.
    async fn least(&self, first: Sample, start: Instant, visits: &[Visit]) -> Result<Sample> {
        let mut least = first;
        for _ in 0..LOOKS {
            tokio::time::sleep(LOOK).await;
            let again = self.sample(start, visits, true).await?;
            least.caller.memory = least.caller.memory.min(again.caller.memory);
            least.server.memory = least.server.memory.min(again.server.memory);
        }
        Ok(least)
    }

    async fn state(&self, trim: bool) -> Result<State> {
        let state = self.control.state(trim).await;
        state.context("the other process does not say how it is")
    }

    /// What both hold when nothing goes on, once that does not change any more.
    async fn holdings(&self) -> Result<[Holdings; 2]> {
        let end = Instant::now() + PATIENCE;
        let mut last = self.held().await?;
        let mut since = Instant::now();
        while since.elapsed() < STEADY && Instant::now() < end {
            tokio::time::sleep(10 * LOOK).await;
            let now = self.held().await?;
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        Ok(last)
    }

    async fn held(&self) -> Result<[Holdings; 2]> {
        self.trim();
        let there = self.state(true).await?;
        Ok([Holdings::now()?, there.held])
    }

    /// What there is more of than before, or less; nothing when it is all the same within [`PATIENCE`].
    async fn left(&self, before: &[Holdings; 2]) -> Result<Vec<String>> {
        let end = Instant::now() + PATIENCE;
        loop {
            let held = self.held().await?;
            let state = self.state(true).await?;
            let mut left = state.busy.words("server");
            for (index, name) in ["caller", "server"].into_iter().enumerate() {
                let differences = held[index].differences(&before[index]);
                left.extend(
                    differences
                        .into_iter()
                        .map(|what| format!("{name}: {what}")),
                );
            }
            if left.is_empty() || Instant::now() > end {
                return Ok(left);
            }
            tokio::time::sleep(10 * LOOK).await;
        }
    }
}

/// What workers share.
#[derive(Default)]
struct Bustle {
    /// Read by whoever is at it, written by a rest.
    gate: RwLock<()>,
    is_over: AtomicBool,
    begun: [AtomicU64; ACTS.len()],
    ended: [AtomicU64; ACTS.len()],
    cuts: AtomicU64,
}

impl Bustle {
    fn acts(&self) -> BTreeMap<&'static str, u64> {
        let counts = self.ended.iter().map(|count| count.load(Ordering::SeqCst));
        ACTS.into_iter().zip(counts).collect()
    }

    /// What has begun and not ended, in words.
    fn at_it(&self) -> String {
        let counts = ACTS.iter().zip(self.begun.iter().zip(&self.ended));
        let at_it = counts.filter_map(|(name, (begun, ended))| {
            let at_it = begun.load(Ordering::SeqCst) - ended.load(Ordering::SeqCst);
            (at_it > 0).then(|| format!("{at_it} {name}"))
        });
        at_it.collect::<Vec<_>>().join(", ")
    }
}

async fn work(visit: Visit, bustle: Arc<Bustle>, mut dice: Dice) -> Result<()> {
    while !bustle.is_over.load(Ordering::SeqCst) {
        let _at_it = bustle.gate.read().await;
        let number = dice.below(ACTS.len() as u64) as usize;
        bustle.begun[number].fetch_add(1, Ordering::SeqCst);
        let acted = act(number, &visit, &mut dice).await;
        acted.with_context(|| format!("{} over {}", ACTS[number], visit.site.road.name()))?;
        bustle.ended[number].fetch_add(1, Ordering::SeqCst);
    }
    Ok(())
}

/// Has pipes of replicas closed, by the server's process.
async fn cut(control: ControlClient, bustle: Arc<Bustle>, mut dice: Dice) -> Result<()> {
    while !bustle.is_over.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(dice.below(300))).await;
        let _at_it = bustle.gate.read().await;
        let road = dice.below(road::ALL.len() as u64);
        let was_cut = control.cut(road, dice.next()).await?;
        bustle.cuts.fetch_add(u64::from(was_cut), Ordering::SeqCst);
    }
    Ok(())
}

const INTERVAL: Duration = Duration::from_millis(500);
/// Seconds of the first visit, which is not looked at.
const OVERTURE: f64 = 1.0;
/// Samples of a rest, 2 ms apart.
const LOOKS: u32 = 10;
const STEADY: Duration = Duration::from_millis(500);
