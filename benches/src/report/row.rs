//! Rows as programs read them. The names of the fields and their order are fixed.

use serde::Serialize;

use crate::measure::Samples;
use crate::plan::{Begin, Plan};
use crate::system::Route;

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) system: String,
    pub(crate) case: &'static str,
    pub(crate) transport: String,
    /// `none` where the bytes ride on the stream itself.
    pub(crate) channel: String,
    pub(crate) bytes: u64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Bytes of one direction by the median, in 10^9 bytes a second.
    pub(crate) gbps: f64,
    /// Calls a second of the timed part.
    pub(crate) per_s: f64,
    /// Number of calls measured.
    pub(crate) n: u64,
    /// Where the sender's tensor lay; peers always use their own buffer, `heap`.
    pub(crate) alloc: &'static str,
    /// The system as it was asked for, which may say more than `system`: `rpc@shm`.
    pub(crate) name: String,
    /// The spinning round trip between the two cores just before.
    pub(crate) cores_us: Option<f64>,
    /// Rounds began with both ends awake, whatever writing the tensor had done to them.
    pub(crate) warm: bool,
    /// The median when whoever receives a tensor reads all of it, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_sum_us: Option<f64>,
    /// What a bare round took that moves the same bytes over the same medium, both ends spinning, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limit_us: Option<f64>,
    /// On which pages the client's pool lies, where tensors are in pools: `set aside` (hugetlb), `huge`, `small`, `ordinary` (which is
    /// not lent).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pages: Option<String>,
}

impl Row {
    pub(crate) fn new(plan: &Plan, samples: &Samples, route: Route) -> Self {
        let p50_us = samples.micros(0.5);
        Self {
            system: plan.system.clone(),
            case: plan.case.name(),
            transport: route.transport,
            channel: route.channel,
            bytes: plan.bytes,
            p50_us,
            p99_us: samples.micros(0.99),
            gbps: gbps(plan.bytes, p50_us),
            per_s: samples.per_second(),
            n: samples.calls(),
            alloc: plan.alloc.name(),
            name: plan.system.clone(),
            cores_us: None,
            warm: matches!(plan.begin(), Begin::Awake | Begin::Hot),
            p50_sum_us: None,
            limit_us: None,
            pages: route.pages,
        }
    }
}

/// Several measurements of one system, which took turns with those of the others.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Comparison {
    /// Medians over the runs; `n` is the sum.
    #[serde(flatten)]
    pub(crate) row: Row,
    pub(crate) runs: usize,
    /// The fastest and the slowest run's median.
    pub(crate) p50_best_us: f64,
    pub(crate) p50_worst_us: f64,
    /// The system that `ratio` refers to, by its `name`.
    pub(crate) against: Option<String>,
    /// Our median of medians by that system's: below 1 is faster than it.
    pub(crate) ratio: Option<f64>,
}

/// The processor time of an idle server.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct IdleRow {
    pub(crate) system: String,
    pub(crate) case: &'static str,
    pub(crate) transport: String,
    pub(crate) channel: String,
    pub(crate) connections: u32,
    pub(crate) seconds: f64,
    /// Of one core.
    pub(crate) cpu_percent: f64,
    /// Private memory of the server for each connection, after some traffic on it.
    pub(crate) anon_kib: f64,
    /// Shared memory mapped and touched by the server for each connection, which its peer has mapped, too.
    pub(crate) shmem_kib: f64,
    /// The system as it was asked for.
    pub(crate) name: String,
}

/// What the machine can do.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LimitRow {
    pub(crate) limit: &'static str,
    pub(crate) over: &'static str,
    pub(crate) bytes: Option<u64>,
    pub(crate) us: f64,
    /// Of `bytes`.
    pub(crate) gbps: Option<f64>,
    /// The spinning round trip between the two cores just before.
    pub(crate) cores_us: Option<f64>,
    /// The same in a word: `near` or `far`.
    pub(crate) cores: Option<&'static str>,
}

/// 10^9 bytes a second.
pub(crate) fn gbps(bytes: u64, micros: f64) -> f64 {
    if micros > 0.0 {
        bytes as f64 / micros / 1e3
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use anyhow::Result;
    use serde_json::Value;

    use super::*;
    use crate::plan::Case;
    use crate::plan::tests::plan;

    #[test]
    fn a_row_is_one_line_with_the_agreed_fields_in_order() -> Result<()> {
        let mut samples = Samples::new();
        samples.record(Duration::from_micros(100), 1);
        let row = Row::new(
            &plan("tokio", Case::Upload, 1 << 20),
            &samples,
            Route::plain("tcp"),
        );
        let line = serde_json::to_string(&row)?;
        assert!(!line.contains('\n'));
        let fields = [
            "system",
            "case",
            "transport",
            "channel",
            "bytes",
            "p50_us",
            "p99_us",
            "gbps",
            "per_s",
            "n",
            "alloc",
            "name",
            "cores_us",
            "warm",
        ];
        let mut from = 0;
        for field in fields {
            let at = line[from..].find(&format!("\"{field}\":"));
            from += at.unwrap_or_else(|| panic!("{field} is missing or out of order in {line}"));
        }
        let value: Value = serde_json::from_str(&line)?;
        assert_eq!(
            value.as_object().map(|object| object.len()),
            Some(fields.len())
        );
        assert_eq!(value["case"], "upload");
        assert_eq!(value["bytes"], 1 << 20);
        assert_eq!(value["n"], 1);
        // 1 MiB in 100 µs.
        let gbps = value["gbps"].as_f64().unwrap_or_default();
        assert!((gbps - 10.48).abs() < 0.05, "{gbps}");
        Ok(())
    }

    #[test]
    fn nothing_is_divided_by_zero() {
        assert_eq!(gbps(0, 0.0), 0.0);
        assert_eq!(gbps(1 << 20, 0.0), 0.0);
    }
}
