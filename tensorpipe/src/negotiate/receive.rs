//! The listener's side.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::arrivals::Arriving;
use super::choose::choose;
use super::connect::stayed;
use super::establish::{Established, OpenChannel, establish};
use super::extra_connections;
use super::joining::{Joining, SAID_MAX};
use super::proving::{Answering, prove};
use super::ticket::{Ticket, Waiting, redeem};
use super::{Handshaking, identified};
use crate::ambient;
use crate::config::Limits;
use crate::context::{Inner, within_handshake};
use crate::error::{Error, Misuse, PeerFault};
use crate::keys::{JoinKind, PipeKey};
use crate::log_limit::LogLimit;
use crate::pipe::PipePermit;
use crate::process::process_id;
use crate::proto::handshake::{FirstFrame, ServerHandshake};
use crate::proto::wire::hello::{Answer, ChosenChannel, Purpose, Reject, Token};
use crate::stop;
use crate::sync::{AtomicBool, Mutex, Ordering};
use crate::transports::{Connection, Transport};

/// State that the handshakes of one listener share.
pub(crate) struct ListenerState {
    pub(super) context: Arc<Inner>,
    /// Where pipes can be upgraded to: transport, and address or the reason why there is none.
    pub(super) upgrade_addresses: Vec<(&'static str, Result<String, String>)>,
    /// Who waits for a connection with which token. Each token works once.
    pub(super) expected: Mutex<HashMap<Token, Waiting>>,
    pipes: Arriving,
    warnings: Warnings,
}

impl ListenerState {
    pub(crate) fn new(
        context: Arc<Inner>,
        upgrade_addresses: Vec<(&'static str, Result<String, String>)>,
        pipes: Arriving,
    ) -> Self {
        Self {
            context,
            upgrade_addresses,
            expected: Mutex::new(HashMap::new()),
            pipes,
            warnings: Warnings::default(),
        }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.context.limits
    }

    /// How long a new connection may stay silent.
    pub(crate) fn greeting(&self) -> Duration {
        let timeouts = &self.context.timeouts;
        timeouts.greeting.min(timeouts.handshake)
    }
}

/// Turns away a connection for which there is no room, without waiting for it.
pub(crate) fn turn_away(mut connection: Box<dyn Connection>) {
    let reject = Reject {
        transient: true,
        reason: "too many handshakes are under way; try again".to_owned(),
    };
    let bytes = ServerHandshake::reject(&reject);
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let _ = std::pin::Pin::new(&mut *connection).poll_write(&mut cx, &bytes);
}

/// The address at which a connection came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// At a URL of the listener's.
    Front,
    /// An address for upgrades of pipes that began elsewhere. No pipe begins here, since such a peer has not passed the front door.
    Side,
}

/// Handles one new connection to its end: it becomes a pipe, joins one, or is dropped. `has_greeted` becomes true once its HELLO is here,
/// and its proof if the listener asks for one.
pub(crate) async fn receive(
    listener_state: &Arc<ListenerState>,
    transport: &dyn Transport,
    door: Door,
    connection: Box<dyn Connection>,
    has_greeted: &AtomicBool,
) {
    let ends = connection.endpoints();
    let context = &listener_state.context;
    let mut conn = Handshaking::new(connection, ends.as_str());
    let (greeting, begun) = (listener_state.greeting(), ambient::now());
    match tokio::time::timeout(greeting, conn.wait_for_first_bytes()).await {
        Ok(Ok(true)) => {}
        // A probe that only checks whether somebody listens looks like this.
        Ok(Ok(false)) => {
            tracing::debug!(peer = %ends, "a connection ended before it said anything");
            return;
        }
        Ok(Err(error)) => return listener_state.warnings.failed(&ends, &error),
        Err(_) => return listener_state.warnings.silent(&ends, greeting),
    }
    let what = || {
        let hint = "whoever connected does not go on with it; raise `Timeouts::handshake` if it is only slow";
        (format!("the handshake of {ends}"), hint)
    };
    let handshake = handshake(listener_state, transport, door, conn, has_greeted);
    let left = context
        .timeouts
        .handshake
        .saturating_sub(ambient::since(begun));
    match within_handshake(left, what, handshake).await {
        Ok(Some(established)) => {
            let permit = established.permit.clone();
            match establish(context, established) {
                Ok(pipe) => listener_state.pipes.push(pipe, permit),
                Err(error) => listener_state.warnings.unopened(&ends, &error),
            }
        }
        Ok(None) => {}
        Err(error) => listener_state.warnings.failed(&ends, &error),
    }
}

/// Warnings that unproven peers can cause as often as they like, by cause.
#[derive(Default)]
struct Warnings {
    silent: LogLimit,
    late: LogLimit,
    unproven: LogLimit,
    faulty: LogLimit,
    unopened: LogLimit,
    other: LogLimit,
}

impl Warnings {
    fn silent(&self, peer: &str, after: Duration) {
        if let Some(more) = self.silent.admits() {
            tracing::warn!(
                peer,
                ?after,
                more,
                "a connection has not begun a handshake in time"
            );
        }
    }

    fn unopened(&self, peer: &str, error: &Error) {
        if let Some(more) = self.unopened.admits() {
            tracing::warn!(peer, %error, more, "a pipe could not be opened");
        }
    }

    fn failed(&self, peer: &str, error: &Error) {
        let limit = match error {
            Error::Timeout { .. } => &self.late,
            Error::Peer {
                fault: PeerFault::Unproven { .. },
                ..
            } => &self.unproven,
            Error::Peer { .. } => &self.faulty,
            _ => &self.other,
        };
        if let Some(more) = limit.admits() {
            tracing::warn!(peer, %error, more, "a handshake failed");
        }
    }
}

async fn handshake(
    listener_state: &Arc<ListenerState>,
    transport: &dyn Transport,
    door: Door,
    mut conn: Handshaking,
    has_greeted: &AtomicBool,
) -> Result<Option<Established>, Error> {
    let tokens = &listener_state.context.tokens;
    let mut handshake = ServerHandshake::new(tokens.are_required());
    let heard = match conn.read(|input| handshake.handle(input)).await {
        Err(error) => {
            if let Error::Peer { fault, .. } = &error
                && let Some(answer) = ServerHandshake::answer_to(fault, error.to_string())
            {
                let _ = conn.send(&answer).await;
            }
            return Err(error);
        }
        Ok(heard) => heard,
    };
    let (purpose, answering) = match heard {
        FirstFrame::Hello(Purpose::Join { token, proof }) => {
            stop::at(stop::JOIN_RECEIVED);
            let redeemed = redeem(
                listener_state,
                &token,
                proof.as_ref(),
                transport.name(),
                conn,
            );
            if let Err((mut conn, reason)) = redeemed {
                conn.turn_away(ServerHandshake::reject, reason).await?;
            }
            return Ok(None);
        }
        _ if door == Door::Side => {
            conn.turn_away(ServerHandshake::reject, NO_BEGINNING)
                .await?;
            return Ok(None);
        }
        FirstFrame::Unproven => {
            conn.turn_away(ServerHandshake::reject, ASKS).await?;
            let what = "a token".to_owned();
            return Err(conn.fault(PeerFault::Unproven { what }));
        }
        FirstFrame::Key(_) if !tokens.are_required() => {
            conn.turn_away(ServerHandshake::reject, HAS_NONE).await?;
            let reason = "it asks for proof of a token, and this context has none".into();
            let pipe = conn.name.clone();
            return Err(Error::Lost { pipe, reason });
        }
        FirstFrame::Key(opened) => prove(tokens, &mut conn, &opened).await?,
        FirstFrame::Hello(purpose) => (purpose, Answering::Plainly),
    };
    has_greeted.store(true, Ordering::Relaxed);
    stop::at(stop::HELLO_RECEIVED);
    let Some(permit) = listener_state.pipes.permit() else {
        let reason = format!(
            "it has {} pipes already; try again later",
            listener_state.limits().pipes
        );
        conn.send(&answering.reject(&Reject {
            transient: true,
            reason,
        }))
        .await?;
        let _ = conn.connection.shutdown().await;
        return Ok(None);
    };
    // Boxed: the futures of those who come no further are small.
    let established = Box::pin(welcome(
        listener_state,
        transport,
        conn,
        purpose,
        answering,
        permit,
    ));
    established.await.map(Some)
}

/// Sent to a peer that begins a pipe at a side door.
const NO_BEGINNING: &str =
    "no pipe begins at this address, which is for those that have begun elsewhere";

/// Sent to a peer without a token, if the listener asks for one.
const ASKS: &str =
    "it asks for a token; give this context one of that listener's, by `ContextBuilder::token`";

/// Sent to a peer with a token, if the listener asks for none.
const HAS_NONE: &str =
    "it has no token and can prove none; give its context the same one, or this context none";

/// Chooses, answers, and waits for the connections that the answer asks for.
async fn welcome(
    listener_state: &Arc<ListenerState>,
    transport: &dyn Transport,
    mut conn: Handshaking,
    purpose: Purpose,
    mut answering: Answering,
    permit: PipePermit,
) -> Result<Established, Error> {
    let Purpose::Pipe {
        name: peer_name,
        limits: peer_limits,
        brochure,
        ..
    } = purpose
    else {
        let (frame, when) = ("HELLO to join", "behind a proof");
        return Err(conn.fault(PeerFault::Unexpected { frame, when }));
    };
    let context = &listener_state.context;
    let (token, key) = answering.proved().unzip();
    let identity = identified(&conn, token.map(Arc::from));
    let of_connection = || Some(PipeKey::of_connection(&conn.connection.exporter_secret()?));
    let key = key.cloned().or_else(of_connection);
    let devices: Vec<_> = (context.channels.iter())
        .map(|channel| channel.devices())
        .collect();
    let selection = choose(listener_state, transport.name(), &brochure, &devices);
    let still = Arc::downgrade(listener_state);
    // Tickets that are not used by the end of the handshake become void.
    let mut tickets = Vec::new();
    let (issued_key, peer) = (key.as_ref(), conn.connection.peer());
    let mut issue = |kind, over: &[&str]| {
        let issued = Ticket::issue(&still, kind, over, issued_key, peer)?;
        Ok::<_, Error>(issued.map(|(ticket, joined)| {
            let token = ticket.token();
            tickets.push(ticket);
            (token, joined)
        }))
    };
    let stopped = || conn.lost("the listener has stopped");
    let upgrade = match selection.upgrade {
        None => None,
        Some((name, address)) => {
            let (token, joined) = issue(JoinKind::Upgrade, &[&name])?.ok_or_else(stopped)?;
            Some((name, address, token, joined))
        }
    };
    // The transports over which the pipe will go, or where it may stay.
    let over = upgrade.iter().map(|(name, ..)| name.as_str());
    let over: Vec<_> = over.chain([transport.name()]).collect();
    let mut channels = Vec::new();
    let mut chosen = Vec::new();
    let mut joining = Vec::new();
    for selected in selection.channels {
        let channel = &context.channels[selected.index];
        let mut tokens = Vec::new();
        for _ in 0..selected.connections {
            let (token, joined) = issue(JoinKind::Channel, &over)?.ok_or_else(stopped)?;
            tokens.push(token);
            joining.push((channels.len(), joined));
        }
        let theirs = brochure
            .channels
            .iter()
            .find(|offer| offer.name == selected.name);
        let theirs = theirs.map(|offer| offer.devices.clone());
        let (ours, theirs) = (&devices[selected.index], theirs.unwrap_or_default());
        let pair = |&(our_at, their_at): &(u8, u8)| {
            (ours[usize::from(our_at)].0, theirs[usize::from(their_at)].0)
        };
        channels.push(OpenChannel {
            channel: channel.clone(),
            connections: Vec::new(),
            pairs: selected.pairs.iter().map(pair).collect(),
            peer_devices: theirs,
        });
        chosen.push(ChosenChannel {
            name: selected.name,
            tokens,
            devices: ours.clone(),
            offered: selected.offered,
            pairs: selected.pairs,
        });
    }
    let credit = context.credit_ahead.begin(conn.connection.peer());
    let answer = Answer {
        name: context.name.to_string(),
        process: process_id()?,
        limits: context.limits.wire(credit.bytes()),
        upgrade: upgrade
            .as_ref()
            .map(|(name, address, token, _)| (name.clone(), address.clone(), *token)),
        channels: chosen,
        refusals: selection.refusals.clone(),
    };
    if let Err(reason) = answer.check_size() {
        let reason = format!("the listener's ANSWER is too long: {reason}");
        let reject = |reject: &Reject| answering.reject(reject);
        conn.turn_away(reject, &*reason).await?;
        return Err(Misuse::Other(reason).into());
    }
    conn.send(&answering.answer(&answer)).await?;
    stop::at(stop::ANSWER_SENT);
    let mut refusals = selection.refusals;
    let mut final_transport = transport.name().to_owned();
    let mut upgraded_from = None;
    if let Some((name, _, token, mut joined)) = upgrade {
        let wanted = key.as_ref().map(|key| key.stay(&token));
        let handle_stay = |input: &[u8]| ServerHandshake::handle_stay(input, wanted.as_ref());
        let stays = tokio::select! {
            biased;
            arrived = &mut joined => Err(arrived),
            stays = conn.read(handle_stay) => match stays {
                Ok(reason) => Ok(reason),
                Err(error @ Error::Peer { .. }) => return Err(error),
                // A connector that has upgraded closes this connection, which this end may see before the new one arrives. So
                // wait a little for the new one, but not longer: a connector that is gone must free its place among the
                // handshakes soon.
                Err(lost) => match tokio::time::timeout(JOINS_WITHIN, &mut joined).await {
                    Ok(arrived) => Err(arrived),
                    Err(_) => return Err(lost),
                },
            },
        };
        match stays {
            Err(arrived) => {
                let joined =
                    arrived.map_err(|_| conn.lost("the connection to upgrade to never came"))?;
                upgraded_from = Some(std::mem::replace(&mut final_transport, name));
                // Drops the first connection, then sends JOINED.
                conn = Handshaking {
                    name: conn.name,
                    ..joined.conn
                };
                conn.send(&joined.joined).await?;
            }
            Ok(reason) => {
                stayed(&mut refusals, &final_transport, &name, reason);
            }
        }
    }
    for (channel, joined) in joining {
        let joined = tokio::select! {
            biased;
            joined = joined => joined,
            // Without the first connection there is no pipe. A connector that is gone must not keep its place among the
            // handshakes.
            lost = conn.ended() => return Err(lost),
        };
        let joined = joined.map_err(|_| conn.lost("a channel's connection never came"))?;
        let connection = joined.let_join().await?;
        channels[channel].connections.push(connection);
    }
    Ok(Established {
        further: extra_connections::expects(
            listener_state,
            &final_transport,
            peer_name.as_str().into(),
            conn.connection.peer(),
            key.clone(),
        ),
        connection: conn.connection,
        leftover: conn.input,
        transport: final_transport,
        upgraded_from,
        identity,
        key,
        fallback: None,
        peer_name,
        peer_limits,
        credit,
        channels,
        refusals,
        connector: false,
        permit: Some(permit),
    })
}

/// How long after the end of a connector's first connection its second one may still arrive.
const JOINS_WITHIN: Duration = Duration::from_secs(1);

/// How long a rejected connection is drained: if it is closed with unread bytes, the system may discard the reason that was sent.
const DRAIN: Duration = Duration::from_secs(1);

impl Handshaking {
    /// Tells a connection that it is not wanted.
    pub(super) async fn turn_away(
        &mut self,
        saying: impl FnOnce(&Reject) -> Vec<u8>,
        reason: impl Into<String>,
    ) -> Result<(), Error> {
        let reject = Reject {
            transient: false,
            reason: reason.into(),
        };
        self.send(&saying(&reject)).await?;
        let _ = self.connection.shutdown().await;
        // The connector may write at once, and closes when it has read the reason.
        let mut rest = (&mut self.connection).take(SAID_MAX as u64 + 1);
        let mut sink = tokio::io::sink();
        let drained = tokio::io::copy(&mut rest, &mut sink);
        let _ = tokio::time::timeout(DRAIN, drained).await;
        Ok(())
    }

    /// The connection alone, for a channel; bytes that were read already are handed out first. A connector sends nothing on a
    /// channel's connection before the pipe is open at both ends.
    pub(super) fn into_connection(self) -> Box<dyn Connection> {
        Joining::joined(self.input, self.connection)
    }
}
