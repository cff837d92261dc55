//! The limits of this machine at this moment: no system can be faster.
//!
//! ```text
//! copy   memory to memory, one core
//! wake   there and back between two threads that sleep in the kernel, each on its core
//! carry  there and back between two that spin: bare sockets, and the connection of transport `shm` (its ring)
//! ```
//! There is no runtime and no protocol: one thread writes, the other reads into the same memory each time and writes
//! back. Any extra time of a pipe is the pipe's own cost. The spinning round trip through a cache line is in [`host`].
//! Every figure is a median of many tries. Figures drift with the machine, so measure them next to the compared rows.

mod ends;

use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use tensorpipe::{BufferMut, Pool, PoolOptions};

use crate::host::{self, Cores};
use crate::measure::median;
use crate::plan::{Case, Plan, Transport};

/// A medium that carries bytes, or wakes a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Medium {
    /// Shared memory: the connection of transport `shm`.
    Ring,
    Unix,
    Tcp,
    Eventfd,
}

impl Medium {
    /// Media that carry bytes while both ends spin.
    pub(crate) const SPINNING: [Self; 3] = [Self::Ring, Self::Unix, Self::Tcp];
    /// Media that wake a sleeping thread.
    pub(crate) const SLEEPING: [Self; 3] = [Self::Eventfd, Self::Unix, Self::Tcp];

    /// The name in tables and in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Unix => "unix",
            Self::Tcp => "tcp",
            Self::Eventfd => "eventfd",
        }
    }
}

/// The time in microseconds, at this moment, of a bare round that moves the same bytes as one of `plan` over the same
/// medium; `leased` bytes stay where they are. `None` where there is no such thing.
pub(crate) fn floor(plan: &Plan, leased: bool, cores: Cores) -> Result<Option<f64>> {
    let (spinning, sleeping) = match plan.transport {
        Transport::Memory => return Ok(None),
        Transport::Shm => (Medium::Ring, Medium::Unix),
        Transport::Unix => (Medium::Unix, Medium::Unix),
        Transport::Tcp | Transport::Tls => (Medium::Tcp, Medium::Tcp),
    };
    let bytes = if leased { 0 } else { plan.len()? };
    let (there, back) = match plan.case {
        Case::Paced if bytes == 0 => return wake(sleeping, cores).map(Some),
        // The time for waking a sleeping end is not included.
        Case::Echo | Case::Paced | Case::Exchange | Case::Mutate => (bytes, bytes),
        Case::Upload | Case::Keep => (bytes, 0),
        Case::Download => (0, bytes),
        // No limit: how many calls a system handles in one wake-up is its own merit.
        Case::Pipeline | Case::Stream => return Ok(None),
    };
    carry(spinning, cores, there, back, BRIEFLY).map(Some)
}

/// Microseconds of a copy of `len` bytes between two places that have been touched before, on `core`, tried for `length`.
pub(crate) fn copy(core: usize, len: usize, length: Duration) -> Result<f64> {
    let copying = std::thread::spawn(move || {
        host::pin(core)?;
        let (mut from, mut to) = (memory(len)?, memory(len)?);
        let from = from.as_bytes_mut().context("no main memory")?;
        let to = to.as_bytes_mut().context("no main memory")?;
        tries(length, || {
            std::hint::black_box(&mut *to).copy_from_slice(std::hint::black_box(from));
            Ok(())
        })
    });
    copying.join().map_err(|_| anyhow!("a thread panicked"))?
}

/// Microseconds of a round trip between `cores`, whose ends sleep until they are woken.
pub(crate) fn wake(medium: Medium, cores: Cores) -> Result<f64> {
    // Checks that both cores are available: otherwise one thread would wait for ever.
    let probe = std::thread::spawn(move || host::pin(cores.0).and_then(|()| host::pin(cores.1)));
    probe.join().map_err(|_| anyhow!("a thread panicked"))??;
    let work = Work {
        there: WORD,
        back: WORD,
        batch: 1,
        length: Duration::ZERO,
        fewest: WAKES,
    };
    match medium {
        Medium::Eventfd => between(ends::eventfds()?, cores, work),
        Medium::Tcp => between(ends::tcp(true)?, cores, work),
        Medium::Unix | Medium::Ring => between(ends::unix(true)?, cores, work),
    }
}

/// Microseconds in which `there` bytes get across and `back` bytes return (at least one each), the median of what fits
/// into `length`. Both ends spin.
pub(crate) fn carry(
    medium: Medium,
    cores: Cores,
    there: usize,
    back: usize,
    length: Duration,
) -> Result<f64> {
    let (there, back) = (there.max(1), back.max(1));
    let work = Work {
        there,
        back,
        // Reading the clock takes a quarter of the shortest round.
        batch: if there.max(back) <= SMALL { 32 } else { 1 },
        length,
        fewest: FEWEST,
    };
    match medium {
        Medium::Ring => {
            // The runtime is needed only to open the connection: busy-polled rings do without it.
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build()?;
            between(runtime.block_on(ends::rings())?, cores, work)
        }
        Medium::Tcp => between(ends::tcp(false)?, cores, work),
        Medium::Unix | Medium::Eventfd => between(ends::unix(false)?, cores, work),
    }
}

/// What two ends do.
#[derive(Clone, Copy)]
struct Work {
    there: usize,
    back: usize,
    /// Rounds between two looks at the clock.
    batch: u32,
    length: Duration,
    fewest: usize,
}

fn between<E: Read + Write + Send>(ends: (E, E), cores: Cores, work: Work) -> Result<f64> {
    let (near, far) = ends;
    std::thread::scope(|scope| {
        let answering = scope.spawn(move || {
            host::pin(cores.1)?;
            answer(far, work)
        });
        let asking = scope.spawn(move || {
            host::pin(cores.0)?;
            ask(near, work)
        });
        let asked = asking.join().map_err(|_| anyhow!("a thread panicked"))?;
        let answered = answering.join().map_err(|_| anyhow!("a thread panicked"))?;
        answered.and(asked)
    })
}

fn ask(mut end: impl Read + Write, work: Work) -> Result<f64> {
    let (mut out, mut incoming) = (memory(work.there)?, memory(work.back)?);
    let out = out.as_bytes_mut().context("no main memory")?;
    let incoming = incoming.as_bytes_mut().context("no main memory")?;
    let mut round = || {
        for _ in 0..work.batch {
            write_all(&mut end, out)?;
            ensure!(read_all(&mut end, incoming)?, "the other end is gone");
        }
        Ok(())
    };
    // The first ones touch the memory in between.
    round()?;
    round()?;
    let micros = tries_at_least(work.fewest, work.length, round)?;
    Ok(micros / f64::from(work.batch))
}

fn answer(mut end: impl Read + Write, work: Work) -> Result<()> {
    let (mut incoming, mut out) = (memory(work.there)?, memory(work.back)?);
    let incoming = incoming.as_bytes_mut().context("no main memory")?;
    let out = out.as_bytes_mut().context("no main memory")?;
    while read_all(&mut end, incoming)? {
        write_all(&mut end, out)?;
    }
    Ok(())
}

fn tries(length: Duration, work: impl FnMut() -> Result<()>) -> Result<f64> {
    tries_at_least(FEWEST, length, work)
}

/// The median of the times of `work`, in microseconds.
fn tries_at_least(
    fewest: usize,
    length: Duration,
    mut work: impl FnMut() -> Result<()>,
) -> Result<f64> {
    let end = Instant::now() + length;
    let mut tries = Vec::new();
    while tries.len() < fewest || Instant::now() < end {
        let start = Instant::now();
        work()?;
        tries.push(start.elapsed().as_secs_f64() * 1e6);
    }
    median(&tries).context("nothing was tried")
}

/// Memory of which every page has been written, with huge pages from 2 MiB on where the system gives them.
fn memory(len: usize) -> Result<BufferMut> {
    let mut memory = Pool::new(PoolOptions::default()).try_take(len)?;
    memory.as_bytes_mut().context("no main memory")?.fill(1);
    Ok(memory)
}

fn write_all(end: &mut impl Write, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = spin(|| end.write(bytes))?;
        bytes = &bytes[count..];
    }
    Ok(())
}

/// Whether the bytes came; `false` at an orderly end of the stream.
fn read_all(end: &mut impl Read, into: &mut [u8]) -> io::Result<bool> {
    let mut have = 0;
    while have < into.len() {
        match spin(|| end.read(&mut into[have..]))? {
            0 if have == 0 => return Ok(false),
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => have += count,
        }
    }
    Ok(true)
}

/// Repeats `work` until it does something, within a time bound.
fn spin(mut work: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    let (mut count, mut since) = (0u32, None);
    loop {
        match work() {
            Err(error)
                if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&error.kind()) => {}
            result => return result,
        }
        count = count.wrapping_add(1);
        if count.is_multiple_of(4096) && since.get_or_insert_with(Instant::now).elapsed() > BOUND {
            return Err(ErrorKind::TimedOut.into());
        }
        std::hint::spin_loop();
    }
}

/// How long the limit beside a row is measured.
const BRIEFLY: Duration = Duration::from_millis(60);
/// What an eventfd takes.
const WORD: usize = 8;
const WAKES: usize = 600;
const SMALL: usize = 4096;
const FEWEST: usize = 5;
/// How long the other end may take on a busy machine.
const BOUND: Duration = Duration::from_secs(10);
