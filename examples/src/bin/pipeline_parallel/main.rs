//! A small network, split over two processes, trained on handwritten digits with several micro-batches in flight.
//!
//! ```text
//! front (this command)                               back (a process that it starts)
//!   images ─▶ hidden layer ── activations/m, step ──▶ output layer ─▶ loss
//!             its gradient ◀── gradients/m, step ────  its gradient
//! ```
//!
//! A step's batch is cut into micro-batches. The front sends the activations of all of them, one after another, without waiting for the
//! gradients of the first. While the back computes with one, the front computes the next. The rendezvous bounds the values that are
//! sent and not yet received: a front that is ahead waits for room.
//!
//! Files, in the order of a run: [`args`], then [`front`] and [`back`], each with its half of the network from [`halves`]. The halves
//! exchange values under the names in [`names`]. Data, display and child processes are shared with the example `parameter_server`:
//! [`tensorpipe_examples`].

mod args;
mod back;
mod front;
mod halves;
mod names;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser as _;
use tensorpipe_examples::ending::{Ending, interrupted, released};

use crate::args::Args;

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(ending) => ending.into(),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<Ending> {
    let work = async {
        match &args.back {
            Some(front) => back::run(&args, front).await,
            None => front::run(&args).await,
        }
    };
    tokio::select! {
        done = work => done.map(|()| Ending::Done),
        ending = interrupted() => ending,
        ending = released(args.supervised) => Ok(ending),
    }
}
