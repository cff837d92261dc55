//! `tp-bench soak`: two processes exchange messages over every transport and channel at once. One of them is killed again and again.
//!
//! ```text
//! survivor (this process)                               peer (a child, one for each kill)
//!   listens once on every way        <-- pipes -->        listens, too
//!   both ends of every pipe write messages of random sizes, and check every byte of what they read
//!                                    ... SIGKILL ...
//!   every wait ends, with an error that says so; then nothing of the peer is left here
//! ```
//! A way is a transport with a channel. A few ways are within the survivor; they are closed while the others are cut off. The
//! peer expects no failure of the survivor, so any error ends the peer at once, and the survivor notices.

mod stage;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use fastrand::Rng;
use serde::{Deserialize, Serialize};

use self::stage::{Book, Carried, Stage, ways};
use super::parcel::one_in;
use super::{BOUND, Growth, Holdings, LOOK, differences, grown, holdings, settled, steady, tune};
use crate::host::{heap_in_use, resident};
use crate::peer::{self, Peer, announce};
use crate::plan::Flavor;
use crate::report;
use crate::size::Size;

#[derive(Clone, Debug, Args)]
pub(crate) struct Soak {
    /// What is drawn by chance follows from it: sizes, what is given up, when the peer dies.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How often the peer is killed. Memory is compared where at least 40 come after the warm-up.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    kills: u32,
    /// Kills before memory is compared: tables have their sizes by then.
    #[arg(long, default_value_t = 500)]
    warm_up: u32,
    /// The most that private memory, and what of the heap is in use where that is counted, may grow after the warm-up, in percent;
    /// inf for no bound.
    #[arg(long, default_value_t = 5.0)]
    bound: f64,
    /// The largest tensor.
    #[arg(long, default_value = "32MiB")]
    largest: Size,
    /// The kind of tokio runtime on both sides.
    #[arg(long, value_enum, default_value_t = Flavor::Multi)]
    runtime: Flavor,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// The outcome of a soak.
#[derive(Debug, Serialize)]
struct Report {
    case: &'static str,
    seed: u64,
    kills: u32,
    seconds: f64,
    ways: BTreeMap<String, Carried>,
    /// Failed operations, by kind of error.
    endings: BTreeMap<&'static str, u64>,
    /// The longest that it took after a kill until nothing of the peer was left.
    longest_recovery_ms: f64,
    bound: f64,
    /// How memory at rest grew after the warm-up; `None`: there were too few kills.
    private: Option<Growth>,
    /// Growth of the heap bytes in use, if they are counted; without memory that the allocator keeps.
    in_use: Option<Growth>,
    /// One sample after every kill, for plotting.
    rest: Vec<Sample>,
}

/// Memory of the survivor when nothing of a peer is left, in KiB.
#[derive(Clone, Copy, Debug, Serialize)]
struct Sample {
    private: u64,
    in_use: Option<u64>,
}

impl Sample {
    fn now() -> Result<Self> {
        Ok(Self {
            private: resident(std::process::id())?.anon,
            in_use: heap_in_use().map(|bytes| bytes >> 10),
        })
    }
}

/// Instructions for a peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Orders {
    seed: u64,
    largest: u64,
    runtime: Flavor,
    /// Where the survivor listens, by the way's name.
    survivor: BTreeMap<String, String>,
}

/// Runs the command and prints what was carried. An error lists everything that went wrong, and the seed to repeat it.
pub(crate) fn run(arguments: &Soak) -> Result<()> {
    tune()?;
    let runtime = arguments.runtime.build()?;
    let soaked = runtime.block_on(async {
        // Lets the process make its lasting allocations before anything is counted.
        let warm = Survivor::open(arguments).await?;
        let met = warm.generation(&mut Rng::with_seed(0), None, true).await;
        met.context("the first peer, which was left alive")?;
        warm.close().await?;
        let before = steady(async || holdings([])).await?;
        let survivor = Survivor::open(arguments).await?;
        let report = survivor.soak().await;
        let closed = survivor.close().await;
        let report = report?;
        closed.context("closing the survivor's contexts")?;
        let left = settled(async || Ok(differences(&before, &holdings([])?))).await?;
        ensure!(left.is_empty(), "left at the end: {}", left.join("; "));
        anyhow::Ok(report)
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    let report = soaked.with_context(|| format!("seed {}", arguments.seed))?;
    report::say(match arguments.json {
        true => serde_json::to_string(&report)?,
        false => words(&report),
    });
    let looked_at = [
        ("private memory".to_owned(), report.private),
        ("the heap in use".to_owned(), report.in_use),
    ];
    let faults = grown(looked_at, report.bound).join("; ");
    ensure!(faults.is_empty(), "seed {}: {faults}", arguments.seed);
    Ok(())
}

/// The survivor, which listens all the time.
struct Survivor {
    orders: Soak,
    stages: Vec<Arc<Stage>>,
    book: Arc<Book>,
}

impl Survivor {
    async fn open(orders: &Soak) -> Result<Self> {
        let book = Arc::new(Book::default());
        let mut rng = Rng::with_seed(!orders.seed);
        let mut stages = Vec::new();
        for way in ways() {
            let opened = Stage::open(way, &book, orders.largest.0, rng.fork()).await;
            stages.push(opened.with_context(|| way.name())?);
        }
        let orders = orders.clone();
        Ok(Self {
            orders,
            stages,
            book,
        })
    }

    async fn close(self) -> Result<()> {
        for stage in &self.stages {
            stage.context.close().await?;
        }
        self.silence().await
    }

    async fn soak(&self) -> Result<Report> {
        let start = Instant::now();
        let mut rng = Rng::with_seed(self.orders.seed);
        let mut longest = Duration::ZERO;
        let mut rest = Vec::with_capacity(self.orders.kills as usize);
        let before = self.holdings()?;
        let progress = report::progress(self.orders.kills.into());
        for kill in 1..=self.orders.kills {
            let took = self.generation(&mut rng, Some(&before), false).await;
            longest = longest.max(took.with_context(|| format!("kill {kill}"))?);
            rest.push(Sample::now()?);
            progress.inc(1);
        }
        progress.finish_and_clear();
        let ended = self.generation(&mut rng, Some(&before), true).await;
        ended.context("a peer that was left alive")?;
        let ways = self.book.lock().ways.clone();
        // Each way must have used its own channel, if this machine supports that channel.
        for stage in self
            .stages
            .iter()
            .filter(|stage| stage.way.channel.is_some())
        {
            let way = ways.get(&stage.way.name());
            let carried = way.is_some_and(|way| way.given > 0 || way.refused.is_some());
            ensure!(
                carried,
                "nothing was given to the channel of {}",
                stage.way.name()
            );
        }
        let warm = &rest[rest.len().min(self.orders.warm_up as usize)..];
        Ok(Report {
            case: "soak",
            seed: self.orders.seed,
            kills: self.orders.kills,
            seconds: start.elapsed().as_secs_f64(),
            ways,
            endings: self.book.lock().endings.clone(),
            longest_recovery_ms: longest.as_secs_f64() * 1e3,
            bound: self.orders.bound,
            private: Growth::of(warm.iter().map(|one| one.private)),
            in_use: Growth::of(warm.iter().filter_map(|one| one.in_use)),
            rest,
        })
    }

    /// Runs one peer from start to end. With `in_peace`, both ends close in good order instead of a kill. Returns the time
    /// until nothing of the peer was left.
    async fn generation(
        &self,
        rng: &mut Rng,
        before: Option<&Holdings>,
        in_peace: bool,
    ) -> Result<Duration> {
        let between = self.stages.iter().filter(|stage| !stage.way.is_within());
        let told = Orders {
            seed: rng.u64(..),
            largest: self.orders.largest.0,
            runtime: self.orders.runtime,
            survivor: between
                .map(|stage| (stage.way.name(), stage.url.clone()))
                .collect(),
        };
        let started = tokio::task::spawn_blocking(move || Peer::start("soak-peer", &told));
        let mut peer = started.await??;
        let theirs: BTreeMap<String, String> = serde_json::from_str(peer.address())?;
        for stage in &self.stages {
            stage.stop.send_replace(false);
            let url = theirs.get(&stage.way.name()).unwrap_or(&stage.url);
            stage.connect(url.clone(), rng.fork());
        }
        if in_peace {
            self.everybody_has_spoken().await?;
        } else {
            // A quarter of the peers die while pipes are being made.
            let longest = if one_in(rng, 4) { 10 } else { 250 };
            tokio::time::sleep(Duration::from_millis(rng.u64(..longest))).await;
        }
        let ended_alone = peer.has_ended()?;
        if in_peace {
            self.stop(|_| true);
            self.silence().await?;
        }
        let start = Instant::now();
        peer.kill()?;
        drop(peer);
        self.stop(|stage| stage.way.is_within());
        self.silence().await?;
        if let Some(status) = ended_alone {
            bail!("the peer ended by itself: {status}");
        }
        if let Some(before) = before {
            let left = settled(async || Ok(differences(before, &self.holdings()?))).await?;
            ensure!(left.is_empty(), "left of the peer: {}", left.join("; "));
        }
        self.book.no_faults()?;
        Ok(start.elapsed())
    }

    fn stop(&self, which: fn(&Stage) -> bool) {
        for stage in self.stages.iter().filter(|stage| which(stage)) {
            stage.stop.send_replace(true);
        }
    }

    /// Waits until every way has carried a few messages more.
    async fn everybody_has_spoken(&self) -> Result<()> {
        let messages = |stage: &Arc<Stage>| {
            let book = self.book.lock();
            book.ways
                .get(&stage.way.name())
                .map_or(0, |way| way.messages)
        };
        let before: Vec<_> = self.stages.iter().map(messages).collect();
        let silent = settled(async || {
            self.book.no_faults()?;
            let stages = self.stages.iter().zip(&before);
            let silent = stages.filter(|(stage, before)| messages(stage) < *before + A_FEW);
            Ok(silent.map(|(stage, _)| stage.way.name()).collect())
        });
        let silent = silent.await?;
        ensure!(
            silent.is_empty(),
            "nothing gets on over {}",
            silent.join(", ")
        );
        Ok(())
    }

    /// Waits until nobody talks any more.
    async fn silence(&self) -> Result<()> {
        for stage in &self.stages {
            let silence = tokio::time::timeout(BOUND, stage.silence()).await;
            let name = stage.way.name();
            silence.with_context(|| format!("after {BOUND:?} somebody still waits over {name}"))?;
        }
        Ok(())
    }

    fn holdings(&self) -> Result<Holdings> {
        let mut held = holdings(self.stages.iter().map(|stage| &stage.context))?;
        let handles = self.stages.iter().map(|stage| stage.parts_held());
        held.insert("parts of senders".to_owned(), handles.sum());
        Ok(held)
    }
}

/// Talks until it is killed. This is what `tp-bench soak-peer` does.
pub(crate) fn play() -> Result<()> {
    peer::play(
        |orders: &Orders| orders.runtime.build(),
        async |orders| {
            let mut rng = Rng::with_seed(orders.seed);
            let book = Arc::new(Book::default());
            let mut stages = Vec::new();
            for way in ways().into_iter().filter(|way| !way.is_within()) {
                stages.push(Stage::open(way, &book, orders.largest, rng.fork()).await?);
            }
            let addresses = stages.iter().map(|stage| (stage.way.name(), &stage.url));
            let addresses: BTreeMap<_, _> = addresses.collect();
            announce(serde_json::to_string(&addresses)?)?;
            for stage in &stages {
                let theirs = orders.survivor.get(&stage.way.name());
                let url = theirs.context("the survivor has not this way")?;
                stage.connect(url.clone(), rng.fork());
            }
            loop {
                tokio::time::sleep(10 * LOOK).await;
                book.no_faults().context("at the peer")?;
                let book = book.lock();
                let mut endings = book.endings.keys();
                if let Some(lost) = endings.find(|it| **it == "lost" || it.starts_with("connect")) {
                    bail!("at the peer: the survivor lives, and a pipe to it ended as {lost}");
                }
            }
        },
    )
}

/// A line of the table.
#[derive(Serialize)]
struct Way<'a> {
    over: &'a str,
    #[serde(flatten)]
    carried: &'a Carried,
}

fn words(report: &Report) -> String {
    let ways = report
        .ways
        .iter()
        .map(|(over, carried)| Way { over, carried });
    let ways: Vec<_> = ways.collect();
    let told = |growth: Option<Growth>, none: &str| {
        growth.map_or_else(|| none.to_owned(), |growth| growth.to_string())
    };
    let list = |words: Vec<String>| words.join(", ");
    let endings = report.endings.iter();
    let endings = list(
        endings
            .map(|(kind, count)| format!("{kind} {count}"))
            .collect(),
    );
    format!(
        "seed {}: {} kills in {:.0} s, read and checked here\n\n{}\n\n\
         given: tensors and payloads from here to the channel that the way is called after\n\
         every wait ended, nothing is left in descriptors, mappings and pools\n\
         at most {} from a kill until nothing of the peer was left\n\
         memory after the warm-up, medians of the first and the last quarter: private {}; in use of the heap {}\n\
         what did not succeed ended as: {endings}",
        report.seed,
        report.kills,
        report.seconds,
        report::table(FIELDS, &ways),
        report::time(report.longest_recovery_ms * 1e3),
        told(report.private, "too few kills to tell"),
        told(
            report.in_use,
            "not counted (feature `heap`), or too few kills"
        ),
    )
}

const FIELDS: &str = "over pipes messages given bytes refused";

/// Messages after which a way is known to work: the first ones of its talks, and some more.
const A_FEW: u64 = 6;
