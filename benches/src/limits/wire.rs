//! There and back between two threads that spin, each on its core, over what carries bytes between processes.
//!
//! No runtime and no protocol: one thread writes, the other reads into the same memory each time and writes back. What a
//! pipe takes more than this is its own.

mod ring;
mod socket;

use std::io;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use tensorpipe::{BufferMut, Pool, PoolOptions};

use super::Cores;
use crate::cores;
use crate::measure::median;

/// What carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    /// Shared memory: the connection of transport `shm`.
    Ring,
    Unix,
    Tcp,
}

impl Wire {
    pub(crate) const ALL: [Self; 3] = [Self::Ring, Self::Unix, Self::Tcp];

    /// The name in tables and in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Unix => "unix",
            Self::Tcp => "tcp",
        }
    }
}

/// Microseconds in which `there` bytes get across and `back` bytes return (at least one each), the median of what fits
/// into `length`.
///
/// # Errors
/// When the system refuses, or other work keeps a thread from its core for seconds.
pub(crate) fn exchange(
    wire: Wire,
    cores: Cores,
    there: usize,
    back: usize,
    length: Duration,
) -> Result<f64> {
    let lens = (there.max(1), back.max(1));
    match wire {
        Wire::Ring => {
            // The runtime only opens the connection; a ring that is hot does not need it.
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let pair = runtime.block_on(ring::pair())?;
            between(pair, cores, lens, length)
        }
        Wire::Unix => between(socket::unix()?, cores, lens, length),
        Wire::Tcp => between(socket::tcp()?, cores, lens, length),
    }
}

/// One end, which never waits: `None` means not now.
trait End: Send {
    fn read(&mut self, into: &mut [u8]) -> io::Result<Option<usize>>;
    fn write(&mut self, from: &[u8]) -> io::Result<Option<usize>>;
}

fn between<E: End>(
    (near, far): (E, E),
    cores: Cores,
    (there, back): (usize, usize),
    length: Duration,
) -> Result<f64> {
    std::thread::scope(|scope| {
        let answering = scope.spawn(move || {
            cores::pin(cores.1)?;
            answer(far, there, back)
        });
        let asking = scope.spawn(move || {
            cores::pin(cores.0)?;
            ask(near, there, back, length)
        });
        let asked = asking.join().map_err(|_| anyhow!("a thread panicked"))?;
        let answered = answering.join().map_err(|_| anyhow!("a thread panicked"))?;
        answered.and(asked)
    })
}

fn ask<E: End>(mut end: E, there: usize, back: usize, length: Duration) -> Result<f64> {
    let (mut out, mut incoming) = (memory(there)?, memory(back)?);
    let out = out.as_bytes_mut().context("no main memory")?;
    let incoming = incoming.as_bytes_mut().context("no main memory")?;
    // Looking at the clock takes a quarter of the shortest round.
    let batch = if there.max(back) <= SMALL { BATCH } else { 1 };
    let end_of_it = Instant::now() + length;
    let mut tries = Vec::new();
    // The first ones touch the memory in between.
    let mut warm_up = WARM_UP;
    while tries.len() < FEWEST || Instant::now() < end_of_it {
        let start = Instant::now();
        for _ in 0..batch {
            write_all(&mut end, out)?;
            let whole = read_all(&mut end, incoming)?;
            anyhow::ensure!(whole, "the other end is gone");
        }
        let took = start.elapsed().as_secs_f64() * 1e6 / f64::from(batch);
        if warm_up > 0 {
            warm_up -= 1;
        } else {
            tries.push(took);
        }
    }
    median(&tries).context("nothing was tried")
}

fn answer<E: End>(mut end: E, there: usize, back: usize) -> Result<()> {
    let (mut incoming, mut out) = (memory(there)?, memory(back)?);
    let incoming = incoming.as_bytes_mut().context("no main memory")?;
    let out = out.as_bytes_mut().context("no main memory")?;
    while read_all(&mut end, incoming)? {
        write_all(&mut end, out)?;
    }
    Ok(())
}

/// Memory that has been touched, with huge pages from 2 MiB on.
fn memory(len: usize) -> Result<BufferMut> {
    let mut memory = Pool::new(PoolOptions::default()).try_take(len)?;
    memory.as_bytes_mut().context("no main memory")?.fill(0x5a);
    Ok(memory)
}

fn write_all(end: &mut impl End, mut bytes: &[u8]) -> io::Result<()> {
    let mut spins = Spins::default();
    while !bytes.is_empty() {
        match end.write(bytes)? {
            Some(len) => {
                bytes = &bytes[len..];
                spins = Spins::default();
            }
            None => spins.spin()?,
        }
    }
    Ok(())
}

/// Whether the bytes came; `false` at an end in good order.
fn read_all(end: &mut impl End, into: &mut [u8]) -> io::Result<bool> {
    let mut spins = Spins::default();
    let mut have = 0;
    while have < into.len() {
        match end.read(&mut into[have..])? {
            Some(0) if have == 0 => return Ok(false),
            Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Some(len) => {
                have += len;
                spins = Spins::default();
            }
            None => spins.spin()?,
        }
    }
    Ok(true)
}

/// A wait by looking, with a bound.
#[derive(Default)]
struct Spins {
    count: u32,
    since: Option<Instant>,
}

impl Spins {
    fn spin(&mut self) -> io::Result<()> {
        self.count = self.count.wrapping_add(1);
        if self.count.is_multiple_of(4096) {
            let since = *self.since.get_or_insert_with(Instant::now);
            if since.elapsed() > PATIENCE {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        std::hint::spin_loop();
        Ok(())
    }
}

const BATCH: u32 = 32;
const SMALL: usize = 4096;
const FEWEST: usize = 5;
const WARM_UP: u32 = 2;
/// For the other end to get on, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_get_there_and_back_over_everything() -> Result<()> {
        let Ok(cores) = cores::pair() else {
            return Ok(());
        };
        let briefly = Duration::from_millis(5);
        for wire in Wire::ALL {
            for (there, back) in [(0, 0), (1 << 20, 0), (0, 300_000)] {
                let micros = exchange(wire, cores, there, back, briefly)?;
                assert!(
                    micros > 0.02,
                    "{wire:?}, {there} and {back} bytes: {micros} µs"
                );
            }
        }
        Ok(())
    }

    #[test]
    fn an_end_that_is_gone_is_an_error_and_no_wait() -> Result<()> {
        let (near, far) = socket::unix()?;
        drop(far);
        assert!(ask(near, 1, 1, Duration::from_millis(1)).is_err());
        let (near, far) = socket::tcp()?;
        drop(near);
        answer(far, 1, 1)
    }
}
