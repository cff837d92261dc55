//! What runs long and measures no time.

use clap::Args;

use super::seconds;
use crate::plan::Flavor;
use crate::size::Size;

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

#[derive(Debug, Args)]
pub(crate) struct Churn {
    /// What is drawn by chance follows from it: what is done, sizes, what is given up.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// How long memory is looked at, in seconds.
    #[arg(long, default_value_t = 60.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// How long the same is done before, in seconds.
    #[arg(long, default_value_t = 60.0, value_parser = seconds)]
    pub(crate) warm_up: f64,
    /// The most that the memory of either process may grow, in MiB a minute; inf for no bound.
    #[arg(long, default_value_t = 1.0)]
    pub(crate) bound: f64,
    /// The largest tensor.
    #[arg(long, default_value = "2MiB")]
    pub(crate) largest: Size,
    /// Tasks over each transport that do one thing after another.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) workers: u32,
    /// The kind of tokio runtime on both sides.
    #[arg(long, value_enum, default_value_t = Flavor::Multi)]
    pub(crate) runtime: Flavor,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}
