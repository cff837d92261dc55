//! The entry point of pipes.

mod handshake_slots;

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::task::AbortHandle;

use self::handshake_slots::HandshakeSlots;
use crate::address::Url;
use crate::context::Inner;
use crate::error::{Error, Misuse};
use crate::log_limit::LogLimit;
use crate::negotiate::{self, Arrived, Door, ListenerState};
use crate::pipe::Pipe;
use crate::sync::{AtomicBool, Mutex, lock};
use crate::sys::fork::Owner;
use crate::sys::workers::panics;
use crate::transports::{Acceptor, Transport};

/// A pause after the system refused to accept: most likely it is out of file descriptors, and one will be free soon.
const PAUSE: Duration = Duration::from_millis(50);

/// After so many failed accepts in a row peers are not the cause, and the loop makes a pause.
const IN_VAIN: u32 = 4096;

/// Accepts pipes at one or several URLs. Dropping it stops; pipes that were not accepted are closed.
#[must_use = "dropping a listener stops it"]
pub struct Listener {
    urls: Vec<Url>,
    pipes: Arrived,
    tasks: Arc<Tasks>,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener")
            .field("urls", &self.urls)
            .finish_non_exhaustive()
    }
}

/// How the connections of an acceptor arrive.
type Way = (Arc<dyn Transport>, Door);

/// An acceptor, until its listener stops.
type Accepting = Arc<Mutex<Option<Box<dyn Acceptor>>>>;

/// What runs for a listener.
#[derive(Default)]
pub(crate) struct Tasks {
    owner: Owner,
    running: Mutex<Vec<(AbortHandle, Accepting)>>,
}

impl Tasks {
    /// In a forked child it does nothing: its parent's listener goes on.
    pub(crate) fn stop(&self) {
        if self.owner.is_other_process() {
            return;
        }
        for (task, acceptor) in lock(&self.running).drain(..) {
            task.abort();
            // An aborted task lets go of what it holds later: the address is free from now on.
            drop(lock(&acceptor).take());
        }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        match self.owner.is_other_process() {
            // To drop an acceptor would take its descriptor out of the parent's epoll instance, which a child shares.
            true => std::mem::forget(std::mem::take(&mut *lock(&self.running))),
            false => self.stop(),
        }
    }
}

impl Listener {
    pub(crate) async fn bind(context: Arc<Inner>, urls: Vec<Url>) -> Result<Self, Error> {
        if urls.is_empty() {
            return Err(Misuse::Other(
                "a listener needs at least one URL, e.g. `tcp://127.0.0.1:0`".to_owned(),
            )
            .into());
        }
        let mut acceptors: Vec<(Way, Box<dyn Acceptor>)> = Vec::new();
        let mut bound = Vec::new();
        for url in &urls {
            let transport = context.transport(url.transport())?.clone();
            let acceptor = transport.listen(url.address()).await?;
            bound.push(Url::new(transport.name(), &acceptor.address()));
            acceptors.push(((transport, Door::Front), acceptor));
        }
        // Transports to which pipes that begin on another one can be upgraded.
        let mut upgrade_addresses = Vec::new();
        for transport in &context.transports {
            let Some(address) = transport.upgrade_address() else {
                continue;
            };
            // No URL names this transport: if the system refuses it, the upgrade is lost, not the listener.
            match transport.listen(&address).await {
                Ok(acceptor) => {
                    upgrade_addresses.push((transport.name(), Ok(acceptor.address())));
                    acceptors.push(((transport.clone(), Door::Side), acceptor));
                }
                Err(error) => {
                    let transport = transport.name();
                    tracing::warn!(%transport, %error, "pipes cannot be upgraded to it");
                    upgrade_addresses.push((transport, Err(error.to_string())));
                }
            }
        }
        let (arriving, pipes) = negotiate::arrivals(context.limits.pipes);
        let tasks = Arc::new(Tasks::default());
        let listener_state = Arc::new(ListenerState::new(
            context.clone(),
            upgrade_addresses,
            arriving,
        ));
        for (way, acceptor) in acceptors {
            let acceptor = Arc::new(Mutex::new(Some(acceptor)));
            let accepts = accept_loop(listener_state.clone(), way, acceptor.clone());
            lock(&tasks.running).push((tokio::spawn(accepts).abort_handle(), acceptor));
        }
        context.add_listener(&tasks);
        Ok(Self {
            urls: bound,
            pipes,
            tasks,
        })
    }

    /// Where it listens, in the order in which it was asked to; a port 0 has become a real one.
    pub fn urls(&self) -> &[Url] {
        &self.urls
    }

    /// The first of them.
    pub fn url(&self) -> &Url {
        &self.urls[0]
    }

    /// The next pipe. Cancel safe. Waits as long as it takes.
    ///
    /// # Errors
    /// [`Misuse::Other`] once it, its context, or its runtime has ended.
    pub async fn accept(&self) -> Result<Pipe, Error> {
        let closed = || {
            let ended = "this listener, its context or its runtime has been closed: listen anew";
            Misuse::Other(ended.to_owned())
        };
        self.pipes.next().await.ok_or_else(|| closed().into())
    }

    /// Stops listening: its addresses are free when this returns, unless this process is starting another one, which holds them until it
    /// runs its program. Pipes that were accepted go on.
    pub fn close(&self) {
        self.tasks.stop();
    }
}

async fn accept_loop(
    listener_state: Arc<ListenerState>,
    (transport, door): Way,
    acceptor: Accepting,
) {
    let mut places = HandshakeSlots::new(
        listener_state.limits().handshakes,
        listener_state.greeting(),
    );
    let mut handshakes = tokio::task::JoinSet::new();
    let mut in_vain = 0;
    let (refused, full) = (LogLimit::new(), LogLimit::new());
    loop {
        let accepted = poll_fn(|cx| match &mut *lock(&acceptor) {
            Some(acceptor) => acceptor.poll_accept(cx).map(Some),
            None => Poll::Ready(None),
        });
        let Some(accepted) = accepted.await else {
            return;
        };
        while handshakes.try_join_next().is_some() {}
        match accepted {
            Ok(connection) => {
                in_vain = 0;
                let origin = connection.peer().origin();
                if !places.make_room(origin) {
                    if let Some(more) = full.admits() {
                        let limit = listener_state.limits().handshakes;
                        // What logs may panic: this loop must go on.
                        panics(|| {
                            tracing::warn!(
                                limit,
                                more,
                                "too many handshakes at once: one more is turned away"
                            );
                        });
                    }
                    negotiate::turn_away(connection);
                    continue;
                }
                let (listener_state, transport) = (listener_state.clone(), transport.clone());
                let has_greeted = Arc::<AtomicBool>::default();
                let greeted = has_greeted.clone();
                // Boxed, so that its some 14 KiB go when it ends: `places` keep what is left of the task for a while.
                let handshake = handshakes.spawn(Box::pin(async move {
                    let transport = &*transport;
                    negotiate::receive(&listener_state, transport, door, connection, &greeted)
                        .await;
                }));
                places.take(origin, has_greeted, handshake);
            }
            Err(error) => {
                let is_of_the_system = is_of_the_system(&error);
                if let Some(more) = refused.admits() {
                    let hears = match is_of_the_system && is_of_accept(&error) {
                        true => "no connection can be accepted: whoever connects waits in vain",
                        false => "a connection could not be accepted",
                    };
                    panics(|| tracing::warn!(%error, more, "{hears}"));
                }
                in_vain = if is_of_one(&error) { 0 } else { in_vain + 1 };
                if is_of_the_system || in_vain > IN_VAIN {
                    if is_short_of_descriptors(&error) {
                        places.give_way();
                    }
                    tokio::time::sleep(PAUSE).await;
                } else {
                    tokio::task::yield_now().await;
                }
            }
        }
    }
}

/// Whether accepting itself failed. After a later error the connection is dropped, and its peer hears of that.
fn is_of_accept(error: &Error) -> bool {
    matches!(error, Error::System(error) if error.call.starts_with("accept"))
}

/// Whether the error concerns one connection: its peer is gone, or is not let in. Others are accepted as before.
fn is_of_one(error: &Error) -> bool {
    let Error::System(system) = error else {
        return false;
    };
    let is_gone = system.source.raw_os_error() == Some(libc::ECONNABORTED);
    !is_of_the_system(error) && (is_gone || !is_of_accept(error))
}

fn is_short_of_descriptors(error: &Error) -> bool {
    let code = match error {
        Error::System(error) => error.source.raw_os_error(),
        _ => None,
    };
    matches!(code, Some(libc::EMFILE | libc::ENFILE))
}

/// Whether accepting again at once would be in vain. The system is short of what every connection needs, the acceptor is no good, or a
/// filter denies a call that every connection needs. After any other error there is no pause: others wait behind it, and unproven peers must
/// not slow them down.
fn is_of_the_system(error: &Error) -> bool {
    const SHORT: [i32; 5] = [
        libc::EMFILE,
        libc::ENFILE,
        libc::ENOBUFS,
        libc::ENOMEM,
        // No watches of epoll are left.
        libc::ENOSPC,
    ];
    const NO_GOOD: [i32; 4] = [libc::EBADF, libc::EINVAL, libc::ENOTSOCK, libc::EOPNOTSUPP];
    // A peer that a transport does not let in has no such code.
    const DENIED: [i32; 3] = [libc::EPERM, libc::EACCES, libc::ENOSYS];
    let Error::System(error) = error else {
        return false;
    };
    let code = error.source.raw_os_error();
    let is_one = |codes: &[i32]| code.is_some_and(|code| codes.contains(&code));
    is_one(&SHORT) || is_one(&NO_GOOD) || is_one(&DENIED)
}

#[cfg(test)]
mod tests;
