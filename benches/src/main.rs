//! `tp-bench`: measures the pipe and its calls on this machine, in one run with the strongest competitors.
//!
//! ```text
//! plan      what is measured in a row, and the options that say so
//! peer      the second process                re-executes this binary, dies with it, every wait bounded
//! system    what is measured                  trait System; one file each, one line in system::ALL
//! measure   prepare | ROUND (timed) | check   every round carries bytes written anew and checked
//! limits    what the machine can do           bare copies, wake-ups and wires, to judge a row by
//! report    rows -> table or JSON lines
//! commands  one file each                     options, what is measured, the columns of its table
//! soak      soak and churn                    everything at once, checked; nothing is left, memory does not grow
//! ```
//!
//! Figures of one machine drift within seconds; `compare` alternates the systems and reports ratios, which hold.
#![forbid(unsafe_code)]

mod commands;
mod host;
mod limits;
mod measure;
mod pattern;
mod peer;
mod plan;
mod report;
mod size;
mod soak;
mod system;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::commands::targets;
use crate::commands::{
    batch, callers, chain, chart, compare, connections, limits as limit, rendezvous, rows,
};

/// What the pipe and its calls cost, beside hand-written tokio and tarpc.
///
/// Every system is served by a second process. Every round carries bytes written anew and checked, both outside the
/// timed part. GB/s (`gbps` in JSON) are bytes of one direction by the median, in units of 10^9 bytes.
///
/// The allocator's tuning is inherited by both processes: run with MALLOC_TRIM_THRESHOLD_ and MALLOC_MMAP_THRESHOLD_
/// set high to see peers that allocate with a malloc that keeps its memory.
#[derive(Debug, Parser)]
#[command(name = "tp-bench", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure our pipe: the round trip of a message with one tensor; of no bytes, with metadata only.
    Pipe(rows::Pipe),
    /// Measure our calls.
    Rpc(rows::Rpc),
    /// Measure what we compare with: hand-written tokio, and tarpc.
    Baseline(rows::Baseline),
    /// Measure systems alternately, several times, and print medians and ratios: they hold where figures drift.
    Compare(compare::Compare),
    /// Measure what this project aims at, and say what is met: one table for a report.
    Targets(targets::Targets),
    /// Print the table of a run of compare, and draw it, from its lines of JSON.
    Report(chart::Report),
    /// Measure what gathering the calls of many clients is worth: a method with a fixed cost for each run, batched and not.
    Batch(batch::Batch),
    /// Measure calls of several tasks over one connection, beside calls that wait.
    Callers(callers::Callers),
    /// Measure the processor time and memory of an idle server with open connections.
    Idle(connections::Idle),
    /// Measure calls over many connections at once, one at a time on each.
    Connections(connections::Connections),
    /// Measure what this machine can do at this moment: copies, wake-ups, and bare round trips.
    Limits(limit::Limits),
    /// Measure a rendezvous: from send to receive, within this process and to a second one.
    Rendezvous(rendezvous::Arguments),
    /// Measure calls that are given the results of others: awaited one by one, and all made at once.
    Chain(chain::Chain),
    /// Talk over every transport and channel at once, check every byte, and kill the peer again and again.
    Soak(soak::Soak),
    /// Do all that calls can do at once, check every byte, and look whether memory grows.
    Churn(soak::Churn),
    /// Measure tensors on a GPU: bare copies, and calls from one process to another on the same GPU.
    #[cfg(feature = "gpu")]
    Gpu(commands::gpu::Gpu),
    /// The second process of `gpu`.
    #[cfg(feature = "gpu")]
    #[command(hide = true)]
    GpuPeer,
    /// The second process.
    #[command(hide = true)]
    Serve,
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

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tp-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Pipe(arguments) => rows::pipe(&arguments),
        Command::Rpc(arguments) => rows::rpc(&arguments),
        Command::Baseline(arguments) => rows::baseline(&arguments),
        Command::Compare(arguments) => compare::run(&arguments),
        Command::Targets(arguments) => targets::run(&arguments),
        Command::Report(arguments) => chart::run(&arguments),
        Command::Batch(arguments) => batch::run(&arguments),
        Command::Callers(arguments) => callers::run(&arguments),
        Command::Idle(arguments) => connections::idle(&arguments),
        Command::Connections(arguments) => connections::connections(&arguments),
        Command::Limits(arguments) => limit::run(&arguments),
        Command::Rendezvous(arguments) => rendezvous::run(&arguments),
        Command::Chain(arguments) => chain::run(&arguments),
        Command::Soak(arguments) => soak::soak(&arguments),
        Command::Churn(arguments) => soak::churn(&arguments),
        #[cfg(feature = "gpu")]
        Command::Gpu(arguments) => commands::gpu::run(&arguments),
        #[cfg(feature = "gpu")]
        Command::GpuPeer => commands::gpu::play(),
        Command::Serve => peer::serve(),
        Command::RendezvousPeer => rendezvous::play(),
        Command::SoakPeer => soak::play_soak(),
        Command::ChurnPeer => soak::play_churn(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_wrong_values_are_refused() {
        Arguments::command().debug_assert();
        for wrong in [
            "--size 4apples",
            "--seconds -1",
            "--seconds nan",
            "--case fly",
            "--lanes 17",
            "--pace 0",
            "--warm up",
        ] {
            let line = format!("tp-bench baseline {wrong}");
            let parsed = Arguments::try_parse_from(line.split(' '));
            assert!(parsed.is_err(), "{wrong}");
        }
    }
}
