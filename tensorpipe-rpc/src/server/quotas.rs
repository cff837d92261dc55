//! Shares a server's places for calls among its peers: no peer takes another's share, however many connections it opens.
//!
//! Half of all places are reserved. The connected peers, as the system names them ([`PeerAddr::party`]), get equal shares, and a
//! peer's connections share equally. The unused part of a share is kept for its owner, so a peer that comes late, or asks for
//! little, finds a place. If the system does not name peers, each connection is a peer of its own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tensorpipe::PeerAddr;

use crate::lock::lock;

/// With so many connections, they are no longer examined one by one.
const SEVERAL: usize = 64;

/// See the module's documentation.
pub(crate) struct CallQuotas {
    /// Places in all.
    most: usize,
    peers: Mutex<HashMap<Key, Group>>,
    /// How many of `peers` have a connection.
    connected: AtomicUsize,
    /// How many connections all peers have.
    connections: AtomicUsize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Named(PeerAddr),
    /// A connection of an unnamed peer, by its number.
    Alone(u64),
}

#[derive(Default)]
struct Group {
    peer: Arc<Peer>,
    members: HashMap<u64, Arc<ConnectionQuota>>,
}

#[derive(Debug, Default)]
struct Peer {
    /// Calls of all its connections, including those that have ended.
    busy: AtomicUsize,
    connections: AtomicUsize,
}

/// A connection among those that share places.
#[derive(Debug, Default)]
pub(crate) struct ConnectionQuota {
    peer: Arc<Peer>,
    busy: AtomicUsize,
}

impl ConnectionQuota {
    /// Calls that have a place.
    pub(crate) fn busy(&self) -> usize {
        self.busy.load(Ordering::Relaxed)
    }

    /// Counts one more call. Returns how many there were before.
    pub(crate) fn begin(&self) -> usize {
        self.peer.busy.fetch_add(1, Ordering::AcqRel);
        self.busy.fetch_add(1, Ordering::AcqRel)
    }

    /// A call gives its place back.
    pub(crate) fn leave(&self) {
        self.busy.fetch_sub(1, Ordering::AcqRel);
        self.peer.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

impl CallQuotas {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            peers: Mutex::default(),
            connected: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
        }
    }

    /// Gives connection number `id` of this peer a share.
    pub(super) fn join(&self, id: u64, peer: PeerAddr) -> Arc<ConnectionQuota> {
        let mut peers = lock(&self.peers);
        // A peer without connections is kept while it has calls, so that these still count.
        peers.retain(|_, group| {
            !group.members.is_empty() || group.peer.busy.load(Ordering::Acquire) > 0
        });
        let group = peers.entry(key(id, peer)).or_default();
        let quota = Arc::new(ConnectionQuota {
            peer: group.peer.clone(),
            busy: AtomicUsize::new(0),
        });
        group.members.insert(id, quota.clone());
        self.count(&peers);
        quota
    }

    /// Connection number `id` has ended.
    pub(super) fn leave(&self, id: u64) {
        let mut peers = lock(&self.peers);
        for group in peers.values_mut() {
            group.members.remove(&id);
        }
        self.count(&peers);
    }

    fn count(&self, peers: &HashMap<Key, Group>) {
        let (mut connected, mut connections) = (0, 0);
        for group in peers.values() {
            let members = group.members.len();
            group.peer.connections.store(members, Ordering::Relaxed);
            connected += usize::from(members > 0);
            connections += members;
        }
        self.connected.store(connected, Ordering::Relaxed);
        self.connections.store(connections, Ordering::Relaxed);
    }

    /// Whether a connection that had `busy` calls may have one more. `places` are taken with it. The error says why not.
    pub(crate) fn has_room(
        &self,
        quota: &ConnectionQuota,
        busy: usize,
        places: usize,
    ) -> Result<(), String> {
        let most = self.most;
        if places > most {
            return Err(format!(
                "{most} calls are under way, the limit (`ServerLimits::calls`)"
            ));
        }
        let connected = self.connected.load(Ordering::Relaxed).max(1);
        let connections = quota.peer.connections.load(Ordering::Relaxed).max(1);
        let share = most / (2 * connected);
        let own = share / connections;
        let others = (connected - 1) * share + (connections - 1) * own;
        // All that others may claim is still free, or the call is within this connection's own share.
        let of_peer = quota.peer.busy.load(Ordering::Acquire);
        if places + others <= most || (busy < own && of_peer <= share) {
            return Ok(());
        }
        // The own share also counts if another connection of this peer has exceeded its part.
        if busy < own && places + (connected - 1) * share <= most {
            return Ok(());
        }
        let kept = match self.connections.load(Ordering::Relaxed) {
            // Examining each connection would take long.
            SEVERAL.. => others,
            _ => self.kept(quota, share, own),
        };
        match places + kept <= most {
            true => Ok(()),
            false => Err(format!(
                "{of_peer} calls of this peer are under way, {busy} of them on this connection, and what is left of {most}, the limit (`ServerLimits::calls`), is kept for others"
            )),
        }
    }

    /// How many places are kept for the unused shares of others.
    fn kept(&self, quota: &ConnectionQuota, share: usize, own: usize) -> usize {
        let peers = lock(&self.peers);
        let connected = peers.values().filter(|group| !group.members.is_empty());
        let kept = connected.map(|group| match Arc::ptr_eq(&group.peer, &quota.peer) {
            false => share.saturating_sub(group.peer.busy.load(Ordering::Acquire)),
            true => {
                let others = group.members.values();
                let others = others.filter(|other| !std::ptr::eq(&***other, quota));
                others.map(|other| own.saturating_sub(other.busy())).sum()
            }
        });
        kept.sum()
    }
}

fn key(id: u64, peer: PeerAddr) -> Key {
    match peer.party() {
        PeerAddr::Unknown => Key::Alone(id),
        peer => Key::Named(peer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GREEDY: PeerAddr = process(1);

    const fn process(pid: u32) -> PeerAddr {
        PeerAddr::Process {
            pid: Some(pid),
            uid: 1,
        }
    }

    /// Begins as many calls as there is room for. Returns how many the member then has.
    fn fill(quotas: &CallQuotas, quota: &ConnectionQuota, places: &mut usize) -> usize {
        loop {
            let busy = quota.begin();
            if quotas.has_room(quota, busy, *places + 1).is_err() {
                quota.leave();
                return busy;
            }
            *places += 1;
        }
    }

    #[test]
    fn a_thousand_connections_of_one_peer_get_no_more_than_one() {
        let quotas = CallQuotas::new(1000);
        let modest = quotas.join(0, PeerAddr::SameProcess);
        let mut places = 0;
        for id in 1..=1000 {
            let greedy = quotas.join(id, GREEDY);
            fill(&quotas, &greedy, &mut places);
        }
        assert_eq!(places, 750, "all but the share of the other peer");
        assert_eq!(fill(&quotas, &modest, &mut places), 250);
        // The greedy peer comes back after its connections have ended. Its calls still count.
        (1..=1000).for_each(|id| quotas.leave(id));
        let again = quotas.join(2000, GREEDY);
        modest.leave();
        assert_eq!(fill(&quotas, &again, &mut { places - 1 }), 0);
        // A late peer gets places only as calls end, but before all others.
        let late = quotas.join(2001, process(2));
        (0..100).for_each(|_| modest.leave());
        assert_eq!(fill(&quotas, &late, &mut { places - 101 }), 101);
    }

    #[test]
    fn peers_that_the_system_does_not_name_are_their_connections() {
        let quotas = CallQuotas::new(12);
        let members = [1, 2, 3].map(|id| quotas.join(id, PeerAddr::Unknown));
        let mut places = 0;
        let found = members
            .each_ref()
            .map(|quota| fill(&quotas, quota, &mut places));
        assert_eq!(found, [8, 2, 2]);
    }
}
