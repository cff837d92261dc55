//! What tensors on a GPU cost from one process to another, beside bare copies on its streams.
//!
//! ```text
//! copies   on a stream: within the GPU, to it, from it
//! ours     lent    memory of a pool, read where it lies
//!          slice   memory of another library's, copied on the GPU, then lent
//!          own     memory of a pool, to a process that borrows nothing: one copy
//!          up      main memory of a pool, to the GPU
//!          down    from the GPU to main memory
//! ```
//!
//! Each round sends a tensor that was filled before it, and ends when the other process's call says that all of its bytes are there.
//! One tensor of each size is added up there.

mod copies;
mod ours;
mod there;

pub(crate) use self::copies::copies;
pub(crate) use self::ours::calls;
pub(crate) use self::there::play;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Serialize;
use tensorpipe::device::Fence;
use tensorpipe::device::cuda::CudaDevices;
use tensorpipe::{Buffer, Device, DevicePool};

/// The one that is measured.
pub(crate) fn gpu() -> Device {
    CudaDevices::device(0)
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) case: &'static str,
    pub(crate) bytes: u64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) n: usize,
    /// By what it went.
    pub(crate) over: String,
}

/// How long each is measured.
#[derive(Clone, Copy)]
pub(crate) struct Budget(pub(crate) Duration);

impl Budget {
    /// The times of as many rounds as fit, at least five after two that do not count. `prepare` is not part of them.
    async fn rounds<T>(
        self,
        mut prepare: impl AsyncFnMut(usize) -> Result<T>,
        mut round: impl AsyncFnMut(T) -> Result<()>,
    ) -> Result<Vec<Duration>> {
        let (mut times, mut whole) = (Vec::new(), Duration::ZERO);
        let begun = Instant::now();
        for number in 0.. {
            let prepared = prepare(number).await?;
            let started = Instant::now();
            round(prepared).await?;
            let took = started.elapsed();
            if number < 2 {
                continue;
            }
            times.push(took);
            whole += took;
            let is_enough = whole >= self.0 || begun.elapsed() >= self.0 * 5;
            if times.len() >= 5 && is_enough || times.len() >= 100_000 {
                break;
            }
        }
        times.sort_unstable();
        Ok(times)
    }
}

fn row(case: &'static str, bytes: usize, times: &[Duration], over: String) -> Row {
    let micros = |quantile: f64| {
        let last = times.len().saturating_sub(1);
        let at = (last as f64 * quantile).round() as usize;
        times
            .get(at)
            .map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
    };
    Row {
        case,
        bytes: bytes as u64,
        p50_us: micros(0.5),
        p99_us: micros(0.99),
        n: times.len(),
        over,
    }
}

/// Memory of the GPU, and pinned memory to fill it from.
struct Bench {
    cuda: CudaDevices,
    pool: DevicePool,
    /// Longer than any tensor: each round begins elsewhere.
    pattern: Buffer,
}

const SHIFT: usize = 4096;

impl Bench {
    fn new(cuda: &CudaDevices, pool: DevicePool, most: usize) -> Result<Self> {
        let mut pattern = cuda.pinned(gpu(), most + SHIFT)?;
        if let Some(bytes) = pattern.as_bytes_mut() {
            let mut word = 0x9e37_79b9_7f4a_7c15u64;
            for chunk in bytes.chunks_mut(8) {
                word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
            }
        }
        Ok(Self {
            cuda: cuda.clone(),
            pool,
            pattern: pattern.freeze(),
        })
    }

    /// So many bytes of this round's.
    fn bytes(&self, round: usize, len: usize) -> Buffer {
        let start = round * 8 % SHIFT;
        self.pattern.slice(start..start + len)
    }
}

/// Looks again and again, and lets others run between.
async fn reached(fence: &dyn Fence) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        match fence.reached() {
            Some(reached) => return Ok(reached?),
            None => ensure!(
                Instant::now() < until,
                "the GPU has not finished for a minute"
            ),
        }
        tokio::task::yield_now().await;
    }
}

async fn ready(buffer: &Buffer) -> Result<()> {
    match buffer.ready() {
        Some(fence) => reached(&*fence).await,
        None => Ok(()),
    }
}

/// What all bytes come to, whatever their order of eight.
fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words
        .enumerate()
        .fold(0, |sum, (at, word)| sum ^ word.rotate_left(at as u32 % 63))
}
