//! The command line.

use clap::{Args, Parser, Subcommand};

use crate::plan::{Alloc, Case, Flavor, Transport};
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
    /// Measure the processor time and memory of an idle server with open connections.
    Idle(Idle),
    /// Measure what this machine can do at this moment: copies, wake-ups, and bare round trips.
    Limits(LimitsArguments),
    /// Talk over every transport and channel at once, check every byte, and kill the peer again and again.
    Soak(Soak),
    /// The second process.
    #[command(hide = true)]
    Serve,
    /// The process that is killed.
    #[command(hide = true)]
    SoakPeer,
}

#[derive(Debug, Args)]
pub(crate) struct PipeArguments {
    #[command(flatten)]
    pub(crate) options: Options,
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
    #[arg(long, value_delimiter = ',', default_value = "echo,upload")]
    pub(crate) cases: Vec<Case>,
    /// Systems to compare, as NAME@TRANSPORT+CHANNEL:ALLOC with parts left out, for example rpc@shm,rpc@tcp,tarpc@unix,rpc@shm:pool;
    /// without it all that have the case, over shm the peers over their Unix sockets.
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
pub(crate) struct Soak {
    /// What is drawn by chance follows from it: sizes, what is given up, when the peer dies.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// How often the peer is killed.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) kills: u32,
    /// The largest tensor.
    #[arg(long, default_value = "32MiB")]
    pub(crate) largest: Size,
    /// The kind of tokio runtime on both sides.
    #[arg(long, value_enum, default_value_t = Flavor::Multi)]
    pub(crate) runtime: Flavor,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
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
    /// The channel for tensors, for systems that have channels; without it the negotiation's choice.
    #[arg(long)]
    pub(crate) channel: Option<String>,
    /// Where the sender's tensor lies, for systems that have pools.
    #[arg(long, value_enum, default_value_t = Alloc::Heap)]
    pub(crate) alloc: Alloc,
    /// The kind of tokio runtime on both sides.
    #[arg(long, value_enum, default_value_t = Flavor::Current)]
    pub(crate) runtime: Flavor,
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

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.0..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("write a number of seconds from 0 to 3600".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn lists_are_split_and_defaults_are_as_documented() {
        let line = "tp-bench baseline --case echo,upload --size 0,4KiB,1MiB --json";
        let parsed = Arguments::try_parse_from(line.split(' ')).expect("valid");
        let Command::Baseline(baseline) = parsed.command else {
            panic!("another command");
        };
        assert_eq!(baseline.case, [Case::Echo, Case::Upload]);
        assert_eq!(baseline.options.size, [Size(0), Size(4096), Size(1 << 20)]);
        assert_eq!(baseline.options.alloc, Alloc::Heap);
        assert_eq!(baseline.options.runtime, Flavor::Current);
        assert_eq!(baseline.options.transport, None);
        assert!(baseline.options.json && !baseline.options.pin);
        assert!(!baseline.options.sum && !baseline.options.limits);
    }

    #[test]
    fn wrong_values_are_refused() {
        for wrong in [
            "--size 4apples",
            "--seconds -1",
            "--seconds nan",
            "--case fly",
            "--runtime x",
        ] {
            let line = format!("tp-bench baseline {wrong}");
            assert!(
                Arguments::try_parse_from(line.split(' ')).is_err(),
                "{wrong}"
            );
        }
        assert!(Arguments::try_parse_from(["tp-bench", "compare", "--runs", "0"]).is_err());
    }
}
