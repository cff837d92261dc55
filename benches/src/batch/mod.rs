//! What gathering calls is worth: many clients of a method whose runs cost the same whatever they carry, as on a GPU that a
//! small batch does not fill. One device runs one batch at a time; the same method, without the attribute, runs one call.
//!
//! The cost is slept, not computed: a core that a model would leave alone is not taken from clients and server.

mod load;
mod model;

pub(crate) use load::Load;
pub(crate) use model::serve;

use serde::{Deserialize, Serialize};

use crate::plan::{Flavor, Transport};

/// What the second process is told.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Orders {
    pub(crate) transport: Transport,
    /// Of a run, in microseconds.
    pub(crate) cost_us: u64,
    pub(crate) runtime: Flavor,
}

/// What so many clients got done.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct BatchRow {
    pub(crate) case: &'static str,
    /// `batched` or `single`.
    pub(crate) method: &'static str,
    pub(crate) transport: &'static str,
    pub(crate) clients: u32,
    pub(crate) cost_us: u64,
    pub(crate) seconds: f64,
    pub(crate) calls: u64,
    pub(crate) calls_per_s: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Times that the model ran.
    pub(crate) runs: u64,
    /// Calls of a run.
    pub(crate) mean_batch: f64,
    /// Calls a second by those of `single`: above 1 is more.
    pub(crate) ratio: Option<f64>,
}
