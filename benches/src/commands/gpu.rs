//! `tp-bench gpu`: the cost of moving tensors on a GPU from one process to another, beside plain copies on its streams.
//!
//! ```text
//! copy within, up, down   on a stream, each awaited: within the GPU, to it, from it
//! lent    memory of a pool, read in place
//! slice   memory of another library's, copied on the GPU, then lent
//! own     memory of a pool, to a process that borrows nothing: one copy
//! up      main memory of a pool, to the GPU
//! down    from the GPU to main memory
//! ```
//! First the command prints the driver, the devices, and the route to another process.
//!
//! Each round sends a tensor that was filled before, and ends when the other process answers that all bytes have arrived. Untimed
//! small calls before each round make sure that both processes are awake. The other process sums up one tensor of each size.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};
use tensorpipe::channels::LeaseChannel;
use tensorpipe::device::Fence;
use tensorpipe::device::cuda::CudaDevices;
use tensorpipe::{Buffer, Context, DType, Device, Tensor, device::DevicePool};
use tensorpipe_rpc::{DeviceMap, Server, tensor_service};

use crate::measure::Samples;
use crate::peer::{self, Peer, announce};
use crate::plan::{Flavor, seconds};
use crate::report;
use crate::size::Size;

#[derive(Debug, Args)]
pub(crate) struct Gpu {
    /// Lengths of the tensors.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "4KiB,64KiB,1MiB,16MiB,256MiB,1GiB"
    )]
    size: Vec<Size>,
    /// Length of each run in seconds.
    #[arg(long, default_value_t = 0.3, value_parser = seconds)]
    seconds: f64,
    /// Print one JSON object per line instead of a table.
    #[arg(long)]
    json: bool,
    /// Say what is there, and measure nothing.
    #[arg(long)]
    probe: bool,
}

#[derive(Clone, Debug, Serialize)]
struct Row {
    case: &'static str,
    bytes: u64,
    p50_us: f64,
    p99_us: f64,
    n: u64,
    /// The channel that carried it.
    over: String,
}

impl Row {
    fn new(case: &'static str, len: usize, samples: &Samples, over: String) -> Self {
        Self {
            case,
            bytes: len as u64,
            p50_us: samples.micros(0.5),
            p99_us: samples.micros(0.99),
            n: samples.calls(),
            over,
        }
    }
}

/// What is measured in one step, over all sizes.
#[derive(Clone, Copy)]
enum Step {
    Copies,
    Calls(Calls),
}

/// Whether the other process borrows, where the tensor lies, and whether it arrives on a GPU.
#[derive(Clone, Copy)]
struct Calls {
    case: &'static str,
    borrows: bool,
    source: Source,
    lands_there: bool,
}

/// Where the tensor lies before it is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Pool,
    Slice,
    Main,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Gpu) -> Result<()> {
    let cuda = CudaDevices::open()?;
    let sizes = arguments.size.iter().map(|size| size.len());
    let sizes = sizes.collect::<Result<Vec<_>>>()?;
    let length = Duration::from_secs_f64(arguments.seconds);
    let runtime = tokio::runtime::Runtime::new()?;
    let found = runtime.block_on(probe(&cuda))?;
    // With `--json`, standard output holds only rows.
    match arguments.json {
        true => eprintln!("{found}"),
        false => report::say(found),
    }
    if arguments.probe {
        return Ok(());
    }
    let calls = |case, borrows, source, lands_there| {
        let calls = Calls {
            case,
            borrows,
            source,
            lands_there,
        };
        (case.to_owned(), Step::Calls(calls))
    };
    let steps = vec![
        ("copies".to_owned(), Step::Copies),
        calls("lent", true, Source::Pool, true),
        calls("slice", true, Source::Slice, true),
        calls("own", false, Source::Pool, true),
        calls("up", true, Source::Main, true),
        calls("down", true, Source::Pool, false),
    ];
    report::run(
        arguments.json,
        steps,
        |step| match step {
            Step::Copies => runtime.block_on(copies(&cuda, &sizes, length)),
            Step::Calls(calls) => runtime.block_on(measure(&cuda, &sizes, length, calls)),
        },
        |rows| format!("{}\n\n{NOTES}", report::table(FIELDS, rows)),
    )
}

/// Describes the driver, its devices, and the channel for tensors to another process on the same GPU.
async fn probe(cuda: &CudaDevices) -> Result<String> {
    let (major, minor) = cuda.version()?;
    let mut lines = vec![format!("driver of CUDA {major}.{minor}")];
    for device in cuda.devices() {
        lines.push(cuda.properties(device)?.to_string());
    }
    let peer = Peer::start("gpu-peer", &Orders { borrows: true })?;
    let context = Context::builder().cuda(cuda).build()?;
    let client = TakerClient::connect_with(&context, peer.address()).await?;
    lines.push(client.connection().route().to_string());
    Ok(lines.join("\n"))
}

/// Plain copies on a stream, each awaited, always between the same memory. This library only pins the memory.
async fn copies(cuda: &CudaDevices, sizes: &[usize], length: Duration) -> Result<Vec<Row>> {
    let context = Context::builder().cuda(cuda).build()?;
    let bench = Bench::new(cuda, &context, sizes)?;
    let stream = cuda.context(gpu())?.new_stream()?;
    // Waits until the stream is done, without blocking inside the driver.
    let finished = async || -> Result<()> {
        let event = stream.record_event(None)?;
        let until = Instant::now() + Duration::from_secs(60);
        while !event.is_complete() {
            ensure!(
                Instant::now() < until,
                "the GPU has not finished for a minute"
            );
            tokio::task::yield_now().await;
        }
        Ok(())
    };
    let mut rows = Vec::new();
    for &len in sizes {
        let mut here = stream.alloc_zeros::<u8>(len)?;
        let mut there = stream.alloc_zeros::<u8>(len)?;
        let mut main = cuda.pinned(gpu(), len)?;
        let from = bench.bytes(0, len);
        let from = from.as_bytes().context("it is main memory")?;
        let to = main.as_bytes_mut().context("it is main memory")?;
        let nothing = async |_| Ok(());
        let up = async |()| {
            stream.memcpy_htod(from, &mut here)?;
            finished().await
        };
        let up = rounds(length, nothing, up).await?;
        let within = async |()| {
            stream.memcpy_dtod(&here, &mut there)?;
            finished().await
        };
        let within = rounds(length, nothing, within).await?;
        let down = async |()| {
            stream.memcpy_dtoh(&there, &mut *to)?;
            finished().await
        };
        let down = rounds(length, nothing, down).await?;
        ensure!(from == to, "other bytes came");
        rows.push(Row::new("copy within", len, &within, String::new()));
        rows.push(Row::new("copy up", len, &up, String::new()));
        rows.push(Row::new("copy down", len, &down, String::new()));
    }
    Ok(rows)
}

/// Calls with a tensor, from this process to another one on the same GPU.
async fn measure(
    cuda: &CudaDevices,
    sizes: &[usize],
    length: Duration,
    calls: Calls,
) -> Result<Vec<Row>> {
    let borrows = calls.borrows;
    let peer = Peer::start("gpu-peer", &Orders { borrows })?;
    let context = Context::builder().cuda(cuda).build()?;
    let mut client = TakerClient::connect_with(&context, peer.address()).await?;
    if calls.lands_there {
        client = client.with_device_map(DeviceMap::new([(gpu(), gpu())])?);
    }
    let bench = Bench::new(cuda, &context, sizes)?;
    let stream = cuda.context(gpu())?.new_stream()?;
    let mut rows = Vec::new();
    for &len in sizes {
        let make = async |round| {
            let bytes = bench.bytes(round, len);
            let tensor = match calls.source {
                Source::Pool => {
                    let buffer = cuda.upload(&bytes, bench.pool.take(len)?, &stream)?;
                    Tensor::from_buffer(buffer, DType::U8, [len])?
                }
                Source::Slice => {
                    let slice = stream.clone_htod(bytes.as_bytes().unwrap_or_default())?;
                    Tensor::from_cuda(cuda, slice, [len])?
                }
                Source::Main => {
                    let mut tensor = context.pool().tensor(DType::U8, [len])?;
                    let bytes = bytes.as_bytes().unwrap_or_default();
                    tensor.make_mut::<u8>()?.copy_from_slice(bytes);
                    tensor
                }
            };
            ready(tensor.buffer()).await?;
            for _ in 0..AWAKE {
                client.awake().await?;
            }
            Ok(tensor)
        };
        let call = async |tensor: Tensor| {
            let taken = match calls.source {
                Source::Main => client.lift(tensor).await?,
                _ => client.take(tensor).await?,
            };
            ensure!(taken == len as u64, "{taken} of {len} bytes came");
            Ok(())
        };
        let samples = rounds(length, make, call).await?;
        let found = client.sum(make(7).await?).await?;
        let bytes = bench.bytes(7, len);
        let expected = sum(bytes.as_bytes().unwrap_or_default());
        ensure!(found == expected, "other bytes came");
        let over = used(&client, calls.source);
        rows.push(Row::new(calls.case, len, &samples, over));
    }
    Ok(rows)
}

/// The channels that carried something, and how many bytes went another way.
fn used(client: &TakerClient, source: Source) -> String {
    let pipe = client.connection().pipe();
    let channels = pipe.route().channels.iter();
    let carried = channels.filter(|channel| channel.carried.bytes() > 0);
    let mut names: Vec<_> = carried.map(|channel| channel.name.clone()).collect();
    if source != Source::Main {
        names.retain(|name| name.starts_with("cuda"));
    }
    let diverted = pipe.stats().bytes_diverted;
    if diverted > 0 {
        names.push(format!("{diverted} bytes diverted"));
    }
    names.join(" ")
}

/// Makes as many rounds as fit into `length`: at least five, after two that do not count. `prepare` is not timed.
async fn rounds<T>(
    length: Duration,
    mut prepare: impl AsyncFnMut(usize) -> Result<T>,
    mut round: impl AsyncFnMut(T) -> Result<()>,
) -> Result<Samples> {
    let (mut samples, mut whole) = (Samples::new(), Duration::ZERO);
    let begun = Instant::now();
    for number in 0.. {
        let prepared = prepare(number).await?;
        let started = Instant::now();
        round(prepared).await?;
        let took = started.elapsed();
        if number < 2 {
            continue;
        }
        samples.record(took, 1);
        whole += took;
        let is_enough = whole >= length || begun.elapsed() >= length * 5;
        if samples.calls() >= 5 && is_enough || samples.calls() >= 100_000 {
            break;
        }
    }
    Ok(samples)
}

/// The GPU that is measured.
fn gpu() -> Device {
    CudaDevices::device(0)
}

/// Memory of the GPU, and pinned memory to fill it from.
struct Bench {
    pool: DevicePool,
    /// Longer than any tensor, so that each round can begin at another offset.
    pattern: Buffer,
}

const SHIFT: usize = 4096;

/// Empty calls that make sure that both processes are awake.
const AWAKE: usize = 8;

impl Bench {
    fn new(cuda: &CudaDevices, context: &Context, sizes: &[usize]) -> Result<Self> {
        let most = sizes.iter().copied().max().unwrap_or(0);
        let mut pattern = cuda.pinned(gpu(), most + SHIFT)?;
        if let Some(bytes) = pattern.as_bytes_mut() {
            crate::pattern::fill(bytes, 0);
        }
        Ok(Self {
            pool: context.allocator(gpu())?,
            pattern: pattern.freeze(),
        })
    }

    /// `len` bytes of the pattern of this round.
    fn bytes(&self, round: usize, len: usize) -> Buffer {
        let start = round * 8 % SHIFT;
        self.pattern.slice(start..start + len)
    }
}

/// Polls the fence, and yields to other tasks between polls.
async fn reached(fence: &dyn Fence) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(reached) = fence.reached() {
            return Ok(reached?);
        }
        ensure!(
            Instant::now() < until,
            "the GPU has not finished for a minute"
        );
        tokio::task::yield_now().await;
    }
}

async fn ready(buffer: &Buffer) -> Result<()> {
    match buffer.ready() {
        Some(fence) => reached(&*fence).await,
        None => Ok(()),
    }
}

/// A checksum that depends on the order of the bytes.
fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).enumerate();
    words.fold(0, |sum, (at, word)| {
        sum ^ crate::pattern::sum(word).rotate_left(at as u32 % 63)
    })
}

/// Instructions for the other process.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Orders {
    /// Whether it reads lent memory in place.
    borrows: bool,
}

#[tensor_service]
trait Taker {
    async fn awake(&self);
    /// Returns the tensor's length when all of it has arrived.
    async fn take(&self, x: Tensor) -> Result<u64, String>;
    /// Like `take`, but the tensor arrives on the GPU, wherever it comes from.
    async fn lift(&self, #[tensor(device = "cuda:0")] x: Tensor) -> Result<u64, String>;
    /// Returns the checksum of all bytes.
    async fn sum(&self, x: Tensor) -> Result<u64, String>;
}

struct There(Context);

impl Taker for There {
    async fn awake(&self) {}

    async fn take(&self, x: Tensor) -> Result<u64, String> {
        ready(x.buffer()).await.map_err(|error| error.to_string())?;
        Ok(x.byte_len() as u64)
    }

    async fn lift(&self, x: Tensor) -> Result<u64, String> {
        self.take(x).await
    }

    async fn sum(&self, x: Tensor) -> Result<u64, String> {
        let here = x.to(Device::CPU, &self.0).await;
        let here = here.map_err(|error| error.to_string())?;
        Ok(sum(here.as_bytes().map_err(|error| error.to_string())?))
    }
}

/// Takes tensors, on its GPU or in main memory, until stdin ends. This is what `tp-bench gpu-peer` does.
pub(crate) fn play() -> Result<()> {
    peer::play(
        |_| Flavor::Multi.build(),
        async |orders: Orders| {
            let cuda = CudaDevices::open()?;
            let mut builder = Context::builder().cuda(&cuda);
            if !orders.borrows {
                builder = builder.prefer_channel(LeaseChannel::lends_only());
            }
            let context = builder.build()?;
            let server = Server::builder().context(&context);
            let server = server.service(TakerService::new(There(context.clone())));
            let server = server.listen("tcp://127.0.0.1:0").await?;
            announce(server.url())?;
            server.wait().await;
            anyhow::bail!("the listener failed")
        },
    )
}

const FIELDS: &str = "case bytes p50_us p99_us n over";

const NOTES: &str = "\
copy: on a stream, awaited; lent: read where it lies; slice: another library's memory; own: to a process that borrows nothing
up, down: from and to main memory";
