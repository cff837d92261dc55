//! The producers of values, and the connections to them.
//!
//! A connection is made when it is first needed, and again after it has ended. The process there is then another incarnation, or
//! the same one after a network failure.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tensorpipe::Context;
use tokio::runtime::Handle;

use super::error::RecvError;
use super::key::Key;
use super::local::Local;
use super::receipts::{Receipts, is_same};
use super::service::{Hello, TensorRendezvousClient, words};
use crate::error::{CallError, ConnectError};
use crate::lock::lock;
use crate::placement::DeviceMap;
use crate::task::OwnedTask;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Peers {
    context: Context,
    devices: Option<DeviceMap>,
    runtime: Handle,
    local: Arc<Local>,
    known: Mutex<HashMap<Arc<str>, Arc<Peer>>>,
}

impl Peers {
    pub(super) fn new(
        context: Context,
        devices: Option<DeviceMap>,
        runtime: Handle,
        local: Arc<Local>,
    ) -> Self {
        Self {
            context,
            devices,
            runtime,
            local,
            known: Mutex::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<Peer>>> {
        lock(&self.known)
    }

    pub(super) fn add(&self, name: Arc<str>, url: Arc<str>) {
        let (peer, before) = {
            let mut known = self.known();
            // Its unsent receipts go to the new URL.
            let receipts = known.get(&name).map(|before| before.receipts.clone());
            let peer = Arc::new(Peer {
                name: name.clone(),
                url,
                context: self.context.clone(),
                runtime: self.runtime.clone(),
                devices: self.devices.clone(),
                me: self.local.hello_to(&name),
                link: Mutex::default(),
                receipts: receipts.unwrap_or_else(|| Receipts::new(&self.runtime)),
                connecting: tokio::sync::Mutex::default(),
            });
            peer.receipts.hand_to(&peer);
            (peer.clone(), known.insert(name, peer))
        };
        drop(before);
        peer.receipts.resume();
    }

    /// Forgets a producer. Whoever receives from it has a handle of its own. Returns whether it was known.
    pub(super) fn remove(&self, name: &str) -> bool {
        // Dropped without the lock: its connection is, too.
        let removed = self.known().remove(name);
        removed.is_some()
    }

    pub(super) fn find(&self, name: &str) -> Result<Arc<Peer>, RecvError> {
        let found = self.known().get(name).cloned();
        found.ok_or_else(|| RecvError::UnknownPeer {
            producer: name.into(),
        })
    }

    /// The links to all connected peers.
    pub(super) fn linked(&self) -> Vec<Arc<Link>> {
        let known = self.known();
        known.values().filter_map(|peer| peer.linked()).collect()
    }
}

/// Another process, connected or not.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) name: Arc<str>,
    url: Arc<str>,
    context: Context,
    runtime: Handle,
    devices: Option<DeviceMap>,
    /// What this process says to it.
    me: Hello,
    link: Mutex<Option<Arc<Link>>>,
    receipts: Receipts,
    /// Held by the task that connects; others wait for its result.
    connecting: tokio::sync::Mutex<()>,
}

impl Peer {
    fn link(&self) -> MutexGuard<'_, Option<Arc<Link>>> {
        lock(&self.link)
    }

    /// The connection, if there is one now.
    pub(super) fn linked(&self) -> Option<Arc<Link>> {
        let link = self.link().clone()?;
        (!link.client.connection().pipe().has_ended()).then_some(link)
    }

    /// The connection, made if there is none. Waits for a producer that does not listen yet, as [`Context::connect`] does. Cancel
    /// safe.
    pub(super) async fn connected(self: &Arc<Self>) -> Result<Arc<Link>, RecvError> {
        if let Some(link) = self.linked() {
            return Ok(link);
        }
        // On a task: this future may be polled no more, and others must not wait for its lock then.
        let connecting = OwnedTask::spawn(&self.runtime, self.clone().connected_in_turn());
        let connected = connecting.await;
        connected.unwrap_or_else(|_| {
            let why = CallError::Other("the runtime has ended".into());
            Err(RecvError::Unreachable {
                producer: self.name.clone(),
                error: ConnectError::Call(why),
            })
        })
    }

    /// Connects, unless another task does.
    async fn connected_in_turn(self: Arc<Self>) -> Result<Arc<Link>, RecvError> {
        let _connecting = self.connecting.lock().await;
        if let Some(link) = self.linked() {
            return Ok(link);
        }
        let link = Arc::new(self.connect().await?);
        let before = self.link().replace(link.clone());
        drop(before);
        self.receipts
            .connected(&self, &link.client, link.incarnation);
        Ok(link)
    }

    async fn connect(&self) -> Result<Link, RecvError> {
        let unreachable = |error| RecvError::Unreachable {
            producer: self.name.clone(),
            error,
        };
        let client = TensorRendezvousClient::connect_with(&self.context, &*self.url).await;
        let client = client.map_err(unreachable)?;
        let client = match &self.devices {
            Some(devices) => client.with_device_map(devices.clone()),
            None => client,
        };
        let hello = client.hello(&self.me).await;
        let hello = hello.map_err(|error| unreachable(ConnectError::Call(error)))?;
        if hello.name != *self.name {
            return Err(RecvError::WrongPeer {
                producer: self.name.clone(),
                found: words(&hello.name),
            });
        }
        Ok(Link {
            receipts: self.receipts.clone(),
            me: self.me.clone(),
            client,
            incarnation: hello.incarnation,
        })
    }

    /// Forgets a connection that takes no more calls.
    pub(super) fn drop_link(&self, client: &TensorRendezvousClient) {
        let known = |known: &mut Arc<Link>| is_same(&known.client, client);
        let before = self.link().take_if(known);
        drop(before);
    }
}

/// A connection, and the incarnation at its other end.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) client: TensorRendezvousClient,
    pub(super) incarnation: u64,
    /// What this process says to the one at its other end.
    pub(super) me: Hello,
    receipts: Receipts,
}

impl Link {
    /// Confirms to the producer that the value is here.
    pub(super) fn confirm(&self, key: Key, loan: u64) {
        self.receipts.give(&self.client, key, loan);
    }
}
