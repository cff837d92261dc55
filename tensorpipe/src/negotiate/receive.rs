//! The listener's side.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::Guest;
use super::connect::stayed;
use super::establish::{Established, OpenChannel, establish};
use super::further;
use super::joining::{Joining, SAID_MAX};
use super::ticket::Ticket;
use crate::config::Limits;
use crate::context::{Inner, within_handshake};
use crate::device::Device;
use crate::error::Error;
use crate::pipe::Pipe;
use crate::process::process_id;
use crate::proto::handshake::{LocalChannel, LocalTransport, Selection, ServerHandshake, select};
use crate::proto::wire::hello::{
    Answer, Brochure, ChosenChannel, Purpose, Reject, Token, WireLimits,
};
use crate::stop;
use crate::sync::{Mutex, lock};
use crate::transports::{Connection, Transport};

/// What the handshakes of one listener share.
pub(crate) struct Entrance {
    context: Arc<Inner>,
    /// Where pipes can be moved to: transport, address or why there is none.
    side_addresses: Vec<(&'static str, Result<String, String>)>,
    /// Who waits for a connection with which token. Each token serves once.
    pub(super) expected: Mutex<HashMap<Token, oneshot::Sender<Guest>>>,
    places: Arc<Semaphore>,
    pipes: mpsc::UnboundedSender<Pipe>,
}

impl Entrance {
    pub(crate) fn new(
        context: Arc<Inner>,
        side_addresses: Vec<(&'static str, Result<String, String>)>,
        pipes: mpsc::UnboundedSender<Pipe>,
    ) -> Self {
        let places = Arc::new(Semaphore::new(context.limits.pipes));
        Self {
            context,
            side_addresses,
            expected: Mutex::new(HashMap::new()),
            places,
            pipes,
        }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.context.limits
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

/// Handles one new connection to its end: a pipe for the listener, a connection for a pipe, or nothing.
pub(crate) async fn receive(
    entrance: &Arc<Entrance>,
    transport: &dyn Transport,
    connection: Box<dyn Connection>,
) {
    let ends = connection.ends();
    let what = || format!("the handshake of {ends}");
    let guest = Guest::new(connection, ends.as_str());
    let handshake = handshake(entrance, transport, guest);
    match within_handshake(&entrance.context, what, handshake).await {
        Ok(Some(established)) => match establish(&entrance.context, established) {
            // Nobody accepts any more: the pipe closes as it drops.
            Ok(pipe) => drop(entrance.pipes.send(pipe)),
            Err(error) => tracing::warn!(peer = %ends, %error, "a pipe could not be opened"),
        },
        Ok(None) => {}
        Err(error) => tracing::warn!(peer = %ends, %error, "a handshake failed"),
    }
}

async fn handshake(
    entrance: &Arc<Entrance>,
    transport: &dyn Transport,
    mut guest: Guest,
) -> Result<Option<Established>, Error> {
    let mut handshake = ServerHandshake::default();
    let purpose = match guest.read(|input| handshake.handle(input)).await {
        Err(error @ Error::Peer { .. }) => {
            // Another version of this protocol understands the reason; anybody else sees the connection end.
            let reject = Reject {
                transient: false,
                reason: error.to_string(),
            };
            if let Error::Peer {
                fault: crate::error::PeerFault::Version { .. },
                ..
            } = &error
            {
                let _ = guest.send(&ServerHandshake::reject(&reject)).await;
            }
            return Err(error);
        }
        other => other?,
    };
    match purpose {
        Purpose::Join(token) => {
            stop::at(stop::JOIN_RECEIVED);
            let waiting = lock(&entrance.expected).remove(&token);
            let guest = match waiting {
                None => guest,
                Some(waiting) => match waiting.send(guest) {
                    Ok(()) => return Ok(None),
                    // Its pipe has gone on without it.
                    Err(late) => late,
                },
            };
            guest.reject_join().await?;
            Ok(None)
        }
        Purpose::Pipe {
            name,
            limits,
            brochure,
            ..
        } => {
            stop::at(stop::HELLO_RECEIVED);
            let Ok(permit) = entrance.places.clone().try_acquire_owned() else {
                let reason = format!(
                    "it has {} pipes already; try again later",
                    entrance.limits().pipes
                );
                guest
                    .send(&ServerHandshake::reject(&Reject {
                        transient: true,
                        reason,
                    }))
                    .await?;
                let _ = guest.connection.shutdown().await;
                return Ok(None);
            };
            welcome(entrance, transport, guest, name, limits, brochure, permit)
                .await
                .map(Some)
        }
    }
}

/// Chooses, answers, and waits for the connections that the answer asks for.
async fn welcome(
    entrance: &Arc<Entrance>,
    transport: &dyn Transport,
    mut guest: Guest,
    peer_name: String,
    peer_limits: WireLimits,
    brochure: Brochure,
    permit: OwnedSemaphorePermit,
) -> Result<Established, Error> {
    let context = &entrance.context;
    let selection = choose(entrance, transport.name(), &brochure);
    let still = Arc::downgrade(entrance);
    // What is not used by the end of the handshake is void.
    let mut tickets = Vec::new();
    let mut issue = || {
        let (ticket, joined) = Ticket::issue(&still)?;
        let token = ticket.token();
        tickets.push(ticket);
        Some((token, joined))
    };
    let stopped = || guest.lost("the listener has stopped");
    let moved = match selection.moved {
        None => None,
        Some((name, address)) => {
            let (token, joined) = issue().ok_or_else(stopped)?;
            Some((name, address, token, joined))
        }
    };
    let mut channels = Vec::new();
    let mut chosen = Vec::new();
    let mut joining = Vec::new();
    for selected in selection.channels {
        let channel = &context.channels[selected.index];
        let mut tokens = Vec::new();
        for _ in 0..selected.connections {
            let (token, joined) = issue().ok_or_else(stopped)?;
            tokens.push(token);
            joining.push((channels.len(), joined));
        }
        let theirs = brochure
            .channels
            .iter()
            .find(|offer| offer.name == selected.name);
        channels.push(OpenChannel {
            channel: channel.clone(),
            connections: Vec::new(),
            pairs: selected.pairs.clone(),
            peer_devices: theirs
                .map(|offer| offer.devices.clone())
                .unwrap_or_default(),
        });
        chosen.push(ChosenChannel {
            name: selected.name,
            tokens,
            devices: channel.devices(),
            pairs: selected.pairs,
        });
    }
    let answer = Answer {
        name: context.name.to_string(),
        process: process_id(),
        limits: context.limits.wire(),
        moved: moved
            .as_ref()
            .map(|(name, address, token, _)| (name.clone(), address.clone(), *token)),
        channels: chosen,
        refusals: selection.refusals.clone(),
    };
    guest.send(&ServerHandshake::answer(&answer)).await?;
    stop::at(stop::ANSWER_SENT);
    let mut refusals = selection.refusals;
    let mut final_transport = transport.name().to_owned();
    let mut moved_from = None;
    if let Some((name, _, _, mut joined)) = moved {
        let stays = tokio::select! {
            biased;
            arrived = &mut joined => Err(arrived),
            stays = guest.read(ServerHandshake::handle_stay) => match stays {
                Ok(reason) => Ok(reason),
                Err(error @ Error::Peer { .. }) => return Err(error),
                // A connector that has moved lets go of this connection, which can be seen before its new one; one that is
                // gone holds a place among the handshakes no longer than that takes.
                Err(lost) => match tokio::time::timeout(JOINS_WITHIN, &mut joined).await {
                    Ok(arrived) => Err(arrived),
                    Err(_) => return Err(lost),
                },
            },
        };
        match stays {
            Err(arrived) => {
                let joined =
                    arrived.map_err(|_| guest.lost("the connection to move to never came"))?;
                moved_from = Some(std::mem::replace(&mut final_transport, name));
                // Lets go of the first connection, then says so.
                guest = Guest {
                    name: guest.name,
                    ..joined
                };
                guest.send(&ServerHandshake::joined()).await?;
            }
            Ok(reason) => {
                stayed(&mut refusals, &final_transport, &name, reason);
            }
        }
    }
    for (channel, joined) in joining {
        let joined = joined
            .await
            .map_err(|_| guest.lost("a channel's connection never came"))?;
        let connection = joined.let_join().await?;
        channels[channel].connections.push(connection);
    }
    Ok(Established {
        further: further::expects(entrance, peer_name.as_str().into()),
        connection: guest.connection,
        leftover: guest.input,
        transport: final_transport,
        moved_from,
        stays: None,
        peer_name,
        peer_limits,
        channels,
        refusals,
        connector: false,
        permit: Some(permit),
    })
}

/// How much later than the end of a connector's first connection its second one may be seen.
const JOINS_WITHIN: Duration = Duration::from_secs(1);

fn choose(entrance: &Entrance, bootstrap: &str, brochure: &Brochure) -> Selection {
    let context = &entrance.context;
    type TransportVerdict<'a> = Box<dyn Fn(&[u8]) -> Result<(), String> + 'a>;
    type ChannelVerdict<'a> =
        Box<dyn Fn((Device, &[u8]), (Device, &[u8])) -> Result<(), String> + 'a>;
    let reaches: Vec<TransportVerdict<'_>> = context
        .transports
        .iter()
        .map(|transport| {
            Box::new(move |theirs: &[u8]| transport.reaches(theirs)) as TransportVerdict<'_>
        })
        .collect();
    let transports: Vec<LocalTransport<'_>> = context
        .transports
        .iter()
        .zip(&reaches)
        .map(|(transport, reaches)| {
            let side = entrance
                .side_addresses
                .iter()
                .find(|(name, _)| *name == transport.name());
            let address = side.map(|(_, address)| address.clone());
            let elsewhere = || Err("pipes that begin elsewhere cannot be moved to it".to_owned());
            let address = address.unwrap_or_else(elsewhere);
            LocalTransport {
                name: transport.name(),
                reaches,
                address,
            }
        })
        .collect();
    let devices: Vec<_> = context
        .channels
        .iter()
        .map(|channel| channel.devices())
        .collect();
    let reaches: Vec<ChannelVerdict<'_>> = context
        .channels
        .iter()
        .map(|channel| {
            Box::new(move |ours: (Device, &[u8]), theirs: (Device, &[u8])| {
                channel.reaches(ours, theirs)
            }) as ChannelVerdict<'_>
        })
        .collect();
    let channels: Vec<LocalChannel<'_>> = context
        .channels
        .iter()
        .zip(&devices)
        .zip(&reaches)
        .map(|((channel, devices), reaches)| LocalChannel {
            name: channel.name(),
            connections: channel.connections(),
            devices,
            reaches,
        })
        .collect();
    select(bootstrap, &transports, &channels, brochure)
}

/// How long a rejected connection is drained: a system that closes one with unread bytes may take the reason back.
const DRAIN: Duration = Duration::from_secs(1);

impl Guest {
    /// Tells a connection that nobody waits for that it may not join.
    async fn reject_join(mut self) -> Result<(), Error> {
        let reject = Reject {
            transient: false,
            reason: "this token is unknown, or was used, or came too late".to_owned(),
        };
        self.send(&ServerHandshake::reject(&reject)).await?;
        let _ = self.connection.shutdown().await;
        // Its connector writes at once, and closes when it has read the reason.
        let mut rest = (&mut self.connection).take(SAID_MAX as u64 + 1);
        let mut sink = tokio::io::sink();
        let drained = tokio::io::copy(&mut rest, &mut sink);
        let _ = tokio::time::timeout(DRAIN, drained).await;
        Ok(())
    }

    /// Tells a connection that it has joined.
    pub(super) async fn let_join(mut self) -> Result<Box<dyn Connection>, Error> {
        self.send(&ServerHandshake::joined()).await?;
        Ok(self.into_connection())
    }

    /// The connection alone, for a channel. What its peer sent already would be lost: a connector sends nothing on a
    /// channel's connection before the pipe is open at both ends.
    pub(super) fn into_connection(self) -> Box<dyn Connection> {
        Joining::joined(self.input, self.connection)
    }
}
