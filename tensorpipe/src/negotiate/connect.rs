//! The connector's side.

use std::sync::{Arc, OnceLock};

use tokio::task::JoinSet;

use super::establish::{Established, OpenChannel, Stays, establish};
use super::further;
use super::joining::{First, Joining};
use super::{Handshaking, purpose, reaches};
use crate::address::{SettledPeer, Url};
use crate::context::{Inner, within_handshake};
use crate::device::Device;
use crate::error::{Error, PeerFault};
use crate::pipe::Pipe;
use crate::proto::handshake::{ClientHandshake, Reply};
use crate::proto::wire::hello::{Answer, Purpose, Token, put_stay};
use crate::stop;
use crate::transports::{Connection, Transport};

/// One attempt.
pub(crate) async fn connect(
    context: &Arc<Inner>,
    transport: &Arc<dyn Transport>,
    url: &Url,
) -> Result<Pipe, Error> {
    let what = || format!("the handshake with {url}");
    let established = within_handshake(context, what, handshake(context, transport, url)).await?;
    establish(context, established)
}

async fn handshake(
    context: &Arc<Inner>,
    transport: &Arc<dyn Transport>,
    url: &Url,
) -> Result<Established, Error> {
    let connection = transport.connect(url.address()).await?;
    stop::at(stop::CONNECTED);
    let credit = context.credit_ahead.begin(connection.peer());
    let mut conn = Handshaking::new(connection, url.to_string());
    conn.send(&ClientHandshake::hello(&purpose(context, &credit)))
        .await?;
    stop::at(stop::HELLO_SENT);
    let mut handshake = ClientHandshake::default();
    let answer = match conn.read(|input| handshake.handle(input)).await? {
        Reply::Answer(answer) => *answer,
        Reply::Joined => {
            let (frame, when) = ("JOINED", "instead of an answer");
            return Err(fault_of(&conn, PeerFault::Unexpected { frame, when }));
        }
        Reply::Reject(reject) => {
            let (peer, reason) = (conn.name.clone(), reject.reason.into());
            return Err(Error::Rejected {
                peer,
                reason,
                transient: reject.transient,
            });
        }
    };
    stop::at(stop::ANSWER_RECEIVED);
    let better = answer.moved.as_ref();
    let better = better.map(|(name, ..)| upgrade(context, &**transport, name));
    let better = better.transpose().map_err(|fault| fault_of(&conn, fault))?;
    let over = better.unwrap_or(transport);
    let mut channels =
        chosen_channels(context, &answer, &**over).map_err(|fault| fault_of(&conn, fault))?;
    let mut refusals = answer.refusals.clone();
    let first = (transport.clone(), url.address().to_owned());
    let mut route = first.clone();
    let mut moved_from = None;
    let identity = conn.connection.identity();
    let mut stays = None;
    // Set once a pipe that has moved turns out to stay.
    let because = Arc::new(OnceLock::new());
    let settled = SettledPeer::default();
    if let Some(((name, address, token), better)) = answer.moved.as_ref().zip(better) {
        match ask_to_join(&**better, address, *token).await {
            Ok(Handshaking { connection, .. }) => {
                // Used at once; it goes back to the first connection if the listener rejects it.
                moved_from = Some(transport.name().to_owned());
                route = (better.clone(), address.clone());
                stays = Some(Stays {
                    because: because.clone(),
                    transport: transport.name().to_owned(),
                    address: conn.connection.ends(),
                    refused: Vec::new(),
                    peer: conn.connection.peer(),
                    settled: settled.clone(),
                });
                let Handshaking {
                    connection: first,
                    input,
                    name,
                } = conn;
                let first = First::new(Joining::joined(input, first), because.clone(), settled);
                let joining = Joining::new(connection, name.clone(), Some(first));
                conn = Handshaking::new(Box::new(joining), name);
            }
            Err(error) => {
                tracing::warn!(%url, transport = %name, %error, "could not move, staying");
                let mut stay = Vec::new();
                put_stay(&mut stay, &error.to_string());
                conn.send(&stay).await?;
                stayed(&mut refusals, transport.name(), name, error.to_string());
            }
        }
    }
    join_channels(&mut channels, &answer, &route).await?;
    let transport = route.0.name().to_owned();
    let at = move || match because.get() {
        None => route.clone(),
        Some(_) => first.clone(),
    };
    let further = further::joins(at, answer.name.as_str().into(), context.timeouts.handshake);
    Ok(Established {
        further,
        connection: conn.connection,
        leftover: conn.input,
        transport,
        moved_from,
        identity,
        stays,
        peer_name: answer.name,
        peer_limits: answer.limits,
        credit,
        channels,
        refusals,
        connector: true,
        permit: None,
    })
}

/// Where a pipe that began over `from` may be moved: to a transport at which this context, too, would have pipes moved to.
/// None of ours leads out of the machine, so that a listener does not make its peers connect to hosts of its choice.
fn upgrade<'a>(
    context: &'a Inner,
    from: &dyn Transport,
    name: &str,
) -> Result<&'a Arc<dyn Transport>, PeerFault> {
    let better = context.transport(name).map_err(|_| PeerFault::NotOffered {
        what: format!("transport {name}"),
    })?;
    if name == from.name() || better.side_address().is_none() {
        return Err(PeerFault::Malformed {
            frame: "ANSWER",
            what: "a move to where pipes are not moved to",
        });
    }
    Ok(better)
}

/// The refusals of a pipe that stayed on `first`, because it could not move to `better`.
pub(super) fn stayed(
    refusals: &mut Vec<(String, String)>,
    first: &str,
    better: &str,
    reason: String,
) {
    refusals.retain(|(candidate, _)| *candidate != format!("transport {first}"));
    refusals.insert(0, (format!("transport {better}"), reason));
}

fn fault_of(conn: &Handshaking, fault: PeerFault) -> Error {
    Error::Peer {
        pipe: conn.name.clone(),
        fault,
    }
}

/// The answer in terms of this context's channels, for a pipe `over` a transport. What was not offered, or does not reach,
/// is the listener's fault.
fn chosen_channels(
    context: &Inner,
    answer: &Answer,
    over: &dyn Transport,
) -> Result<Vec<OpenChannel>, PeerFault> {
    let mut channels = Vec::new();
    for chosen in &answer.channels {
        let what = format!("channel {}", chosen.name);
        let not_offered = || PeerFault::NotOffered { what: what.clone() };
        let channel = context
            .channels
            .iter()
            .find(|channel| channel.name() == chosen.name)
            .ok_or_else(not_offered)?;
        // A stranger does not decide how many connections are made from here, nor to how many lanes.
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
        let devices = channel.devices();
        let descriptor = |of: &[(Device, Vec<u8>)], device: &Device| {
            let known = of.iter().find(|(known, _)| known == device);
            known.cloned().ok_or_else(not_offered)
        };
        for (theirs, ours) in &chosen.pairs {
            let (ours, theirs) = (
                descriptor(&devices, ours)?,
                descriptor(&chosen.devices, theirs)?,
            );
            let reach = reaches(&**channel, over, (ours.0, &ours.1), (theirs.0, &theirs.1));
            reach.map_err(|reason| PeerFault::OutOfReach {
                channel: chosen.name.clone(),
                reason,
            })?;
        }
        channels.push(OpenChannel {
            channel: channel.clone(),
            connections: Vec::new(),
            pairs: chosen
                .pairs
                .iter()
                .map(|(theirs, ours)| (*ours, *theirs))
                .collect(),
            peer_devices: chosen.devices.clone(),
        });
    }
    Ok(channels)
}

/// Opens the connections that channels have of their own.
async fn join_channels(
    channels: &mut [OpenChannel],
    answer: &Answer,
    (transport, address): &(Arc<dyn Transport>, String),
) -> Result<(), Error> {
    let mut joins = JoinSet::new();
    for (i, chosen) in answer.channels.iter().enumerate() {
        for (j, token) in chosen.tokens.iter().copied().enumerate() {
            let (transport, address) = (transport.clone(), address.clone());
            let peer: Arc<str> = answer.name.as_str().into();
            joins.spawn(async move {
                let connection = ask_to_join(&*transport, &address, token).await?.connection;
                let joining = Joining::new(connection, peer, None);
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

/// A connection that has said what it wants to join; it is used before the listener has said yes, or not.
pub(super) async fn ask_to_join(
    transport: &dyn Transport,
    address: &str,
    token: Token,
) -> Result<Handshaking, Error> {
    let connection = transport.connect(address).await?;
    stop::at(stop::JOIN_CONNECTED);
    let mut conn = Handshaking::new(connection, address);
    conn.send(&ClientHandshake::hello(&Purpose::Join(token)))
        .await?;
    stop::at(stop::JOIN_SENT);
    Ok(conn)
}
