//! The last step at both ends: connections and choices become a pipe.

use std::sync::Arc;

use super::{is_proven, unproven as unproven_words};
use crate::address::{Identity, PeerAddr, SettledPeer};
use crate::ambient;
use crate::channels::{Channel, ConnectionSource, Link};
use crate::context::Inner;
use crate::device::Device;
use crate::error::{Error, Misuse};
use crate::keys::PipeKey;
use crate::pipe::{
    Core, CoreParts, Credit, LaneHandle, LaneSlot, Pipe, PipePermit, spawn_background,
};
use crate::proto::wire::hello::{FRAME_SHARE_MAX, WireLimits};
use crate::proto::{KeepAlive, PipeState};
pub(super) use crate::route::Fallback;
use crate::route::{
    Carried, ChannelChoice, ChannelRoute, Degraded, Diverted, FrameRoom, Refusal, Requirement,
    Route, Routes, Served, Table,
};
use crate::sync::{AtomicBool, Ordering, lock};
use crate::transports::{Connection, Transport};

/// A chosen channel, with its own connections.
pub(super) struct OpenChannel {
    pub(super) channel: Arc<dyn Channel>,
    pub(super) connections: Vec<Box<dyn Connection>>,
    /// (this side's device, the peer's).
    pub(super) pairs: Vec<(Device, Device)>,
    pub(super) peer_devices: Vec<(Device, Vec<u8>)>,
}

/// A finished handshake.
pub(super) struct Established {
    pub(super) connection: Box<dyn Connection>,
    pub(super) leftover: Vec<u8>,
    pub(super) transport: String,
    pub(super) upgraded_from: Option<String>,
    /// As the first connection established it.
    pub(super) identity: Option<Identity>,
    /// A secret that only the two ends of the pipe share.
    pub(super) key: Option<PipeKey>,
    /// Where the pipe stays if the connection that it was upgraded to is rejected.
    pub(super) fallback: Option<Fallback>,
    pub(super) peer_name: String,
    pub(super) peer_limits: WireLimits,
    pub(super) channels: Vec<OpenChannel>,
    pub(super) refusals: Vec<(String, String)>,
    pub(super) connector: bool,
    /// How channels get more connections later.
    pub(super) further: ConnectionSource,
    /// The credit that the peer was granted.
    pub(super) credit: Credit,
    /// The pipe's place in its listener's limit.
    pub(super) permit: Option<PipePermit>,
}

impl OpenChannel {
    fn route(&self) -> ChannelRoute {
        ChannelRoute {
            name: self.channel.name().to_owned(),
            pairs: self.pairs.clone(),
            degraded: Degraded::default(),
            carried: Carried::default(),
            diverted: Diverted::default(),
        }
    }

    /// Describes the channel for a choice over this transport; `route` says what is degraded.
    fn served(&self, route: &ChannelRoute, over: &dyn Transport) -> Served<'_> {
        let thresholds = match is_proven(&*self.channel, over) {
            true => self.channel.thresholds(&self.peer_devices),
            false => Vec::new(),
        };
        Served {
            name: self.channel.name(),
            pairs: &self.pairs,
            thresholds,
            moves_bytes: Box::new(|memory| self.channel.moves_bytes(memory)),
            degraded: route.degraded.clone(),
        }
    }
}

/// Whether the peer has authenticated but nothing protects what follows: the connection has no keys, and the kernel does not identify the
/// peer's process. Warns once.
fn is_exposed(identity: Option<&Identity>, over: &str, connection: &dyn Connection) -> bool {
    static HAS_WARNED: AtomicBool = AtomicBool::new(false);
    let has_token = identity.is_some_and(|known| known.token().is_some());
    // A loopback address may be the end of a tunnel, or may have belonged to another user before.
    let is_here = matches!(
        connection.peer(),
        PeerAddr::Process { .. } | PeerAddr::SameProcess
    );
    let is_exposed = has_token && !is_here && connection.exporter_secret().is_none();
    if is_exposed && !HAS_WARNED.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            transport = over,
            peer = %connection.endpoints(),
            "a token proves who connects, and protects nothing that follows over this transport: use tls"
        );
    }
    is_exposed
}

/// Whether an accepted pipe's peer may be anybody on the network: it comes over the network, and has proved nothing.
fn is_anybody(identity: Option<&Identity>, peer: PeerAddr) -> bool {
    let is_remote =
        matches!(peer, PeerAddr::Socket(peer) if !peer.ip().to_canonical().is_loopback());
    is_remote && identity.is_none()
}

/// Once: whoever runs the listener may not know.
fn warn_of_anybody(established: &Established) {
    static HAS_WARNED: AtomicBool = AtomicBool::new(false);
    let peer = established.connection.peer();
    if !established.connector
        && is_anybody(established.identity.as_ref(), peer)
        && !HAS_WARNED.swap(true, Ordering::Relaxed)
    {
        tracing::warn!(
            peer = %established.connection.endpoints(),
            "a peer has a pipe over the network and has proved nothing, as anybody may who reaches this port: ask for a token (`ContextBuilder::token`) or certificates (`TlsConfig::clients`)"
        );
    }
}

pub(super) fn establish(context: &Arc<Inner>, established: Established) -> Result<Pipe, Error> {
    let runtime = tokio::runtime::Handle::try_current().map_err(|_| Misuse::NoRuntime)?;
    warn_of_anybody(&established);
    let Established {
        channels,
        refusals,
        permit,
        peer_limits,
        credit,
        ..
    } = established;
    let frame = FrameRoom {
        part: u64::from(peer_limits.eager_part.min(FRAME_SHARE_MAX)),
        message: u64::from(peer_limits.eager_message.min(FRAME_SHARE_MAX)),
    };
    let channel_routes: Vec<ChannelRoute> = channels.iter().map(OpenChannel::route).collect();
    let over = |transport: &dyn Transport| {
        let served = channels.iter().zip(&channel_routes);
        let served = served.map(|(open, route)| open.served(route, transport));
        let served: Vec<_> = served.collect();
        let (own, required) = (&context.thresholds, &context.required);
        Table::new(&served, own, required, transport.name(), frame)
    };
    let unproven_over = |transport: &dyn Transport| {
        let unproven = channels.iter().map(|open| &*open.channel);
        let unproven = unproven.filter(|channel| !is_proven(*channel, transport));
        let refused = unproven.map(|channel| Refusal {
            candidate: format!("channel {}", channel.name()),
            reason: unproven_words(transport.name()).into(),
        });
        refused.collect::<Vec<_>>()
    };
    let transport = context.transport(&established.transport)?;
    let mut fallback = established.fallback;
    let stayed = match &mut fallback {
        None => None,
        Some(fallback) => {
            let first = context.transport(&fallback.transport)?;
            fallback.refused = unproven_over(&**first);
            Some((fallback.because.clone(), over(&**first)))
        }
    };
    let choice = ChannelChoice::new(over(&**transport), stayed, &context.required);
    let exposed = is_exposed(
        established.identity.as_ref(),
        &established.transport,
        &*established.connection,
    );
    let mut route = Route {
        transport: established.transport,
        address: established.connection.endpoints(),
        peer: established.connection.peer(),
        exposed,
        identity: established.identity,
        upgraded_from: established.upgraded_from,
        channels: channel_routes.clone(),
        choice: choice.clone(),
        refused: refusals
            .into_iter()
            .map(|(candidate, reason)| Refusal {
                candidate,
                reason: reason.into(),
            })
            .collect(),
    };
    route.refuse(unproven_over(&**transport));
    // The peer knows only that these channels are missing; this end knows why.
    route.refuse(context.unavailable.clone());
    route.refuse(context.required.iter().map(Requirement::refusal).collect());
    let peer = fallback.as_ref().map(|fallback| fallback.settled.clone());
    let peer = peer.unwrap_or_else(|| {
        let certain = SettledPeer::default();
        certain.settle(established.connection.peer());
        certain
    });
    let peer_name: Arc<str> = established.peer_name.into();
    let name: Arc<str> = format!("{} -> {}", context.name, peer_name).into();
    tracing::debug!(pipe = %name, transport = %route.transport, upgraded_from = ?route.upgraded_from, identity = route.identity.as_ref().map(tracing::field::display), "open");
    let keep_alive = KeepAlive::new(context.timeouts.silence, ambient::now());
    let state = PipeState::new(
        context.limits.wire(credit.bytes()),
        peer_limits,
        channels.len(),
        keep_alive,
    );
    let core = Arc::new(Core::new(CoreParts {
        name,
        peer_name,
        route: Routes::new(route, fallback),
        settled: peer.clone(),
        state,
        choice,
        allocators: context.allocators.clone(),
        budget: context.budget.clone(),
        credit,
        timeouts: context.timeouts.clone(),
        queued_writes: context.limits.queued_writes,
        runtime,
        permit,
        connection: established.connection,
        leftover: established.leftover,
    }));
    let mut lanes = Vec::with_capacity(channels.len());
    for (open, route) in channels.into_iter().zip(channel_routes) {
        let handle = LaneHandle::new(&core);
        let link = Link {
            connections: open.connections,
            further: established.further.clone(),
            handle,
            connector: established.connector,
            peer_devices: open.peer_devices,
            peer: peer.clone(),
            key: established.key.clone(),
            pool: context.pool().clone(),
            receive_budget: context.limits.receive_budget,
            degraded: route.degraded,
        };
        let lane = open.channel.open(link)?;
        lanes.push(LaneSlot {
            required: Requirement::between(&context.required, &open.pairs),
            channel: open.channel,
            pairs: open.pairs,
            lane,
            carried: route.carried,
            diverted: route.diverted,
        });
    }
    lock(&core.shared).set_lanes(lanes);
    context.add_pipe(&core);
    spawn_background(&core);
    if context.is_closed() {
        // The context was closed before it could see this pipe.
        core.start_closing(context.timeouts.linger);
    }
    Ok(Pipe::new(core))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_on_this_host_or_has_proved_something_is_not_anybody() {
        let socket = |text: &str| PeerAddr::Socket(text.parse().unwrap());
        let known = Identity::Subject("trainer".into());
        for (peer, identity, anybody) in [
            (socket("10.0.0.7:1"), None, true),
            (socket("[2001:db8::7]:1"), None, true),
            (socket("[::ffff:10.0.0.7]:1"), None, true),
            (socket("10.0.0.7:1"), Some(&known), false),
            (socket("127.0.0.1:1"), None, false),
            (socket("[::1]:1"), None, false),
            (socket("[::ffff:127.0.0.1]:1"), None, false),
            (PeerAddr::SameProcess, None, false),
            (PeerAddr::Unknown, None, false),
        ] {
            assert_eq!(is_anybody(identity, peer), anybody, "{peer} {identity:?}");
        }
    }
}
