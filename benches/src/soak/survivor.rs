//! The process that stays: starts peers, kills them, and looks at what is left.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tensorpipe::Context;
use tokio::sync::watch;

use super::book::{Book, Carried, Report, Talking};
use super::dice::Dice;
use super::parcel::Ledger;
use super::residue::{self, Holdings};
use super::talk::Talk;
use super::ways::{self, Way};
use super::{Orders, PeerOrders};
use crate::memory::resident;
use crate::peer::Peer;
use crate::progress::Progress;

/// Soaks.
///
/// # Errors
/// With everything that was not as it should be, and the seed to have it again.
pub(crate) fn run(orders: &Orders, progress: &Progress) -> Result<Report> {
    let runtime = orders.runtime.build()?;
    let soaked = runtime.block_on(async {
        let orders = orders.clone();
        // What is made once in a process and stays is there before anything is counted.
        let warm = Stages::open(&orders).await?;
        let met = warm
            .generation(&mut Dice::new(0), &orders, None, true)
            .await;
        met.context("the first peer, which was left alive")?;
        warm.close().await?;
        let names = residue::names();
        let before = steady().await?;
        let stages = Stages::open(&orders).await?;
        let report = stages.soak(&orders, progress).await;
        let closed = stages.close().await;
        let report = report?;
        closed.context("closing the survivor's contexts")?;
        let left = settled(|| Holdings::now().map(|now| now.differences(&before))).await?;
        ensure!(left.is_empty(), "left at the end: {}", left.join("; "));
        let left = residue::abandoned(&names);
        ensure!(left.is_empty(), "left in /dev/shm: {}", left.join(", "));
        Ok(report)
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    soaked.with_context(|| format!("seed {}", orders.seed))
}

/// Where the survivor listens, all the time.
struct Stages {
    stages: Vec<(Way, Context, String)>,
    book: Book,
    ledger: Ledger,
    stop: watch::Sender<bool>,
    largest: u64,
}

impl Stages {
    async fn open(orders: &Orders) -> Result<Self> {
        let book = Book::new();
        let ledger = Ledger::default();
        let stop = watch::Sender::new(false);
        let mut dice = Dice::new(!orders.seed);
        let mut stages = Vec::new();
        for way in ways::all() {
            let context = way.context()?;
            let listener = way.listen(&context).await.with_context(|| way.name())?;
            stages.push((way, context.clone(), listener.url().to_string()));
            let talk = Talk {
                way: way.name(),
                channel: way.channel,
                context,
                book: book.clone(),
                ledger: ledger.clone(),
                largest: orders.largest,
                stop: stop.subscribe(),
            };
            let mut dice = dice.fork();
            // Ends when its context is closed.
            tokio::spawn(async move {
                while let Ok(pipe) = listener.accept().await {
                    tokio::spawn(talk.clone().over(pipe, dice.fork()));
                }
            });
        }
        Ok(Self {
            stages,
            book,
            ledger,
            stop,
            largest: orders.largest,
        })
    }

    async fn close(self) -> Result<()> {
        for (_, context, _) in &self.stages {
            context.close().await?;
        }
        tokio::time::timeout(PATIENCE, self.book.silence())
            .await
            .context("somebody talks over a closed context")
    }

    async fn soak(&self, orders: &Orders, progress: &Progress) -> Result<Report> {
        let start = Instant::now();
        let mut dice = Dice::new(orders.seed);
        let mut longest = Duration::ZERO;
        let before = self.holdings()?;
        let mut anon_before = 0;
        for kill in 1..=orders.kills {
            progress.begin(format!("kill {kill} of {}", orders.kills));
            let took = self
                .generation(&mut dice, orders, Some(&before), false)
                .await;
            let took = took.with_context(|| format!("kill {kill}"))?;
            longest = longest.max(took);
            // The first ones fill what the allocator keeps.
            if kill <= WARM_UP {
                anon_before = resident(std::process::id())?.anon;
            }
            progress.end();
        }
        let ended = self
            .generation(&mut dice, orders, Some(&before), true)
            .await;
        ended.context("a peer that was left alive")?;
        self.every_channel_carried()?;
        let anon = resident(std::process::id())?.anon;
        ensure!(
            anon < anon_before + MEMORY_SLACK,
            "{anon} KiB of private memory at the end, {anon_before} KiB after {WARM_UP} kills"
        );
        Ok(Report {
            case: "soak",
            seed: orders.seed,
            kills: orders.kills,
            seconds: start.elapsed().as_secs_f64(),
            ways: self.book.ways(),
            endings: self.book.endings(),
            longest_recovery_ms: longest.as_secs_f64() * 1e3,
            anon_kib: (anon_before, anon),
        })
    }

    /// One peer's life. `in_peace`: everybody closes in good order, and it ends after that. Returns how long it took until
    /// nothing of it was left.
    async fn generation(
        &self,
        dice: &mut Dice,
        orders: &Orders,
        before: Option<&Holdings>,
        in_peace: bool,
    ) -> Result<Duration> {
        let between = self.stages.iter().filter(|(way, _, _)| !way.is_within());
        let survivor = between.map(|(way, _, url)| (way.name(), url.clone()));
        let told = PeerOrders {
            seed: dice.next(),
            largest: self.largest,
            runtime: orders.runtime,
            survivor: survivor.collect(),
        };
        let started = tokio::task::spawn_blocking(move || Peer::start("soak-peer", &told));
        let mut peer = started.await??;
        let theirs: Vec<(String, String)> = serde_json::from_str(peer.address())?;
        let pause = watch::Sender::new(false);
        for (way, context, url) in &self.stages {
            let theirs = theirs.iter().find(|(name, _)| *name == way.name());
            let (url, stop) = match theirs {
                Some((_, url)) => (url.clone(), self.stop.subscribe()),
                None => (url.clone(), pause.subscribe()),
            };
            let talk = Talk {
                way: way.name(),
                channel: way.channel,
                context: context.clone(),
                book: self.book.clone(),
                ledger: self.ledger.clone(),
                largest: self.largest,
                stop,
            };
            // From now on silence waits for it.
            let connecting = self.book.begin(&talk.way);
            tokio::spawn(connect(talk, url, dice.fork(), connecting));
        }
        if in_peace {
            self.everybody_has_spoken().await?;
        } else {
            // A quarter of them dies while pipes are made.
            let longest = if dice.one_in(4) { 10 } else { 250 };
            let life = Duration::from_millis(dice.below(longest));
            tokio::time::sleep(life).await;
        }
        let ended_alone = peer.has_ended()?;
        if in_peace {
            self.stop.send_replace(true);
            self.silence().await?;
        }
        let start = Instant::now();
        peer.kill()?;
        drop(peer);
        pause.send_replace(true);
        self.silence().await?;
        if let Some(status) = ended_alone {
            bail!("the peer ended by itself: {status}");
        }
        if let Some(before) = before {
            let left = settled(|| Ok(self.holdings()?.differences(before))).await?;
            ensure!(left.is_empty(), "left of the peer: {}", left.join("; "));
        }
        let faults = self.book.faults();
        ensure!(faults.is_empty(), "{}", faults.join("; "));
        Ok(start.elapsed())
    }

    /// Waits until every way has carried a few messages more.
    async fn everybody_has_spoken(&self) -> Result<()> {
        let before = self.book.ways();
        let end = Instant::now() + PATIENCE;
        loop {
            let now = self.book.ways();
            let more = |name: &String| {
                let of =
                    |ways: &BTreeMap<String, Carried>| ways.get(name).map_or(0, |way| way.messages);
                of(&now) - of(&before)
            };
            let names = self.stages.iter().map(|(way, _, _)| way.name());
            let silent: Vec<_> = names.filter(|name| more(name) < A_FEW).collect();
            if silent.is_empty() {
                return Ok(());
            }
            ensure!(
                Instant::now() < end && self.book.faults().is_empty(),
                "nothing gets on over {}; {}",
                silent.join(", "),
                self.book.faults().join("; ")
            );
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Each way went by the channel that it is called after, where this machine has it.
    fn every_channel_carried(&self) -> Result<()> {
        let carried = self.book.ways();
        let named = self.stages.iter().filter(|(way, ..)| way.channel.is_some());
        let without = named.map(|(way, ..)| way.name()).filter(|name| {
            let way = carried.get(name);
            way.is_none_or(|way| way.given == 0 && way.refused.is_none())
        });
        let without: Vec<_> = without.collect();
        let names = without.join(", ");
        ensure!(
            names.is_empty(),
            "nothing was given to the channel of: {names}"
        );
        Ok(())
    }

    async fn silence(&self) -> Result<()> {
        if tokio::time::timeout(PATIENCE, self.book.silence())
            .await
            .is_ok()
        {
            return Ok(());
        }
        let talking: BTreeSet<_> = self.book.still_talking().into_iter().collect();
        let talking: Vec<_> = talking.into_iter().collect();
        bail!(
            "after {PATIENCE:?} somebody still waits over {}",
            talking.join(", ")
        )
    }

    fn holdings(&self) -> Result<Holdings> {
        let contexts = self.stages.iter().map(|(_, context, _)| context);
        Holdings::with_memory(contexts, &self.ledger)
    }
}

async fn connect(talk: Talk, url: String, dice: Dice, _connecting: Talking) {
    match talk.context.connect(&url).await {
        Ok(pipe) => talk.over(pipe, dice).await,
        Err(error) => talk.book.ended(&talk.way, "connect", &error),
    }
}

/// What this process holds once that does not change any more.
async fn steady() -> Result<Holdings> {
    let end = Instant::now() + SETTLING;
    let mut last = (Holdings::now()?, Instant::now());
    while last.1.elapsed() < STEADY && Instant::now() < end {
        tokio::time::sleep(LOOK).await;
        let now = Holdings::now()?;
        if now != last.0 {
            last = (now, Instant::now());
        }
    }
    Ok(last.0)
}

/// What is left when it does not get less any more, or nothing.
async fn settled(mut left: impl FnMut() -> Result<Vec<String>>) -> Result<Vec<String>> {
    let end = Instant::now() + SETTLING;
    loop {
        let left = left()?;
        if left.is_empty() || Instant::now() > end {
            return Ok(left);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// For every wait: a peer that is silent is given up after 10 s, and the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(30);
/// For background tasks to let go of what they hold.
const SETTLING: Duration = Duration::from_secs(15);
const STEADY: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(2);
/// Messages after which a way is known to work: the first ones of its talks, and some more.
const A_FEW: u64 = 6;
/// Kills after which private memory is looked at first.
const WARM_UP: u32 = 3;
/// KiB by which private memory may differ: what the allocator keeps, in pieces. What is in use is counted exactly, elsewhere.
const MEMORY_SLACK: u64 = 128 << 10;
