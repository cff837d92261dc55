//! A value on its way from another process.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::runtime::Handle;

use super::bound::Bound;
use super::error::{Aborted, RecvError};
use super::key::Key;
use super::peers::{Link, Peer};
use super::service::{Pulled, Refusal, words};
use super::value::Value;
use crate::call::Call;
use crate::error::{CallError, ConnectError};
use crate::task::OwnedTask;

/// A pull call, under way or to be made once the producer is connected. Dropping it cancels it: the value stays there.
#[derive(Debug)]
pub(super) struct Pull {
    peer: Arc<Peer>,
    /// How long it may take in all.
    after: Duration,
    state: State,
}

#[derive(Debug)]
enum State {
    Calling(Arc<Link>, Call<Pulled>),
    Connecting(OwnedTask<Result<Arrived, RecvError>>),
}

/// A value, the number of its loan, and the link for its receipt.
pub(super) type Arrived = (Value, u64, Arc<Link>);

impl Pull {
    /// Begins at once: on this task if there is a connection, otherwise on a task of its own.
    pub(super) fn start(peer: Arc<Peer>, key: &Key, bound: &Bound, runtime: &Handle) -> Self {
        let state = match peer.linked() {
            Some(link) => match call(&peer, &link, key, bound) {
                Ok(call) => State::Calling(link, call),
                Err(error) => State::Connecting(OwnedTask::spawn(runtime, async { Err(error) })),
            },
            None => {
                let connecting = connect(peer.clone(), key.clone(), bound.again());
                State::Connecting(OwnedTask::spawn(runtime, connecting))
            }
        };
        let after = bound.after;
        Self { peer, after, state }
    }

    pub(super) fn poll(
        &mut self,
        key: &Key,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Arrived, RecvError>> {
        Poll::Ready(match &mut self.state {
            State::Calling(link, call) => {
                let called = ready!(Pin::new(call).poll(cx));
                ended(&self.peer, link, key, self.after, called)
            }
            State::Connecting(task) => match ready!(Pin::new(task).poll(cx)) {
                Ok(arrived) => arrived,
                Err(_) => {
                    let why = CallError::Other("the runtime has ended".into());
                    Err(RecvError::Unreachable {
                        producer: self.peer.name.clone(),
                        error: ConnectError::Call(why),
                    })
                }
            },
        })
    }
}

async fn connect(peer: Arc<Peer>, key: Key, bound: Bound) -> Result<Arrived, RecvError> {
    let late = || RecvError::Deadline {
        key: key.clone(),
        after: bound.after,
    };
    let connected = tokio::time::timeout(bound.left(), peer.connected()).await;
    let link = connected.map_err(|_| late())??;
    let called = call(&peer, &link, &key, &bound)?.await;
    ended(&peer, &link, &key, bound.after, called)
}

/// Pulls from a producer that is connected.
fn call(peer: &Peer, link: &Link, key: &Key, bound: &Bound) -> Result<Call<Pulled>, RecvError> {
    if key.incarnation() != link.incarnation {
        return Err(restarted(peer, key, link.incarnation));
    }
    let client = link.client.with_deadline(bound.left());
    Ok(client.pull(key.as_str().to_owned()))
}

fn ended(
    peer: &Peer,
    link: &Arc<Link>,
    key: &Key,
    after: Duration,
    called: Result<Pulled, CallError>,
) -> Result<Arrived, RecvError> {
    let refusal = match called {
        Ok(Pulled::Lent { value, loan }) => return Ok((value, loan, link.clone())),
        Ok(Pulled::Refused(refusal)) => refusal,
        Err(CallError::Deadline { .. }) => {
            let key = key.clone();
            return Err(RecvError::Deadline { key, after });
        }
        Err(error) => {
            if matches!(
                error,
                CallError::Connection { .. } | CallError::ShuttingDown
            ) {
                peer.drop_link(&link.client);
            }
            let producer = peer.name.clone();
            return Err(RecvError::Call { producer, error });
        }
    };
    Err(match refusal {
        Refusal::Aborted { by, reason } => RecvError::Aborted(Aborted {
            by: words(&by),
            reason: words(&reason),
        }),
        Refusal::Finished => RecvError::Finished { step: key.step() },
        Refusal::Awaited => RecvError::Awaited(key.clone()),
        Refusal::Received => RecvError::Received(key.clone()),
        Refusal::Restarted { now } => restarted(peer, key, now),
        Refusal::WrongPeer { name } => RecvError::WrongPeer {
            producer: peer.name.clone(),
            found: words(&name),
        },
        Refusal::Unconfirmed { values } => RecvError::Unconfirmed {
            values: usize::try_from(values).unwrap_or(usize::MAX),
        },
        Refusal::NoKey(why) => RecvError::Call {
            producer: peer.name.clone(),
            error: CallError::Other(words(&why)),
        },
    })
}

fn restarted(peer: &Peer, key: &Key, found: u64) -> RecvError {
    RecvError::Restarted {
        producer: peer.name.clone(),
        expected: key.incarnation(),
        found,
    }
}
