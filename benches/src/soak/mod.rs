//! Two processes that talk about everything at once, one of which is killed again and again.
//!
//! ```text
//! survivor (this process)                               peer (a child, one for each kill)
//!   listens once on every way        <-- pipes -->        listens, too
//!   both ends of every pipe write messages of random sizes, and check every byte of what they read
//!                                    ... SIGKILL ...
//!   every wait ends, with an error that says so; then nothing of the peer is left here
//! ```
//! A way is a transport and a channel; a few of them are within the survivor, and are closed or dropped while the others
//! are cut off. What must be as before after each kill is in [`residue`].

mod book;
pub(crate) mod churn;
mod dice;
mod parcel;
mod peer;
mod residue;
mod survivor;
mod talk;
mod ways;

pub(crate) use book::{Carried, Report};
pub(crate) use peer::play;
pub(crate) use survivor::run;

use serde::{Deserialize, Serialize};

use crate::plan::Flavor;

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) struct Orders {
    pub(crate) seed: u64,
    pub(crate) kills: u32,
    /// The largest tensor, in bytes.
    pub(crate) largest: u64,
    pub(crate) runtime: Flavor,
}

/// What a peer is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct PeerOrders {
    seed: u64,
    largest: u64,
    runtime: Flavor,
    /// Where the survivor listens: the way's name and the address.
    survivor: Vec<(String, String)>,
}
