//! Copying warm memory on one core.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tensorpipe::{Pool, PoolOptions};

use crate::cores;
use crate::measure::median;

/// Microseconds of a copy of `len` bytes between two places that have been touched before, on `core`, tried for `length`.
/// From 2 MiB on the memory has huge pages, where the system gives them.
///
/// # Errors
/// When the core or the memory is not there.
pub(crate) fn copy(core: usize, len: usize, length: Duration) -> Result<f64> {
    let copying = std::thread::spawn(move || {
        cores::pin(core)?;
        let pool = Pool::new(PoolOptions::default());
        let (mut from, mut to) = (pool.try_take(len)?, pool.try_take(len)?);
        let from = from.as_bytes_mut().context("no main memory")?;
        let to = to.as_bytes_mut().context("no main memory")?;
        // Every page is written once, so that none is the shared page of zeros.
        from.fill(1);
        to.fill(2);
        let end = Instant::now() + length;
        let mut tries = Vec::new();
        while tries.len() < FEWEST || Instant::now() < end {
            let start = Instant::now();
            std::hint::black_box(&mut *to).copy_from_slice(std::hint::black_box(from));
            tries.push(start.elapsed().as_secs_f64() * 1e6);
        }
        median(&tries).context("nothing was tried")
    });
    let copied = copying.join();
    copied.unwrap_or_else(|_| anyhow::bail!("the copying thread panicked"))
}

const FEWEST: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_bytes_take_longer() -> Result<()> {
        let Ok((core, _)) = cores::pair() else {
            return Ok(());
        };
        let small = copy(core, 64 << 10, Duration::from_millis(5))?;
        let large = copy(core, 16 << 20, Duration::from_millis(5))?;
        assert!(
            small > 0.1 && large > small,
            "{small} and {large} µs for 256 times as much"
        );
        Ok(())
    }
}
