//! Processor time of another process: by the nanosecond where the kernel counts it so for each thread, else by its ticks.
//!
//! A tick is usually 10 ms: half a percent of a core within 2 s, which is too coarse for something that sleeps.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::unistd::{SysconfVar, sysconf};

/// What a process had used at a moment.
#[derive(Clone, Debug)]
pub(crate) struct Used {
    ticks: Duration,
    /// Nanoseconds by thread, where the kernel says.
    threads: Option<BTreeMap<String, u64>>,
}

impl Used {
    /// What `process` has used so far, by all of its threads.
    ///
    /// # Errors
    /// When it has ended.
    pub(crate) fn by(process: u32) -> Result<Self> {
        let path = format!("/proc/{process}/stat");
        let stat =
            std::fs::read_to_string(&path).with_context(|| format!("{path}, has it ended"))?;
        let ticks = ticks(&stat).with_context(|| format!("{path} is not as expected: {stat}"))?;
        let per_second =
            sysconf(SysconfVar::CLK_TCK)?.context("the kernel does not say how long a tick is")?;
        Ok(Self {
            ticks: Duration::from_secs_f64(ticks as f64 / per_second as f64),
            threads: threads(process),
        })
    }

    /// What it has used since `before`.
    pub(crate) fn since(&self, before: &Self) -> Duration {
        let ticks = self.ticks.saturating_sub(before.ticks);
        let (Some(now), Some(then)) = (&self.threads, &before.threads) else {
            return ticks;
        };
        let more = now.iter().map(|(thread, nanos)| {
            let before = then.get(thread).copied().unwrap_or_default();
            nanos.saturating_sub(before)
        });
        let counted = Duration::from_nanos(more.sum());
        // A thread that has ended took its count along.
        if then.keys().all(|thread| now.contains_key(thread)) {
            counted
        } else {
            counted.max(ticks)
        }
    }
}

/// User and system time of a line of `/proc/PID/stat`: its 14th and 15th field.
fn ticks(stat: &str) -> Option<u64> {
    // The second field is the program's name, which may hold spaces and brackets.
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

fn threads(process: u32) -> Option<BTreeMap<String, u64>> {
    let entries = std::fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let mut threads = BTreeMap::new();
    for entry in entries {
        let entry = entry.ok()?;
        // It may have ended since the directory was read.
        let Ok(line) = std::fs::read_to_string(entry.path().join("schedstat")) else {
            continue;
        };
        let nanos = line.split_ascii_whitespace().next()?.parse().ok()?;
        threads.insert(entry.file_name().to_string_lossy().into_owned(), nanos);
    }
    // Kernels without the count have no such file, or one of zeros.
    threads.values().any(|nanos| *nanos > 0).then_some(threads)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn ticks_are_found_behind_a_name_with_brackets() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 0 0 0 17 5 0 0 20 0 1 0 100 1 1";
        assert_eq!(ticks(stat), Some(22));
        assert_eq!(ticks("42 (cut) S 1"), None);
    }

    #[test]
    fn work_shows() -> Result<()> {
        let before = Used::by(std::process::id())?;
        let start = Instant::now();
        // Other work on the machine may keep us from the processor for a while.
        while start.elapsed() < Duration::from_secs(10) {
            let used = Used::by(std::process::id())?.since(&before);
            if !used.is_zero() {
                return Ok(());
            }
        }
        anyhow::bail!("10 s of work left no trace")
    }

    #[test]
    fn threads_that_came_count_and_ticks_stand_in_for_those_that_went() {
        let used = |ticks: u64, threads: &[(&str, u64)]| Used {
            ticks: Duration::from_millis(ticks),
            threads: (!threads.is_empty()).then(|| {
                let named = threads.iter();
                named
                    .map(|(name, ms)| ((*name).to_owned(), ms * 1_000_000))
                    .collect()
            }),
        };
        let before = used(100, &[("1", 70), ("2", 30)]);
        for (now, expected) in [
            (used(110, &[("1", 71), ("2", 30), ("3", 2)]), 3),
            (used(110, &[("1", 71)]), 10),
            (used(100, &[("1", 71)]), 1),
            (used(120, &[]), 20),
        ] {
            let found = now.since(&before);
            assert_eq!(found, Duration::from_millis(expected), "{now:?}");
        }
    }
}
