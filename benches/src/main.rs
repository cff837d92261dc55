//! `tp-bench`: what the pipe and its calls cost on this machine, beside the strongest peers, in one run.
//!
//! ```text
//! args     what the user asked for           -> plan::Plan, one per row of the table
//! peer     the second process                   re-executes this binary, dies with it, every wait bounded
//! system   what is measured                     trait System; one file each, one line in system::ALL
//! measure  prepare | ROUND (timed) | check      every round carries bytes written anew and checked
//! limits   what the machine can do               bare copies, wake-ups and wires, to judge a row by
//! report   rows -> table or JSON lines
//! rendezvous  values sent and received by name     its own two ends
//! soak     two processes, one of which is killed  everything at once, checked; nothing is left
//! soak/churn  two processes that live          all that calls can do at once; memory does not grow
//! batch    many clients of one model          with and without #[rpc(batch(..))]
//! gpu      two processes and a GPU              calls with its memory, beside bare copies
//! commands pipe, rpc, baseline, compare, idle, limits, rendezvous, targets, chain, batch, soak
//! ```
//!
//! Figures of one machine drift within seconds; `compare` alternates the systems and reports ratios, which hold.

mod args;
mod awake;
mod batch;
mod commands;
mod cores;
#[cfg(feature = "gpu")]
mod gpu;
mod limits;
mod measure;
mod memory;
mod pattern;
mod peer;
mod plan;
mod processor;
mod progress;
mod rendezvous;
mod report;
mod size;
mod soak;
mod system;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Arguments, Command};

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Pipe(arguments) => commands::ours::pipe(&arguments),
        Command::Rpc(arguments) => commands::ours::rpc(&arguments),
        Command::Baseline(arguments) => commands::baseline::run(&arguments),
        Command::Compare(arguments) => commands::compare::run(&arguments),
        Command::Batch(arguments) => commands::batch::run(&arguments),
        Command::Idle(arguments) => commands::idle::run(&arguments),
        Command::Crowd(arguments) => commands::crowd::run(&arguments),
        Command::Limits(arguments) => commands::limits::run(&arguments),
        Command::Targets(arguments) => commands::targets::run(&arguments),
        Command::Chain(arguments) => commands::chain::run(&arguments),
        Command::Soak(arguments) => commands::soak::run(&arguments),
        Command::Churn(arguments) => commands::churn::run(&arguments),
        Command::Rendezvous(arguments) => commands::rendezvous::run(&arguments),
        Command::RendezvousPeer => rendezvous::play(),
        Command::SoakPeer => soak::play(),
        Command::ChurnPeer => soak::churn::play(),
        #[cfg(feature = "gpu")]
        Command::Gpu(arguments) => commands::gpu::run(&arguments),
        #[cfg(feature = "gpu")]
        Command::GpuPeer => gpu::play(),
        Command::Serve => peer::serve(),
        Command::ServeBatch => batch::serve(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tp-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
