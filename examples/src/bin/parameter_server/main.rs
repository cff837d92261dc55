//! A parameter server and its workers, each a process of its own, train a network on handwritten digits.
//!
//! ```text
//! launcher ──starts──▶ server   owns the parameters (store), answers the calls of `service`
//!    │                   ▲ ▲
//!    │   pull parameters │ │ push gradients, whenever they are ready (hogwild)
//!    └────starts──▶ worker worker …   gradients by candle (model, data)
//! ```
//!
//! Files, in the order of a run: [`args`] → [`launcher`] (with [`process`]) → [`server`] ([`service`], [`store`]) and
//! [`worker`] ([`connection`], [`model`], [`data`]) → [`progress`] → [`report`]. The calls are made by
//! `#[tensor_service]` from the trait in [`service`]; nothing here knows how tensors travel.

mod args;
mod connection;
mod data;
mod ending;
mod launcher;
mod model;
mod process;
mod progress;
mod random;
mod report;
mod server;
mod service;
mod store;
mod worker;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser as _;

use crate::args::{Args, Command};
use crate::ending::Ending;

#[tokio::main]
async fn main() -> ExitCode {
    let command = match Args::parse().resolve() {
        Ok(command) => command,
        Err(error) => error.exit(),
    };
    match run(command).await {
        Ok(ending) => ending.into(),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> Result<Ending> {
    match command {
        Command::Launch(launch) => launcher::run(launch).await,
        Command::Serve(serve) => server::run(serve).await,
        Command::Work(work) => worker::run(work).await,
    }
}
