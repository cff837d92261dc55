//! Cores: pinning, and how far apart the two are at this moment.
//!
//! Virtual cores move: the spinning round trip between two of them flips between about 0.1 and 0.5 µs within tens
//! of seconds, and figures over shared memory move with it. So every row says what it was just before.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The two first cores that this process may run on.
///
/// # Errors
/// When there is only one.
pub(crate) fn pair() -> Result<(usize, usize)> {
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
pub(crate) fn spinning_round_trip(cores: (usize, usize)) -> Option<f64> {
    (0..TRIES).find_map(|_| probe(cores).filter(|micros| *micros < BUSY))
}

fn probe(cores: (usize, usize)) -> Option<f64> {
    let line = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| {
            pin(cores.1).ok()?;
            follow(&line);
            Some(())
        });
        let lead = scope.spawn(|| {
            let best = pin(cores.0).ok().map(|()| lead(&line));
            line.store(STOP, Ordering::Release);
            best
        });
        echo.join().ok()??;
        lead.join().ok()??
    })
}

/// In which state of the machine such a round trip is found: there are two, and little in between.
pub(crate) fn apart(micros: f64) -> &'static str {
    if micros < NEAR { "near" } else { "far" }
}

/// Odd numbers are questions, the next even one is the answer.
fn lead(line: &AtomicU64) -> Option<f64> {
    let end = Instant::now() + PROBE;
    let mut best = Duration::MAX;
    let mut last = 0;
    let mut spins = 0u32;
    while Instant::now() < end {
        let start = Instant::now();
        for _ in 0..BATCH {
            line.store(last + 1, Ordering::Release);
            last += 2;
            while line.load(Ordering::Acquire) != last {
                spins = spins.wrapping_add(1);
                // Reading the clock takes as long as a quarter of a round trip: seldom.
                if spins.is_multiple_of(4096) && Instant::now() > end {
                    return per_round_trip(best);
                }
                std::hint::spin_loop();
            }
        }
        best = best.min(start.elapsed());
    }
    per_round_trip(best)
}

fn per_round_trip(batch: Duration) -> Option<f64> {
    (batch < Duration::MAX).then(|| batch.as_secs_f64() * 1e6 / f64::from(BATCH))
}

fn follow(line: &AtomicU64) {
    loop {
        match line.load(Ordering::Acquire) {
            STOP => return,
            // Not a store: it could overwrite STOP.
            question if question % 2 == 1 => {
                let _ = line.compare_exchange(
                    question,
                    question + 1,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                );
            }
            _ => std::hint::spin_loop(),
        }
    }
}

/// Between the two states, 0.05 to 0.1 µs and 0.4 to 0.5 µs.
const NEAR: f64 = 0.22;
/// No machine is that slow: one of the threads was waiting for its core.
const BUSY: f64 = 5.0;
const TRIES: u32 = 5;
const PROBE: Duration = Duration::from_millis(4);
const BATCH: u32 = 100;
const STOP: u64 = u64::MAX - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_where_it_was_pinned() -> Result<()> {
        std::thread::spawn(|| {
            let allowed = sched_getaffinity(Pid::from_raw(0))?;
            let core = (0..CpuSet::count())
                .rfind(|core| allowed.is_set(*core) == Ok(true))
                .context("no core")?;
            pin(core)?;
            let now = sched_getaffinity(Pid::from_raw(0))?;
            let cores: Vec<_> = (0..CpuSet::count())
                .filter(|core| now.is_set(*core) == Ok(true))
                .collect();
            assert_eq!(cores, [core]);
            Ok(())
        })
        .join()
        .expect("the thread does not panic")
    }

    #[test]
    fn the_probe_ends_soon_and_its_answer_is_a_time() {
        let start = Instant::now();
        if let Ok(cores) = pair()
            && let Some(micros) = spinning_round_trip(cores)
        {
            assert!(micros > 0.01, "{micros} µs is faster than light in silicon");
        }
        assert!(start.elapsed() < Duration::from_secs(5));
        assert_eq!(
            spinning_round_trip((0, CpuSet::count() - 1)),
            None,
            "there is no such core"
        );
    }
}
