//! The command line.

mod soak;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use self::soak::{Churn, Soak};
use crate::plan::{Alloc, Begin, Case, Flavor, Plan, Transport};
use crate::size::Size;

/// What the pipe and its calls cost, beside hand-written tokio and tarpc.
///
/// Every system is served by a second process. Every round carries bytes written anew and checked, both outside the
/// timed part. GB/s (`gbps` in JSON) are bytes of one direction by the median, in units of 10^9 bytes.
///
/// The allocator's tuning is inherited by both processes: run with MALLOC_TRIM_THRESHOLD_ and MALLOC_MMAP_THRESHOLD_
/// set high to see peers that allocate with a malloc that keeps its memory.
#[derive(Debug, Parser)]
#[command(name = "tp-bench", version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure our pipe: the round trip of a message with one tensor; of no bytes, with metadata only.
    Pipe(PipeArguments),
    /// Measure our calls.
    Rpc(RpcArguments),
    /// Measure what we compare with: hand-written tokio, and tarpc.
    Baseline(Baseline),
    /// Measure systems alternately, several times, and print medians and ratios: they hold where figures drift.
    Compare(Compare),
    /// Measure what this project aims at, and say what is met: one table for a report.
    Targets(Targets),
    /// Measure what gathering the calls of many clients is worth: a method with a fixed cost for each run, batched and not.
    Batch(Batch),
    /// Measure the processor time and memory of an idle server with open connections.
    Idle(Idle),
    /// Measure calls over many connections at once, one at a time on each.
    Crowd(Crowd),
    /// Measure what this machine can do at this moment: copies, wake-ups, and bare round trips.
    Limits(LimitsArguments),
    /// Measure a rendezvous: from send to receive, within this process and to a second one.
    Rendezvous(RendezvousArguments),
    /// Measure calls that are given the results of others: awaited one by one, and all made at once.
    Chain(Chain),
    /// Talk over every transport and channel at once, check every byte, and kill the peer again and again.
    Soak(Soak),
    /// Do all that calls can do at once, check every byte, and look whether memory grows.
    Churn(Churn),
    /// Measure tensors on a GPU: bare copies, and calls from one process to another on the same GPU.
    #[cfg(feature = "gpu")]
    Gpu(Gpu),
    /// The second process of `gpu`.
    #[cfg(feature = "gpu")]
    #[command(hide = true)]
    GpuPeer,
    /// The second process.
    #[command(hide = true)]
    Serve,
    /// The second process of `batch`.
    #[command(hide = true)]
    ServeBatch,
    /// The other end of a rendezvous.
    #[command(hide = true)]
    RendezvousPeer,
    /// The process that is killed.
    #[command(hide = true)]
    SoakPeer,
    /// The process that is called.
    #[command(hide = true)]
    ChurnPeer,
}

#[derive(Debug, Args)]
pub(crate) struct PipeArguments {
    #[command(flatten)]
    pub(crate) options: Options,
}

#[cfg(feature = "gpu")]
#[derive(Debug, Args)]
pub(crate) struct Gpu {
    /// Lengths of the tensors.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "4KiB,64KiB,1MiB,16MiB,256MiB,1GiB"
    )]
    pub(crate) size: Vec<Size>,
    /// Length of each run in seconds.
    #[arg(long, default_value_t = 0.3, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Print one JSON object per line instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RpcArguments {
    /// Cases to measure. A pipeline has 64 calls in flight.
    #[arg(long, value_delimiter = ',', default_value = "echo")]
    pub(crate) case: Vec<Case>,
    #[command(flatten)]
    pub(crate) options: Options,
}

#[derive(Debug, Args)]
pub(crate) struct Baseline {
    /// Cases to measure; without it echo up to 4 KiB and upload above.
    #[arg(long, value_delimiter = ',')]
    pub(crate) case: Vec<Case>,
    /// Systems to measure, for example tokio or tarpc@unix; without it all that have the case.
    #[arg(long, value_delimiter = ',')]
    pub(crate) system: Vec<String>,
    #[command(flatten)]
    pub(crate) options: Options,
}

#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// Cases to compare in.
    #[arg(long, value_delimiter = ',', default_value = "echo,pipeline,upload")]
    pub(crate) cases: Vec<Case>,
    /// Systems to compare, as NAME@TRANSPORT+CHANNEL/LANES:ALLOC with parts left out, for example rpc@shm,rpc@tcp+mpt/2,tarpc@unix,
    /// rpc@shm:pool; without it ours over shm and tcp, and tarpc and tokio over Unix sockets and tcp. With `--transport` instead all
    /// that have the case over it, for shm the peers over their Unix sockets.
    #[arg(long, value_delimiter = ',')]
    pub(crate) systems: Vec<String>,
    /// The system that ratios refer to, as written above or by its name; without it tarpc for small calls and tokio for
    /// uploads and downloads.
    #[arg(long)]
    pub(crate) against: Option<String>,
    /// Runs of each system; they alternate: A B A B …
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: u32,
    #[command(flatten)]
    pub(crate) options: Options,
}

#[derive(Debug, Args)]
pub(crate) struct Targets {
    /// Rows to measure, in the table's order; a name stands for every row that begins with it. Without it all.
    #[arg(long, value_delimiter = ',')]
    pub(crate) rows: Vec<String>,
    /// Runs of each system; they alternate: A B A B …
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: u32,
    /// Length of each run in seconds, after a warm-up.
    #[arg(long, default_value_t = 0.15, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// How long idle servers are watched, in seconds.
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    pub(crate) idle_seconds: f64,
    /// Leave the threads of the multi_thread runtime on whichever core the system puts them.
    #[arg(long)]
    pub(crate) roam: bool,
    /// Only try that everything works: one short run each, tensors of 1 MiB at most. The figures mean nothing.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Print one JSON object per line instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Batch {
    /// Clients at once, each with a connection of its own and one call under way.
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,64",
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) clients: Vec<u32>,
    /// What a run of the model takes, however many rows it has, in microseconds.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pub(crate) cost_us: u64,
    /// Length of each measurement in seconds, after a warm-up.
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// What carries the bytes: tcp or shm.
    #[arg(long, value_enum, default_value_t = Transport::Tcp)]
    pub(crate) transport: Transport,
    /// The kind of tokio runtime on both sides.
    #[arg(long, value_enum, default_value_t = Flavor::Multi)]
    pub(crate) runtime: Flavor,
    /// Print one JSON object per line instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Idle {
    /// Systems to measure, for example rpc@shm,rpc@tcp; without it all, over every transport between processes.
    #[arg(long, value_delimiter = ',')]
    pub(crate) system: Vec<String>,
    /// Open connections.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) connections: u32,
    #[command(flatten)]
    pub(crate) options: Options,
}

#[derive(Debug, Args)]
pub(crate) struct Crowd {
    /// Systems to measure.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "rpc@shm,tokio@unix,rpc@tcp,tokio@tcp"
    )]
    pub(crate) system: Vec<String>,
    /// Numbers of connections.
    #[arg(long, value_delimiter = ',', default_value = "1,10,100,1000", value_parser = clap::value_parser!(u32).range(1..=4000))]
    pub(crate) connections: Vec<u32>,
    #[command(flatten)]
    pub(crate) options: Options,
}

#[derive(Debug, Args)]
pub(crate) struct LimitsArguments {
    /// Sizes to copy and to carry, for example 4KiB,1MiB; without it those that the peers are measured with.
    #[arg(long, value_delimiter = ',')]
    pub(crate) size: Vec<Size>,
    /// Length of each measurement in seconds.
    #[arg(long, default_value_t = 0.2, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Print one JSON object per line instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Chain {
    /// Lengths of chains.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) calls: Vec<u32>,
    #[command(flatten)]
    pub(crate) options: Options,
}

#[derive(Debug, Args)]
pub(crate) struct RendezvousArguments {
    /// Receives under way at any time, in the rows that count values a second.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) in_flight: u32,
    #[command(flatten)]
    pub(crate) options: Options,
}

/// Options of every measurement of systems.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// Sizes of the tensor, for example 0,4KiB,1MiB; without it a choice that suits the case.
    #[arg(long, value_delimiter = ',')]
    pub(crate) size: Vec<Size>,
    /// Length of each measurement in seconds, after a warm-up.
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// What carries the bytes; without it tcp.
    #[arg(long, value_enum)]
    pub(crate) transport: Option<Transport>,
    /// The channel for tensors, for systems that have channels: xth, lease, cma, mpt, basic, ring, which is basic over shm, or default, of which a context chooses.
    /// Without it basic over tcp, which stands for a network, else what a context chooses.
    #[arg(long)]
    pub(crate) channel: Option<String>,
    /// Connections that channel mpt has for a tensor; without it as many as it takes by itself.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) lanes: Option<u8>,
    /// At most so many bytes a second leave by each socket (SO_MAX_PACING_RATE), for example 50MiB; ours over tcp.
    #[arg(long, value_parser = pace)]
    pub(crate) pace: Option<Size>,
    /// Where the sender's tensor lies, for systems that have pools.
    #[arg(long, value_enum, default_value_t = Alloc::Heap)]
    pub(crate) alloc: Alloc,
    /// The kind of tokio runtime on both sides.
    #[arg(long, value_enum, default_value_t = Flavor::Current)]
    pub(crate) runtime: Flavor,
    /// Which rounds begin with both ends awake: once the tensor is written, calls without one go there and back, untimed, until
    /// they are short.
    #[arg(long, value_enum, default_value_t = Warm::Leased)]
    pub(crate) warm: Warm,
    /// The server's runtime has something else to do, too: it computes for so many microseconds at a time, again and again.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pub(crate) busy_us: u64,
    /// Measure once more with every byte of a tensor read by whoever receives it.
    #[arg(long)]
    pub(crate) sum: bool,
    /// Measure beside each row what the machine takes for a bare round with the same bytes.
    #[arg(long)]
    pub(crate) limits: bool,
    /// Put each process on a core of its own.
    #[arg(long)]
    pub(crate) pin: bool,
    /// Print one JSON object per line instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which rounds begin with both ends awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Warm {
    /// Those of leased tensors, which take less time than waking somebody.
    Leased,
    /// The same, and the trips carry a small leased tensor: its way is in the caches again, which writing a large one has emptied.
    Hot,
    /// All but those of paced and pipeline.
    Always,
    /// None: they begin as writing the tensor has left both ends.
    Never,
}

impl Warm {
    /// In which state rounds of `plan` begin.
    pub(crate) fn begin(self, plan: &Plan) -> Begin {
        match self {
            Self::Always => Begin::Awake,
            Self::Leased if plan.is_leased() => Begin::Awake,
            Self::Hot if plan.is_leased() => Begin::Hot,
            Self::Leased | Self::Hot | Self::Never => Begin::AsTheyAre,
        }
    }
}

fn pace(text: &str) -> Result<Size, String> {
    match text.parse() {
        Ok(Size(0)) => Err("write more than 0 bytes a second".to_owned()),
        Ok(pace) => Ok(pace),
        Err(error) => Err(error.to_string()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.0..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("write a number of seconds from 0 to 3600".to_owned()),
    }
}

#[cfg(test)]
mod tests;
