//! A parameter server and its workers, each a process of its own, train a network on handwritten digits.
//!
//! ```text
//! launcher ──starts──▶ server   owns the parameters, answers the calls of `service`, measures what came out
//!    │                   ▲ ▲
//!    │   pull parameters │ │ push gradients, whenever they are ready (hogwild)
//!    └────starts──▶ worker worker …   gradients by candle (`model`, `data`)
//! ```
//!
//! `#[tensor_service]` generates the calls from the trait in [`service`]. No code here knows how tensors travel.

mod launcher;
mod model;
mod server;
mod service;
#[cfg(test)]
mod simulated;
mod worker;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, ValueEnum};
use tensorpipe_examples::ending::Ending;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Trains a small network on handwritten digits with a parameter server and its workers, each a process of its own.
///
/// Without --role, one command does everything: it starts the server and the workers, shows what they say, and ends them.
#[derive(Debug, Parser)]
#[command(
    name = "parameter_server",
    after_help = "On several machines, by hand:
  parameter_server --role server --listen tcp://0.0.0.0:5000
  parameter_server --role worker --connect tcp://SERVER:5000    (as many as you like, in any order)"
)]
struct Args {
    /// Be only this part
    #[arg(long, value_enum)]
    role: Option<Role>,
    /// Worker processes to start
    #[arg(long, value_name = "N", default_value_t = 2, conflicts_with = "role", value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: u16,
    /// Steps of the whole training [default: 2000]; for a worker: leave after so many of its own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Where the server listens, for example tcp://0.0.0.0:5000; port 0 takes any free one
    #[arg(long, value_name = "URL", required_if_eq("role", "server"))]
    listen: Option<String>,
    /// Where a worker's server is, for example tcp://127.0.0.1:5000
    #[arg(
        long,
        value_name = "URL",
        required_if_eq("role", "worker"),
        conflicts_with = "listen"
    )]
    connect: Option<String>,
    /// End standard output with the results as one line of JSON
    #[arg(long, conflicts_with = "connect")]
    json: bool,
    /// Started by a launcher: end when standard input does
    #[arg(long, hide = true)]
    supervised: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Keep the parameters, end when the training is over
    Server,
    /// Compute gradients for a server
    Worker,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let ran = match show_log() {
        Ok(()) => run(args).await,
        Err(error) => Err(error),
    };
    match ran {
        Ok(ending) => ending.into(),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the library's warnings, e.g. about unproven peers at the port, among the program's own lines, or what RUST_LOG asks for.
fn show_log() -> Result<()> {
    let filter = std::env::var("RUST_LOG").unwrap_or_else(|_| "warn".to_owned());
    let filter: Targets = filter.parse().with_context(|| {
        format!("RUST_LOG={filter}: e.g. `debug`, or `warn,tensorpipe_rpc=info`")
    })?;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .without_time();
    tracing_subscriber::registry()
        .with(lines)
        .with(filter)
        .init();
    Ok(())
}

async fn run(args: Args) -> Result<Ending> {
    let steps = args.steps.unwrap_or(2000);
    match (args.role, args.connect, args.listen) {
        (Some(Role::Worker), Some(connect), _) => {
            worker::run(&connect, args.steps, args.supervised).await
        }
        (Some(Role::Server), _, Some(listen)) => {
            server::run(&listen, steps, args.json, args.supervised).await
        }
        (None, None, listen) => {
            let listen = listen.unwrap_or_else(|| "tcp://127.0.0.1:0".to_owned());
            launcher::run(args.workers, steps, &listen, args.json).await
        }
        _ => {
            let wrong = "--connect is for workers; add --role worker";
            Args::command()
                .error(ErrorKind::ArgumentConflict, wrong)
                .exit()
        }
    }
}
