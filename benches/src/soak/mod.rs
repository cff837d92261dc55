//! `tp-bench soak` and `churn`: use every feature at once, check every byte, and check that nothing is left over.
//!
//! ```text
//! pipes   soak: a process that stays and peers that are killed, over every transport and channel at once
//! calls   churn: two processes that live and do all that calls can do; pipes are cut; memory at rest must not grow
//! acts    what churn's workers do, and the service that they call
//! parcel  what both send: memory whose every byte can be checked
//! ```
//! This file has the checks that both share: descriptors, mappings, memory of pools, and growth of memory.

mod acts;
mod calls;
mod parcel;
mod pipes;

pub(crate) use calls::{Churn, play as play_churn, run as churn};
pub(crate) use pipes::{Soak, play as play_soak, run as soak};

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use tensorpipe::Context;

/// Resources of a process: file descriptors by target, mappings of shared memory by name, and bytes of pools in use, here or in
/// other processes.
type Holdings = BTreeMap<String, u64>;

/// The resources that this process holds now. Pools first give back memory that they keep warm.
fn holdings<'a>(contexts: impl IntoIterator<Item = &'a Context>) -> Result<Holdings> {
    let mut held = Holdings::new();
    for context in contexts {
        context.pool().trim(0);
        *held.entry("bytes of pools".to_owned()).or_default() += pooled(context);
    }
    for entry in fs::read_dir("/proc/self/fd").context("/proc/self/fd")? {
        // The descriptor that read this directory is closed by now.
        let Ok(target) = fs::read_link(entry?.path()) else {
            continue;
        };
        let target = target.to_string_lossy();
        // `socket:[4711]`: the number is new each time; `anon_inode:[pidfd]` is a kind.
        let kind = target.trim_end_matches(|c: char| c.is_ascii_digit() || "[]".contains(c));
        if !target.starts_with("/proc/") {
            *held.entry(format!("fd {kind}")).or_default() += 1;
        }
    }
    let maps = fs::read_to_string("/proc/self/maps").context("/proc/self/maps")?;
    for line in maps.lines() {
        let mut fields = line.split_ascii_whitespace();
        let is_shared = fields.nth(1).is_some_and(|access| access.ends_with('s'));
        let name = fields.skip(3).collect::<Vec<_>>().join(" ");
        if is_shared || name.contains("memfd:") {
            *held.entry(format!("mapping {name}")).or_default() += 1;
        }
    }
    Ok(held)
}

fn descriptors(held: &Holdings) -> u64 {
    let kinds = held.iter().filter(|(name, _)| name.starts_with("fd "));
    kinds.map(|(_, count)| count).sum()
}

/// Bytes of a context's pool that are in use, here or by borrowers.
fn pooled(context: &Context) -> u64 {
    let stats = context.pool().stats();
    stats.outstanding_bytes + stats.lendable.outstanding_bytes + stats.lendable.lent_bytes
}

/// Resources that differ between `before` and `now`. Copies that one process lends to the other are kept warm for some seconds;
/// of these there may be fewer.
fn differences(before: &Holdings, now: &Holdings) -> Vec<String> {
    let names: BTreeSet<_> = before.keys().chain(now.keys()).collect();
    let mut differences = Vec::new();
    for name in names {
        let count = |held: &Holdings| held.get(name).copied().unwrap_or_default();
        let (before, now) = (count(before), count(now));
        let may_be_less = name.contains("memfd:tensorpipe");
        if now > before || now < before && !may_be_less {
            differences.push(format!("{name}: {before} before, {now} now"));
        }
    }
    differences
}

/// Re-executes this process with a tuned allocator, unless the user has tuned it. glibc reads the environment only at start.
///
/// By default glibc has arenas for each thread, and takes long blocks from them once one was freed. If other threads free random
/// blocks, holes grow by tens of MiB a minute, for minutes. With one arena, and long blocks mapped one by one, resident memory
/// exceeds the memory in use by only some hundred KiB.
fn tune() -> Result<()> {
    const TUNING: [(&str, &str); 3] = [
        ("MALLOC_ARENA_MAX", "1"),
        ("MALLOC_MMAP_THRESHOLD_", "65536"),
        ("MALLOC_TRIM_THRESHOLD_", "65536"),
    ];
    // Also if that says nothing: glibc is left as it is.
    let names = TUNING.iter().map(|(name, _)| *name);
    if names
        .chain(["GLIBC_TUNABLES"])
        .any(|name| std::env::var_os(name).is_some())
    {
        return Ok(());
    }
    let binary = std::env::current_exe().context("this binary's path is not known")?;
    let mut again = std::process::Command::new(binary);
    let error = again.args(std::env::args_os().skip(1)).envs(TUNING).exec();
    bail!("this program cannot be started again: {error}")
}

/// Growth of memory at rest: the medians of the first and of the last quarter of the samples after a warm-up, in KiB. Not a line
/// fitted to all samples, because that would follow the steps in which the allocator keeps memory.
#[derive(Clone, Copy, Debug, Serialize)]
struct Growth {
    first: u64,
    last: u64,
    percent: f64,
}

impl Growth {
    /// `None`: there are too few samples to tell.
    fn of(samples: impl IntoIterator<Item = u64>) -> Option<Self> {
        let samples: Vec<_> = samples.into_iter().collect();
        let quarter = samples.len() / 4;
        let median = |samples: &[u64]| {
            let mut samples = samples.to_vec();
            *samples.select_nth_unstable(quarter / 2).1
        };
        (quarter >= A_QUARTER).then(|| {
            let first = median(&samples[..quarter]);
            let last = median(&samples[samples.len() - quarter..]);
            Self {
                first,
                last,
                percent: (last as f64 / first.max(1) as f64 - 1.0) * 100.0,
            }
        })
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} KiB, then {} KiB ({:+.1} %)",
            self.first, self.last, self.percent
        )
    }
}

/// Lists, in words, the figures that grew by more than `bound` percent.
fn grown(looked_at: impl IntoIterator<Item = (String, Option<Growth>)>, bound: f64) -> Vec<String> {
    let grown = looked_at.into_iter().filter_map(|(what, growth)| {
        let growth = growth.filter(|growth| growth.percent > bound)?;
        Some(format!("{what} grows: {growth}, of {bound} % allowed"))
    });
    grown.collect()
}

/// Waits up to [`BOUND`] until nothing is left. Returns what is left then.
async fn settled(mut left: impl AsyncFnMut() -> Result<Vec<String>>) -> Result<Vec<String>> {
    let end = Instant::now() + BOUND;
    loop {
        let left = left().await?;
        if left.is_empty() || Instant::now() > end {
            return Ok(left);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Calls `look` until its result no longer changes, and returns that.
async fn steady<T: PartialEq>(mut look: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let end = Instant::now() + BOUND;
    let (mut last, mut since) = (look().await?, Instant::now());
    while since.elapsed() < STEADY && Instant::now() < end {
        tokio::time::sleep(10 * LOOK).await;
        let now = look().await?;
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    Ok(last)
}

/// Bound of every wait. A pipe gives up a silent peer after 10 s, and the machine may be busy.
const BOUND: Duration = Duration::from_secs(30);
const STEADY: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(2);
/// The fewest samples for a median.
const A_QUARTER: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_grows_if_its_last_quarter_is_above_its_first_one_but_not_if_it_swings() {
        let told = |growth: Option<Growth>| grown([("it".to_owned(), growth)], 5.0).join("");
        // A kibibyte a kill, beside two mebibytes.
        let leak = Growth::of((0..300).map(|kill| 2048 + kill));
        let said = "it grows: 2085 KiB, then 2310 KiB (+10.8 %), of 5 % allowed";
        assert_eq!(told(leak), said);
        let swings = Growth::of((0..300).map(|kill| 100_000 + kill % 7 * 5_000));
        assert!(swings.is_some());
        assert_eq!(told(swings), "");
        assert!(Growth::of(0..39).is_none());
    }

    #[test]
    fn a_descriptor_more_is_seen_and_memory_in_use() -> Result<()> {
        let context = Context::new();
        let path = std::env::temp_dir().join(format!("tp-bench-residue-{}", std::process::id()));
        let before = holdings([&context])?;
        let (_file, _taken) = (fs::File::create(&path)?, context.pool().take(1 << 20));
        fs::remove_file(&path)?;
        let seen = differences(&before, &holdings([&context])?).join("; ");
        // Other tests open files meanwhile, but nobody has this one.
        assert!(
            seen.contains("tp-bench-residue") && seen.contains("bytes of pools: 0 before"),
            "{seen}"
        );
        Ok(())
    }
}
