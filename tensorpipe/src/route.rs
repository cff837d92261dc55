//! The outcome of a negotiation, in words.

use std::fmt;

use crate::device::Device;

/// Which transport and channels a pipe uses, and why not the others.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Route {
    /// The transport that carries the pipe.
    pub transport: String,
    /// Its two ends, as the transport names them.
    pub address: String,
    /// The transport that the pipe began on, if it was moved.
    pub moved_from: Option<String>,
    /// The channels that may carry tensors, most preferred first.
    pub channels: Vec<ChannelRoute>,
    /// Every other candidate.
    pub refused: Vec<Refusal>,
}

/// A channel in use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelRoute {
    /// Its name.
    pub name: String,
    /// The device pairs that it serves: this side's, the peer's.
    pub pairs: Vec<(Device, Device)>,
}

/// A candidate that was not chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// `transport NAME` or `channel NAME`.
    pub candidate: String,
    /// Why not.
    pub reason: String,
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "transport {} ({})", self.transport, self.address)?;
        if let Some(from) = &self.moved_from {
            write!(f, ", moved there from {from}")?;
        }
        for channel in &self.channels {
            write!(f, "\n  channel {}:", channel.name)?;
            for (i, (ours, theirs)) in channel.pairs.iter().enumerate() {
                write!(f, "{} {ours} <-> {theirs}", if i == 0 { "" } else { "," })?;
            }
        }
        for refusal in &self.refused {
            write!(f, "\n  not {}: {}", refusal.candidate, refusal.reason)?;
        }
        Ok(())
    }
}
