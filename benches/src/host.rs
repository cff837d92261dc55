//! The machine: cores, and how far apart two of them are; the memory and processor time of a process.
//!
//! Virtual cores move: the spinning round trip between two of them flips between about 0.1 and 0.5 µs within tens of
//! seconds, and figures over shared memory move with it. So every row records the round trip just before it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::time::ClockId;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// The core of the measuring process, and the core of the server.
pub(crate) type Cores = (usize, usize);

/// The first two cores that this process may run on.
pub(crate) fn pair() -> Result<Cores> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).context("sched_getaffinity")?;
    let mut cores = (0..CpuSet::count()).filter(|core| allowed.is_set(*core) == Ok(true));
    match (cores.next(), cores.next()) {
        (Some(first), Some(second)) => Ok((first, second)),
        _ => bail!("pinning needs two cores and this process may use one, leave out --pin"),
    }
}

/// Binds the calling thread, and every thread that it starts from now on, to `core`.
pub(crate) fn pin(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core)
        .with_context(|| format!("core {core} does not exist"))?;
    sched_setaffinity(Pid::from_raw(0), &set)
        .with_context(|| format!("sched_setaffinity to core {core}"))
}

/// The spinning round trip between `cores` in microseconds, the best of a few milliseconds of trying. `None` where the
/// kernel lets us have only one of them, or other work keeps us from having both at once.
pub(crate) fn spinning_round_trip(cores: Cores) -> Option<f64> {
    (0..TRIES).find_map(|_| probe(cores).filter(|micros| *micros < BUSY))
}

/// The state of the machine at such a round trip: there are two states, with little in between.
pub(crate) fn apart(micros: f64) -> &'static str {
    if micros < NEAR { "near" } else { "far" }
}

fn probe(cores: Cores) -> Option<f64> {
    let line = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| {
            pin(cores.1).ok()?;
            follow(&line);
            Some(())
        });
        let lead = scope.spawn(|| {
            let best = pin(cores.0).ok().and_then(|()| lead(&line));
            line.store(STOP, Ordering::Release);
            best
        });
        echo.join().ok()??;
        lead.join().ok()?
    })
}

/// Asks through a cache line: an odd number is a question, the next even number its answer.
fn lead(line: &AtomicU64) -> Option<f64> {
    let end = Instant::now() + PROBE;
    let mut best = None;
    let (mut last, mut spins) = (0, 0u32);
    while Instant::now() < end {
        let start = Instant::now();
        for _ in 0..BATCH {
            line.store(last + 1, Ordering::Release);
            last += 2;
            while line.load(Ordering::Acquire) != last {
                spins = spins.wrapping_add(1);
                // Reading the clock takes a quarter of a round trip, so it is read seldom.
                if spins.is_multiple_of(4096) && Instant::now() > end {
                    return best;
                }
                std::hint::spin_loop();
            }
        }
        let micros = start.elapsed().as_secs_f64() * 1e6 / f64::from(BATCH);
        best = Some(best.map_or(micros, |best: f64| best.min(micros)));
    }
    best
}

fn follow(line: &AtomicU64) {
    loop {
        match line.load(Ordering::Acquire) {
            STOP => return,
            // Not a store: it could overwrite STOP.
            question if question % 2 == 1 => {
                let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
                let _ = line.compare_exchange(question, question + 1, success, failure);
            }
            _ => std::hint::spin_loop(),
        }
    }
}

/// Threshold between the two states, 0.05 to 0.1 µs and 0.4 to 0.5 µs.
const NEAR: f64 = 0.22;
/// No machine is that slow. A longer round trip means that a thread waited for its core.
const BUSY: f64 = 5.0;
const TRIES: u32 = 5;
const PROBE: Duration = Duration::from_millis(4);
const BATCH: u32 = 100;
const STOP: u64 = u64::MAX - 1;

/// Resident memory of a process, in KiB.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Resident {
    /// Private memory: heap, stacks, pools.
    pub(crate) anon: u64,
    /// Shared memory that has been touched, which other processes may have mapped, too.
    pub(crate) shmem: u64,
}

/// Resident memory of `process`, as the kernel counts it.
pub(crate) fn resident(process: u32) -> Result<Resident> {
    let path = format!("/proc/{process}/status");
    let status = std::fs::read_to_string(&path).with_context(|| format!("{path}, has it ended"))?;
    let field = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    let resident = || {
        Some(Resident {
            anon: field("RssAnon:")?,
            shmem: field("RssShmem:")?,
        })
    };
    resident().with_context(|| format!("{path} is not as expected: {status}"))
}

/// Processor time that all threads of `process` have used, also those that have ended.
pub(crate) fn processor_time(process: u32) -> Result<Duration> {
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(process.cast_signed()));
    let time = clock.and_then(ClockId::now);
    Ok(time
        .with_context(|| format!("the clock of process {process}, has it ended"))?
        .into())
}

/// Bytes of this process's heap that are in use, if they are counted (feature `heap`).
pub(crate) fn heap_in_use() -> Option<u64> {
    #[cfg(feature = "heap")]
    return {
        let stats = ALLOCATOR.stats();
        // Reallocations in place are already part of the allocated and freed bytes.
        let used = stats
            .bytes_allocated
            .saturating_sub(stats.bytes_deallocated);
        Some(used as u64)
    };
    #[cfg(not(feature = "heap"))]
    None
}

#[cfg(feature = "heap")]
#[global_allocator]
static ALLOCATOR: &stats_alloc::StatsAlloc<std::alloc::System> = &stats_alloc::INSTRUMENTED_SYSTEM;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_work_of_a_process_show() -> Result<()> {
        let process = std::process::id();
        let (before, used) = (resident(process)?, processor_time(process)?);
        let touched = vec![1u8; 32 << 20];
        assert!(resident(process)?.anon > before.anon);
        std::hint::black_box(&touched);
        assert!(processor_time(process)? > used);
        Ok(())
    }
}
