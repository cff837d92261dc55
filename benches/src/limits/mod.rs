//! What this machine can do at this moment: the figures below which nobody comes.
//!
//! ```text
//! copy    memory to memory, one core
//! wake    there and back between two threads that sleep, each on its core
//! wire    there and back between two that spin: bare sockets, and the connection of transport `shm` (its ring)
//! ```
//! The spinning round trip through a cache line is in [`cores`](crate::cores). Every figure is a median of many tries;
//! they drift with the machine, so take them beside what they are compared with.

mod copy;
mod wake;
mod wire;

pub(crate) use copy::copy;
pub(crate) use wake::{Wake, wake};
pub(crate) use wire::{Wire, exchange};

use std::time::Duration;

use anyhow::Result;

use crate::plan::{Case, Plan, Transport};

/// The two cores that the figures are about.
pub(crate) type Cores = (usize, usize);

/// The time in microseconds, at this moment, of a bare round that moves the same bytes as one of `plan` over the same
/// medium; `leased` bytes stay where they are. `None` where there is no such thing.
///
/// # Errors
/// When the system refuses.
pub(crate) fn floor(plan: &Plan, leased: bool, cores: Cores) -> Result<Option<f64>> {
    let (wire, sleeping) = match plan.transport {
        Transport::Memory => return Ok(None),
        Transport::Shm => (Wire::Ring, Wake::Unix),
        Transport::Unix => (Wire::Unix, Wake::Unix),
        Transport::Tcp => (Wire::Tcp, Wake::Tcp),
    };
    let bytes = if leased { 0 } else { plan.len()? };
    let (there, back) = match plan.case {
        Case::Paced if bytes == 0 => return wake(sleeping, cores).map(Some),
        // Who is asleep is woken first: that time is not in it.
        Case::Echo | Case::Paced | Case::Exchange | Case::Mutate => (bytes, bytes),
        Case::Upload | Case::Keep => (bytes, 0),
        Case::Download => (0, bytes),
        // How many fit into one wake-up is the system's own merit.
        Case::Pipeline | Case::Stream => return Ok(None),
    };
    exchange(wire, cores, there, back, BRIEFLY).map(Some)
}

/// How long a figure beside a row is tried for.
const BRIEFLY: Duration = Duration::from_millis(60);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores;
    use crate::plan::tests::plan;

    #[test]
    fn a_floor_moves_the_bytes_of_the_case() -> Result<()> {
        let Ok(cores) = cores::pair() else {
            return Ok(());
        };
        for transport in [Transport::Tcp, Transport::Unix, Transport::Shm] {
            let mut plan = plan("rpc", Case::Upload, 16 << 20);
            plan.transport = transport;
            let large = floor(&plan, false, cores)?.unwrap_or_default();
            let leased = floor(&plan, true, cores)?.unwrap_or_default();
            // Nobody copies 16 MiB within 10 µs, which would be 1.6 TB/s.
            assert!(large > 10.0, "{transport:?}: {large} µs");
            assert!(leased > 0.0, "{transport:?}: {leased} µs");
            plan.case = Case::Paced;
            plan.bytes = 0;
            assert!(floor(&plan, false, cores)?.is_some_and(|micros| micros > 0.0));
            plan.case = Case::Pipeline;
            assert_eq!(floor(&plan, false, cores)?, None);
        }
        Ok(())
    }
}
