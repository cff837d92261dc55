//! The command line.

use clap::Parser;

/// Trains a small network on handwritten digits; its two layers are in two processes, with several micro-batches in flight.
#[derive(Debug, Parser)]
#[command(name = "pipeline_parallel")]
pub(crate) struct Args {
    /// Steps of the training
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) steps: u64,

    /// Micro-batches of a step, all of them in flight at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) micro_batches: u32,

    /// End standard output with the results as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Be the back half, for the front at this URL
    #[arg(long, hide = true, value_name = "URL")]
    pub(crate) back: Option<String>,

    /// Started by another process: end when standard input does
    #[arg(long, hide = true)]
    pub(crate) supervised: bool,
}
