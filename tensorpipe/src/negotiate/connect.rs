//! The connector's side.

use std::sync::{Arc, OnceLock};

use tokio::task::JoinSet;

use super::establish::{Established, Fallback, OpenChannel, establish};
use super::extra_connections::{self, join};
use super::joining::{Joining, OriginalConnection, not_let_in};
use super::{Handshaking, brochure, identified, reaches};
use crate::address::{SettledPeer, Url};
use crate::ambient;
use crate::config::Timeouts;
use crate::context::{Inner, within_handshake};
use crate::device::DeviceOffer;
use crate::error::{Error, Misuse, PeerFault};
use crate::keys::{Join, JoinKind, PipeKey, Secret};
use crate::pipe::Pipe;
use crate::process::{process_id, random_nonce};
use crate::proto::handshake::{ClientHandshake, ExpectChallenge, Proven, Reply};
use crate::proto::wire::hello::{
    Answer, Brochure, CHANNEL_DEVICES_MAX, Purpose, Reject, Token, put_stay,
};
use crate::stop;
use crate::sync::{AtomicBool, Ordering};
use crate::transports::{Connection, Transport};

const NO_CONNECTION: &str = "nothing answers there: see whether the address is right and a firewall lets connections through; raise `Timeouts::handshake` if it is only far";

/// Without sessions, the system accepts a connection for a listener whose process hangs or may not accept.
const NO_ANSWER: &str = "somebody listens there but does not answer: its log says why if it cannot accept; raise `Timeouts::handshake` if it is only slow";

/// With sessions, connecting ends only when the listener answers.
const NO_SESSION: &str = "nothing answers there, or somebody listens and does not go on: see whether the address is right and a firewall lets connections through, and what the listener's log says; raise `Timeouts::handshake` if it is only far or slow";

/// One attempt.
pub(crate) async fn connect(
    context: &Arc<Inner>,
    transport: &Arc<dyn Transport>,
    url: &Url,
) -> Result<Pipe, Error> {
    let is_connected = AtomicBool::new(false);
    let what = || {
        let hint = match is_connected.load(Ordering::Relaxed) {
            true => NO_ANSWER,
            false if transport.has_sessions() => NO_SESSION,
            false => NO_CONNECTION,
        };
        (format!("the handshake with {url}"), hint)
    };
    let handshake = handshake(context, transport, url, &is_connected);
    let established = within_handshake(context.timeouts.handshake, what, handshake).await?;
    establish(context, established)
}

async fn handshake(
    context: &Arc<Inner>,
    transport: &Arc<dyn Transport>,
    url: &Url,
    is_connected: &AtomicBool,
) -> Result<Established, Error> {
    let begun = ambient::now();
    let connection = transport.connect(url.address()).await?;
    is_connected.store(true, Ordering::Relaxed);
    stop::at(stop::CONNECTED);
    let credit = context.credit_ahead.begin(connection.peer());
    let mut conn = Handshaking::new(connection, url.to_string());
    let offered = brochure(context);
    let purpose = Purpose::Pipe {
        name: context.name.to_string(),
        process: process_id()?,
        limits: context.limits.wire(credit.bytes()),
        brochure: offered.clone(),
    };
    purpose
        .check_size()
        .map_err(|reason| Misuse::Other(format!("this context's HELLO is too long: {reason}")))?;
    let secret = context.tokens.first();
    let (answer, key) = match secret {
        None => (greet(&mut conn, &purpose).await?, None),
        Some(secret) => {
            let (answer, key) = prove(&mut conn, secret, &purpose).await?;
            (answer, Some(key))
        }
    };
    let key = key.or_else(|| Some(PipeKey::of_connection(&conn.connection.exporter_secret()?)));
    stop::at(stop::ANSWER_RECEIVED);
    let better = answer.upgrade.as_ref();
    let better = better.map(|(name, ..)| upgrade(context, &**transport, name));
    let better = better.transpose().map_err(|fault| conn.fault(fault))?;
    let over = better.unwrap_or(transport);
    let mut channels =
        chosen_channels(context, &offered, &answer, &**over).map_err(|fault| conn.fault(fault))?;
    let mut refusals = answer.refusals.clone();
    let first = (transport.clone(), url.address().to_owned());
    let mut route = first.clone();
    let mut upgraded_from = None;
    let identity = identified(&conn, secret.map(|secret| secret.name().clone()));
    let mut fallback = None;
    // Set when a pipe that was to be upgraded stays on its first connection.
    let because = Arc::new(OnceLock::new());
    let settled = SettledPeer::default();
    if let Some(((name, address, token), better)) = answer.upgrade.as_ref().zip(better) {
        let ask = JoinRequest {
            token: *token,
            kind: JoinKind::Upgrade,
            key: key.clone(),
        };
        // The listener must hear before either end's time is up that the pipe stays. Its bound is not known: most likely it is the default.
        let whole = context
            .timeouts
            .handshake
            .min(Timeouts::default().handshake);
        let within = (whole / 4 * 3).saturating_sub(ambient::since(begun));
        // Without a key, the new connection is used at once. With a key, the listener must first prove that it has the key, too.
        let asked = match &key {
            None => {
                let asked = ask_to_join(&**better, address, &ask).await;
                asked.map(|(conn, _)| (conn.connection, true))
            }
            Some(_) => {
                // A listener without descriptors lets nobody join: whoever waited for it would keep one on the first connection.
                let joined = join(&**better, address, conn.name.clone(), &ask);
                let joined = tokio::time::timeout(within, joined).await;
                let joined = joined.unwrap_or_else(|_| Err(not_let_in(within)));
                joined.map(|connection| (connection, false))
            }
        };
        match asked {
            Ok((connection, false)) => {
                upgraded_from = Some(transport.name().to_owned());
                route = (better.clone(), address.clone());
                // The listener has closed the first connection.
                conn = Handshaking::new(connection, conn.name);
            }
            Ok((connection, true)) => {
                // The pipe returns to the first connection if the listener rejects the new one.
                upgraded_from = Some(transport.name().to_owned());
                route = (better.clone(), address.clone());
                fallback = Some(Fallback {
                    because: because.clone(),
                    transport: transport.name().to_owned(),
                    address: conn.connection.endpoints(),
                    refused: Vec::new(),
                    peer: conn.connection.peer(),
                    settled: settled.clone(),
                });
                let Handshaking {
                    connection: first,
                    input,
                    name,
                } = conn;
                let first = OriginalConnection::new(
                    Joining::joined(input, first),
                    because.clone(),
                    settled,
                    within,
                );
                let joining = Joining::new(connection, name.clone(), Some(first));
                conn = Handshaking::new(Box::new(joining), name);
            }
            Err(error) => {
                tracing::warn!(%url, transport = %name, %error, "could not upgrade, staying");
                let mut stay = Vec::new();
                let proof = key.as_ref().map(|key| key.stay(token));
                put_stay(&mut stay, &error.to_string(), proof.as_ref());
                conn.send(&stay).await?;
                stayed(&mut refusals, transport.name(), name, error.to_string());
            }
        }
    }
    join_channels(&mut channels, &answer, &route.0, &route.1, key.as_ref()).await?;
    let transport = route.0.name().to_owned();
    let at = move || match because.get() {
        None => route.clone(),
        Some(_) => first.clone(),
    };
    let peer = answer.name.as_str().into();
    let further = extra_connections::joins(at, peer, key.clone(), context.timeouts.handshake);
    Ok(Established {
        further,
        connection: conn.connection,
        leftover: conn.input,
        transport,
        upgraded_from,
        identity,
        key,
        fallback,
        peer_name: answer.name,
        peer_limits: answer.limits,
        credit,
        channels,
        refusals,
        connector: true,
        permit: None,
    })
}

/// Sends the purpose, and receives the listener's choice.
async fn greet(conn: &mut Handshaking, purpose: &Purpose) -> Result<Answer, Error> {
    conn.send(&ClientHandshake::hello(purpose)).await?;
    stop::at(stop::HELLO_SENT);
    let mut handshake = ClientHandshake::default();
    let reply = conn.read(|input| handshake.handle(input)).await?;
    answer_of(conn, reply)
}

/// As [`greet`], after both ends have proved that they have this secret. Also returns the pipe's key.
async fn prove(
    conn: &mut Handshaking,
    secret: &Secret,
    purpose: &Purpose,
) -> Result<(Answer, PipeKey), Error> {
    let binding = conn.connection.exporter_secret();
    let begun = ExpectChallenge::begin(secret, &random_nonce()?, binding.as_ref());
    let (mut challenge, first) = begun;
    conn.send(&first).await?;
    let mut handshake = match conn.read(|input| challenge.handle(input)).await? {
        Proven::Listener(proven) => proven,
        Proven::Reject(reject) => return Err(rejected(conn, reject)),
    };
    conn.send(&handshake.hello(purpose)).await?;
    stop::at(stop::HELLO_SENT);
    let reply = conn.read(|input| handshake.handle(input)).await?;
    Ok((answer_of(conn, reply)?, handshake.key().clone()))
}

fn answer_of(conn: &Handshaking, reply: Reply) -> Result<Answer, Error> {
    match reply {
        Reply::Answer(answer) => Ok(*answer),
        Reply::Joined => {
            let (frame, when) = ("JOINED", "instead of an answer");
            Err(conn.fault(PeerFault::Unexpected { frame, when }))
        }
        Reply::Reject(reject) => Err(rejected(conn, reject)),
    }
}

fn rejected(conn: &Handshaking, reject: Reject) -> Error {
    Error::Rejected {
        peer: conn.name.clone(),
        reason: reject.reason.into(),
        transient: reject.transient,
    }
}

/// The transport and address to upgrade the pipe to, if this context would upgrade pipes to that transport as well. A built-in transport
/// never leads out of the machine this way, so a listener cannot make its peers connect to other hosts.
fn upgrade<'a>(
    context: &'a Inner,
    from: &dyn Transport,
    name: &str,
) -> Result<&'a Arc<dyn Transport>, PeerFault> {
    let better = context.transport(name).map_err(|_| PeerFault::NotOffered {
        what: format!("transport {name}"),
    })?;
    if name == from.name() || better.upgrade_address().is_none() {
        return Err(PeerFault::Malformed {
            frame: "ANSWER",
            what: "an upgrade to where no pipe is upgraded to",
        });
    }
    Ok(better)
}

/// The refusals of a pipe that stayed on `first`, because it could not be upgraded to `better`.
pub(super) fn stayed(
    refusals: &mut Vec<(String, String)>,
    first: &str,
    better: &str,
    reason: String,
) {
    refusals.retain(|(candidate, _)| *candidate != format!("transport {first}"));
    refusals.insert(0, (format!("transport {better}"), reason));
}

/// The answer in terms of this context's channels, which were `offered`, for a pipe `over` a transport. If the answer names a channel that
/// was not offered or does not reach, the listener is at fault.
fn chosen_channels(
    context: &Inner,
    offered: &Brochure,
    answer: &Answer,
    over: &dyn Transport,
) -> Result<Vec<OpenChannel>, PeerFault> {
    let mut channels = Vec::new();
    for chosen in &answer.channels {
        let what = format!("channel {}", chosen.name);
        let not_offered = || PeerFault::NotOffered { what: what.clone() };
        let (channel, offer) = context
            .channels
            .iter()
            .zip(&offered.channels)
            .find(|(channel, _)| channel.name() == chosen.name)
            .ok_or_else(not_offered)?;
        // This end, not the peer, bounds the number of connections made here and the lanes that they go to.
        let malformed = |what| PeerFault::Malformed {
            frame: "ANSWER",
            what,
        };
        if chosen.tokens.len() != usize::from(channel.connections()) {
            return Err(malformed(
                "another number of tokens than the channel has connections",
            ));
        }
        if channels
            .iter()
            .any(|open: &OpenChannel| open.channel.name() == chosen.name)
        {
            return Err(malformed("a channel twice"));
        }
        let ours = &offer.devices[..offer.devices.len().min(CHANNEL_DEVICES_MAX)];
        if usize::from(chosen.offered) != ours.len() {
            return Err(not_offered());
        }
        let mut pairs = Vec::new();
        for (their_at, our_at) in &chosen.pairs {
            let ours = &ours[usize::from(*our_at)];
            let theirs = &chosen.devices[usize::from(*their_at)];
            let reach = reaches(
                &**channel,
                over,
                DeviceOffer::new(ours.0, &ours.1),
                DeviceOffer::new(theirs.0, &theirs.1),
            );
            reach.map_err(|reason| PeerFault::OutOfReach {
                channel: chosen.name.clone(),
                reason,
            })?;
            pairs.push((ours.0, theirs.0));
        }
        channels.push(OpenChannel {
            channel: channel.clone(),
            connections: Vec::new(),
            pairs,
            peer_devices: chosen.devices.clone(),
        });
    }
    Ok(channels)
}

/// Opens the channels' own connections.
async fn join_channels(
    channels: &mut [OpenChannel],
    answer: &Answer,
    transport: &Arc<dyn Transport>,
    address: &str,
    key: Option<&PipeKey>,
) -> Result<(), Error> {
    let mut joins = JoinSet::new();
    for (i, chosen) in answer.channels.iter().enumerate() {
        for (j, token) in chosen.tokens.iter().copied().enumerate() {
            let (transport, address) = (transport.clone(), address.to_owned());
            let peer: Arc<str> = answer.name.as_str().into();
            let ask = JoinRequest {
                token,
                kind: JoinKind::Channel,
                key: key.cloned(),
            };
            joins.spawn(async move {
                if ask.key.is_some() {
                    let connection = join(&*transport, &address, peer, &ask).await?;
                    return Ok((i, j, connection));
                }
                let (conn, _) = ask_to_join(&*transport, &address, &ask).await?;
                let joining = Joining::new(conn.connection, peer, None);
                Ok((i, j, Box::new(joining) as Box<dyn Connection>))
            });
        }
    }
    let mut joined: Vec<(usize, usize, Box<dyn Connection>)> = Vec::new();
    while let Some(result) = joins.join_next().await {
        let join: Result<_, Error> = result.map_err(|error| Error::Lost {
            pipe: "handshake".into(),
            reason: error.to_string().into(),
        })?;
        joined.push(join?);
    }
    joined.sort_by_key(|(i, j, _)| (*i, *j));
    for (i, _, connection) in joined {
        channels[i].connections.push(connection);
    }
    Ok(())
}

/// What a connection sends to join a pipe.
pub(super) struct JoinRequest {
    pub(super) token: Token,
    pub(super) kind: JoinKind,
    /// The pipe's.
    pub(super) key: Option<PipeKey>,
}

/// Connects and asks to join; also returns the handshake that waits for the listener's answer. On a pipe without a key, the connection may
/// be used before the answer.
pub(super) async fn ask_to_join(
    transport: &dyn Transport,
    address: &str,
    ask: &JoinRequest,
) -> Result<(Handshaking, ClientHandshake), Error> {
    let connection = transport.connect(address).await?;
    stop::at(stop::JOIN_CONNECTED);
    let binding = connection.exporter_secret();
    let join = Join {
        kind: ask.kind,
        over: transport.name(),
        token: &ask.token,
        binding: binding.as_ref(),
    };
    let purpose = Purpose::Join {
        token: ask.token,
        proof: ask.key.as_ref().map(|key| key.join(&join)),
    };
    let wanted = ask.key.as_ref().map(|key| key.joined(&join));
    let mut conn = Handshaking::new(connection, address);
    conn.send(&ClientHandshake::hello(&purpose)).await?;
    stop::at(stop::JOIN_SENT);
    Ok((conn, ClientHandshake::joining(wanted)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use crate::config::{ConnectPolicy, Timeouts};
    use crate::context::Context;
    use crate::error::Error;
    use crate::transports::{Acceptor, BoxFuture, Connection, TcpTransport, Transport};

    /// Like a network that drops packets; `true`: with sessions.
    struct Void(bool);

    impl Transport for Void {
        fn name(&self) -> &'static str {
            if self.0 { "session" } else { "void" }
        }

        fn has_sessions(&self) -> bool {
            self.0
        }

        fn domain(&self) -> Vec<u8> {
            Vec::new()
        }

        fn connect<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Box<dyn Connection>, Error>> {
            Box::pin(std::future::pending())
        }

        fn listen<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Box<dyn Acceptor>, Error>> {
            Box::pin(std::future::pending())
        }
    }

    #[tokio::test]
    async fn whoever_waits_in_vain_hears_whether_somebody_listens() {
        let handshake = Duration::from_millis(50);
        let timeouts = Timeouts {
            handshake,
            ..Timeouts::default()
        };
        let context = Context::builder().timeouts(timeouts).transports([
            Arc::new(Void(false)) as Arc<dyn Transport>,
            Arc::new(Void(true)),
            Arc::new(TcpTransport::new()),
        ]);
        let context = context.build().unwrap();
        // The system accepts the connection, and no process does.
        let listens = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let hangs = format!("tcp://{}", listens.local_addr().unwrap());
        for (url, words) in [
            (
                "void://there",
                "nothing answers there: see whether the address",
            ),
            (
                "session://there",
                "nothing answers there, or somebody listens and does not go on",
            ),
            (
                &*hangs,
                "somebody listens there but does not answer: its log",
            ),
        ] {
            let connected = context.connect_with(url, &ConnectPolicy::once()).await;
            let error = connected.unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
