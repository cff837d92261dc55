//! Two processes that live, and do all that calls can do at once, while it is looked whether their memory grows.
//!
//! ```text
//! caller (this process)                                    server (a child)
//!   workers, over shm and over tcp       -- calls -->        Everything
//!     one act after another ([`acts`])   <-- calls back --   the same service is served here, too
//!   twice a second                       -- state? -->       Control, on a server of its own
//!     a sample of the bustle; then a rest: the acts under way end, no new ones begin, and nothing may be held or under
//!     way at either end; a sample of the rest; on it goes
//! ```
//! Memory at rest does not depend on what happens to be under way, so a line through it ([`trend`]) tells a leak of kilobytes a
//! second from chance. Two things that are bounded, and by chance, are kept out of it: what pools keep warm, which they give
//! back at each rest, and holes in the allocator's arenas, which are kept small ([`allocator`]). What must be as before once all connections are closed is in [`residue`](super::residue).

mod acts;
mod allocator;
mod caller;
mod parcel;
mod peer;
mod road;
mod service;
mod site;
mod trend;
mod watch;

pub(crate) use allocator::tune;
pub(crate) use caller::run;
pub(crate) use peer::play;
pub(crate) use watch::Report;

use serde::{Deserialize, Serialize};

use super::residue::Holdings;
use crate::plan::Flavor;

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) struct Orders {
    pub(crate) seed: u64,
    /// How long all is done before memory is looked at.
    pub(crate) warm_up: f64,
    pub(crate) seconds: f64,
    /// The most that either process may grow, in MiB a minute.
    pub(crate) bound: f64,
    /// The largest tensor, in bytes.
    pub(crate) largest: u64,
    /// Tasks over each road.
    pub(crate) workers: u32,
    pub(crate) runtime: Flavor,
}

/// What the server's process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct PeerOrders {
    largest: u64,
    runtime: Flavor,
    /// Where the caller serves its rendezvous, one for each road.
    callers: Vec<String>,
}

/// Where the server's process serves.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Addresses {
    control: String,
    roads: Vec<RoadAddresses>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct RoadAddresses {
    main: String,
    replicas: Vec<String>,
}

/// What the server's process holds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct State {
    /// What is under way or held for a caller; nothing at rest.
    busy: Busy,
    /// Descriptors and mappings.
    held: Holdings,
    descriptors: u64,
    /// Bytes that pools keep warm.
    kept: u64,
    /// Bytes of the heap in use, where they are counted.
    heap: Option<u64>,
}

/// What is under way or held, of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Busy {
    /// Bytes of pools that somebody holds, also those that another process has not given back.
    pooled: u64,
    references: u64,
    calls: u64,
    /// Values that a rendezvous keeps, and whoever waits at one.
    rendezvous: u64,
}

impl Busy {
    fn words(self, whose: &str) -> Vec<String> {
        let counts = [
            (self.pooled, "bytes of pools"),
            (self.references, "references"),
            (self.calls, "calls under way"),
            (self.rendezvous, "values and waits at a rendezvous"),
        ];
        let left = counts.into_iter().filter(|(count, _)| *count > 0);
        left.map(|(count, what)| format!("{count} {what} of the {whose}"))
            .collect()
    }
}

/// The names at a rendezvous.
const CALLER: &str = "caller";
const SERVER: &str = "server";

/// Replicas of each road.
const REPLICAS: usize = 2;
