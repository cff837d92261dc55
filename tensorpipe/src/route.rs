//! The outcome of a negotiation, in words.

mod carried;
mod choice;
mod degraded;
mod diverted;
mod requirement;
mod threshold;

pub use carried::Carried;
pub use choice::{Band, Carrier, ChannelChoice};
pub(crate) use choice::{FrameRoom, PartRoute, Served, Table};
pub use degraded::Degraded;
pub use diverted::{Diversion, Diverted};
pub(crate) use requirement::Requirement;
pub use threshold::{Pays, Threshold};

use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::address::{Identity, PeerAddr, SettledPeer};
use crate::device::Device;

/// Which transport and channels a pipe uses, and why not the others.
///
/// `lease` and `cma` also serve a pipe over `tcp` whose ends are on one machine. A context that shall behave there as between two machines
/// gets only [`TcpTransport`](crate::transports::TcpTransport) and [`BasicChannel`](crate::channels::BasicChannel).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Route {
    /// The transport that carries the pipe.
    pub transport: String,
    /// Its two ends, as the transport names them.
    pub address: String,
    /// The other end of that transport, as the operating system reports it. A pipe that is upgraded may be turned away there: see
    /// [`Peer::addr`](crate::Peer::addr) for what is certain.
    pub peer: PeerAddr,
    /// Who the peer has proved to be: by a [token](crate::ContextBuilder::token), or to the transport that the pipe began on.
    pub identity: Option<Identity>,
    /// The peer has proved a token over a connection that has no keys, and whose ends the kernel does not identify. Nothing protects what
    /// follows: an attacker who can change it can speak for the peer. So it is with `tcp` also within a machine, where a tunnel or another
    /// user may be between.
    pub exposed: bool,
    /// The transport that the pipe began on, if it was upgraded.
    pub upgraded_from: Option<String>,
    /// The channels that may carry tensors, most preferred first.
    pub channels: Vec<ChannelRoute>,
    /// Which of them carries what.
    pub choice: ChannelChoice,
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
    /// Problems that were found since: why tensors go another way all the same.
    pub degraded: Degraded,
    /// What it was given to carry from this side.
    pub carried: Carried,
    /// What of that went over other channels all the same, and why.
    pub diverted: Diverted,
}

/// A candidate that was not chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// `transport NAME` or `channel NAME`.
    pub candidate: String,
    /// Why not.
    pub reason: Arc<str>,
}

/// A pipe's route. It changes once at most: if the listener rejects a connection that was used before it had joined.
#[derive(Debug)]
pub(crate) struct Routes {
    chosen: Arc<Route>,
    fallback: Option<Fallback>,
    after: OnceLock<Arc<Route>>,
}

/// Where a pipe stays if it cannot upgrade.
#[derive(Debug)]
pub(crate) struct Fallback {
    /// Why it stayed, once it did.
    pub(crate) because: Arc<OnceLock<String>>,
    pub(crate) transport: String,
    pub(crate) address: String,
    pub(crate) peer: PeerAddr,
    /// The peer's address, certain once the pipe has upgraded or stayed.
    pub(crate) settled: SettledPeer,
    /// Channels that are not used there.
    pub(crate) refused: Vec<Refusal>,
}

impl Refusal {
    /// Whether it is about the channel of this name.
    pub(crate) fn is_of(&self, channel: &str) -> bool {
        self.candidate.strip_prefix("channel ") == Some(channel)
    }

    /// Whether both are about channels, with the same reason.
    fn is_like(&self, other: &Self) -> bool {
        let is_channel = |one: &Self| one.candidate.starts_with("channel ");
        is_channel(self) && is_channel(other) && self.reason == other.reason
    }
}

impl Route {
    /// Refuses these candidates, whatever the route said of them before.
    pub(crate) fn refuse(&mut self, refused: Vec<Refusal>) {
        let is_of = |name: &str| refused.iter().any(|refusal| refusal.is_of(name));
        self.channels.retain(|channel| !is_of(&channel.name));
        let is_again = |candidate: &str| refused.iter().any(|new| new.candidate == candidate);
        self.refused.retain(|before| !is_again(&before.candidate));
        self.refused.extend(refused);
    }
}

impl Routes {
    pub(crate) fn new(chosen: Route, fallback: Option<Fallback>) -> Self {
        Self {
            chosen: Arc::new(chosen),
            fallback,
            after: OnceLock::new(),
        }
    }

    /// The route as it is now.
    pub(crate) fn now(&self) -> &Arc<Route> {
        let Some(fallback) = &self.fallback else {
            return &self.chosen;
        };
        let Some(reason) = fallback.because.get() else {
            return &self.chosen;
        };
        self.after.get_or_init(|| {
            let mut route = Route::clone(&self.chosen);
            let refused = format!("transport {}", route.transport);
            let stayed = format!("transport {}", fallback.transport);
            route.refused.retain(|refusal| refusal.candidate != stayed);
            route.refused.insert(
                0,
                Refusal {
                    candidate: refused,
                    reason: reason.as_str().into(),
                },
            );
            route.transport = fallback.transport.clone();
            route.address = fallback.address.clone();
            route.peer = fallback.peer;
            route.upgraded_from = None;
            route.refuse(fallback.refused.clone());
            Arc::new(route)
        })
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "transport {} ({})", self.transport, self.address)?;
        if let Some(from) = &self.upgraded_from {
            write!(f, ", upgraded from {from}")?;
        }
        match &self.identity {
            Some(identity) => write!(f, "\n  peer {identity}")?,
            // With a token or trusted roots, there is no pipe without their proof.
            None => write!(
                f,
                "\n  peer {}; no token or certificate is required",
                self.peer
            )?,
        }
        if self.exposed {
            f.write_str(" when it connected; tls would protect what follows")?;
        }
        for channel in &self.channels {
            write!(f, "\n  channel {}:", channel.name)?;
            for (i, (ours, theirs)) in channel.pairs.iter().enumerate() {
                write!(f, "{} {ours} <-> {theirs}", if i == 0 { "" } else { "," })?;
            }
            if let Some(reason) = channel.degraded.sending() {
                write!(f, "; sends nothing: {reason}")?;
            }
            if let Some(reason) = channel.degraded.receiving() {
                write!(f, "; receives nothing: {reason}")?;
            }
            for diversion in channel.diverted.all() {
                write!(f, "; {diversion}")?;
            }
        }
        for line in self.choice.to_string().lines() {
            write!(f, "\n  {line}")?;
        }
        for alike in self.refused.chunk_by(Refusal::is_like) {
            for (i, Refusal { candidate, .. }) in alike.iter().enumerate() {
                match candidate.strip_prefix("channel ").filter(|_| i > 0) {
                    Some(name) => write!(f, ", {name}")?,
                    None => write!(f, "\n  not {candidate}")?,
                }
            }
            write!(f, ": {}", alike[0].reason)?;
        }
        Ok(())
    }
}
