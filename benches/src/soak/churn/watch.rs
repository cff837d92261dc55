//! What is seen of both processes, once a second and at the end.

use std::collections::BTreeMap;
use std::iter::Sum;
use std::ops::AddAssign;
use std::time::Duration;

use serde::Serialize;
use tensorpipe::Context;
use tensorpipe_rpc::rendezvous::Rendezvous;

use super::{Busy, trend};
use crate::memory::Resident;

/// For every wait: the machine may be busy.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
pub(super) const LOOK: Duration = Duration::from_millis(2);

/// Bytes of a context's pool that are in use, here or by whoever borrowed them.
pub(super) fn pooled(context: &Context) -> u64 {
    let stats = context.pool().stats();
    stats.outstanding_bytes + stats.lendable.outstanding_bytes + stats.lendable.lent_bytes
}

/// Bytes that it keeps warm and nobody uses.
pub(super) fn kept(context: &Context) -> u64 {
    let stats = context.pool().stats();
    let lendable = stats.lendable.mapped_bytes;
    let used = stats.lendable.outstanding_bytes + stats.lendable.lent_bytes;
    stats.retained_bytes + lendable.saturating_sub(used)
}

/// What a rendezvous holds, and who waits there.
pub(super) fn waiting(rendezvous: &Rendezvous) -> u64 {
    let stats = rendezvous.stats();
    (stats.values + stats.blocked + stats.waiting) as u64
}

impl AddAssign for Busy {
    fn add_assign(&mut self, other: Self) {
        self.pooled += other.pooled;
        self.references += other.references;
        self.calls += other.calls;
        self.rendezvous += other.rendezvous;
    }
}

impl Sum for Busy {
    fn sum<I: Iterator<Item = Self>>(busy: I) -> Self {
        busy.fold(Self::default(), |mut sum, one| {
            sum += one;
            sum
        })
    }
}

/// One process at one moment.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Look {
    pub(super) memory: Resident,
    pub(super) descriptors: u64,
    /// Bytes that pools keep warm.
    pub(super) kept: u64,
    /// Bytes of the heap in use, where they are counted.
    pub(super) heap: Option<u64>,
    #[serde(flatten)]
    pub(super) busy: Busy,
}

impl Look {
    fn kib(&self) -> u64 {
        self.memory.anon + self.memory.shmem
    }
}

/// Both, at once.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Sample {
    /// Seconds since the start.
    pub(super) at: f64,
    pub(super) caller: Look,
    pub(super) server: Look,
}

/// What is known of one process.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Side {
    pub(crate) name: &'static str,
    /// MiB a minute by which memory at rest grew after the warm-up, by least squares; `None`: too few samples.
    pub(crate) slope: Option<f64>,
    /// The same of what is in use of the heap, where that is counted: without the holes that the allocator keeps.
    pub(crate) heap_slope: Option<f64>,
    /// That of resident memory in the bustle.
    pub(crate) busy_slope: Option<f64>,
    /// Resident memory at rest, at the end of the warm-up and at the end, in KiB.
    pub(crate) warm_kib: u64,
    pub(crate) end_kib: u64,
    /// The most in the bustle, in KiB.
    pub(crate) most_kib: u64,
    pub(crate) most_descriptors: u64,
    pub(crate) most_calls: u64,
    pub(crate) most_references: u64,
    pub(crate) most_pooled: u64,
}

/// What came out.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) case: &'static str,
    pub(crate) seed: u64,
    pub(crate) seconds: f64,
    /// Samples after the warm-up, at rest.
    pub(crate) samples: usize,
    /// What was done, and how often.
    pub(crate) acts: BTreeMap<&'static str, u64>,
    /// Tensors and payloads that each channel of the lasting connections was given by the caller: `shm + lease`.
    pub(crate) given: BTreeMap<String, u64>,
    /// Pipes of replicas that were cut.
    pub(crate) cuts: u64,
    pub(crate) bound: f64,
    pub(crate) sides: Vec<Side>,
    /// What was still held or under way when all connections were closed; nothing.
    pub(crate) left: Vec<String>,
    /// Every sample at rest, for whoever draws them.
    pub(super) rest: Vec<Sample>,
}

impl Report {
    /// What is not as it should be.
    pub(crate) fn faults(&self) -> Vec<String> {
        let grown = |side: &Side| {
            let slope = side.slope.filter(|slope| *slope > self.bound)?;
            Some(format!(
                "the {}'s memory grows by {slope:.2} MiB a minute, of {} allowed",
                side.name, self.bound
            ))
        };
        let idle = self.given.iter().filter(|(_, given)| **given == 0);
        let idle = idle.map(|(way, _)| format!("nothing was carried by {way}"));
        let left = self.left.iter().map(|left| format!("left: {left}"));
        let grown = self.sides.iter().filter_map(grown);
        grown.chain(idle).chain(left).collect()
    }
}

/// Those of one process; what comes before the end of the warm-up does not count.
pub(super) fn side(
    name: &'static str,
    warm_up: f64,
    bustle: &[Sample],
    rest: &[Sample],
    of: fn(&Sample) -> &Look,
) -> Side {
    // Minutes and MiB.
    let warm = |samples: &[Sample], kib: fn(&Look) -> Option<u64>| -> Vec<(f64, f64)> {
        let warm = samples.iter().filter(|sample| sample.at >= warm_up);
        warm.filter_map(|sample| Some((sample.at / 60.0, kib(of(sample))? as f64 / 1024.0)))
            .collect()
    };
    let resident = |look: &Look| Some(look.kib());
    let most = |what: fn(&Look) -> u64| bustle.iter().map(|sample| what(of(sample))).max();
    let at_rest = warm(rest, resident);
    let kib = |point: Option<&(f64, f64)>| point.map_or(0, |(_, mib)| (mib * 1024.0) as u64);
    Side {
        name,
        slope: trend::slope(&at_rest),
        heap_slope: trend::slope(&warm(rest, |look| Some(look.heap? >> 10))),
        busy_slope: trend::slope(&warm(bustle, resident)),
        warm_kib: kib(at_rest.first()),
        end_kib: kib(at_rest.last()),
        most_kib: most(Look::kib).unwrap_or_default(),
        most_descriptors: most(|look| look.descriptors).unwrap_or_default(),
        most_calls: most(|look| look.busy.calls).unwrap_or_default(),
        most_references: most(|look| look.busy.references).unwrap_or_default(),
        most_pooled: most(|look| look.busy.pooled).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: f64, anon: u64) -> Sample {
        let look = Look {
            memory: Resident { anon, shmem: 100 },
            descriptors: 9,
            kept: 0,
            heap: Some(1 << 20),
            busy: Busy::default(),
        };
        Sample {
            at,
            caller: look,
            server: look,
        }
    }

    /// Grows fast for 20 s, and by so many KiB a second from then on.
    fn report(grows: u64, left: &[&str]) -> Report {
        let kib = |at: u64| {
            if at < 20 {
                at << 20
            } else {
                (20 << 20) + grows * at
            }
        };
        let rest: Vec<_> = (0..60).map(|at| sample(at as f64, kib(at))).collect();
        let side = side("caller", 20.0, &rest, &rest, |sample| &sample.caller);
        Report {
            case: "churn",
            seed: 1,
            seconds: 60.0,
            samples: 40,
            acts: BTreeMap::new(),
            given: BTreeMap::from([("shm + cma".to_owned(), 1)]),
            cuts: 0,
            bound: 1.0,
            sides: vec![side],
            left: left.iter().map(|left| (*left).to_owned()).collect(),
            rest,
        }
    }

    #[test]
    fn what_is_in_use_has_a_slope_of_its_own() {
        let side = &report(16, &[]).sides[0];
        assert_eq!(side.heap_slope, Some(0.0));
        assert!(side.slope.is_some_and(|slope| slope > 0.9));
    }

    #[test]
    fn what_grows_after_the_warm_up_is_a_fault_and_so_is_what_is_left() {
        assert_eq!(report(0, &[]).faults(), [""; 0]);
        // 16 KiB a second are 0.94 MiB a minute.
        assert_eq!(report(16, &[]).faults(), [""; 0]);
        let faults = report(18, &["7 references"]).faults();
        assert!(
            faults[0].contains("grows by 1.05 MiB a minute"),
            "{faults:?}"
        );
        assert_eq!(faults[1..], ["left: 7 references"]);
        let mut idle = report(0, &[]);
        idle.given.insert("tcp + cma".to_owned(), 0);
        assert_eq!(idle.faults(), ["nothing was carried by tcp + cma"]);
    }
}
