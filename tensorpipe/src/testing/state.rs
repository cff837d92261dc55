//! The state of a network: hosts, links, and listeners.
//!
//! Invariant: no waker is woken while the state is locked; [`Shared::with`] wakes them afterwards.

mod ends;

use std::collections::{BTreeMap, VecDeque};
use std::io::{Error, ErrorKind, Result};
use std::task::{Poll, Waker};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::Instant;

pub(super) use self::ends::Read;
use self::ends::{End, Piece};
use super::{Event, Host};
use crate::ambient::Chance;
use crate::sync::{Mutex, lock};

/// Connections that may wait to be accepted at one address.
const BACKLOG: usize = 128;

/// The longest delay: the clock cannot count to any.
const LONGEST_DELAY: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// The first port that is assigned to a request for port 0.
const FIRST_PORT: u16 = 49152;

#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Notified when a link or a host changes.
    pub(super) changed: Notify,
}

#[derive(Debug)]
pub(super) struct State {
    begun: Instant,
    /// The last time that was told. Outside of the runtime whose clock is virtual, tokio shows another one.
    latest: Duration,
    chance: Chance,
    hosts: Vec<HostState>,
    ways: BTreeMap<(usize, usize), Way>,
    listeners: BTreeMap<String, Listening>,
    connections: BTreeMap<u64, [End; 2]>,
    made: u64,
    pub(super) trace: Vec<Event>,
    wakes: Vec<Waker>,
}

#[derive(Debug)]
struct HostState {
    name: String,
    /// How often it has crashed.
    life: u64,
    crashed: bool,
    tasks: Vec<AbortHandle>,
}

/// One direction between two hosts.
#[derive(Debug, Default)]
pub(super) struct Way {
    pub(super) delay: Duration,
    pub(super) jitter: Duration,
    pub(super) stalled: bool,
    pub(super) cut_after: Option<u64>,
}

#[derive(Debug)]
struct Listening {
    host: usize,
    /// Connections that were not accepted yet.
    waiting: VecDeque<u64>,
    waker: Option<Waker>,
}

impl Shared {
    pub(super) fn new(seed: u64) -> Self {
        let state = State {
            begun: Instant::now(),
            latest: Duration::ZERO,
            chance: Chance(!seed),
            hosts: Vec::new(),
            ways: BTreeMap::new(),
            listeners: BTreeMap::new(),
            connections: BTreeMap::new(),
            made: 0,
            trace: Vec::new(),
            wakes: Vec::new(),
        };
        Self {
            state: Mutex::new(state),
            changed: Notify::new(),
        }
    }

    pub(super) fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = lock(&self.state);
        let result = act(&mut state);
        let wakes = std::mem::take(&mut state.wakes);
        drop(state);
        wakes.into_iter().for_each(Waker::wake);
        result
    }

    /// Waits as long as a byte takes from one host to another: for ever, while the link stalls.
    pub(super) async fn cross(&self, from: usize, to: usize) {
        let mut due = self.with(|state| state.due(from, to));
        loop {
            tokio::time::sleep_until(due).await;
            let changed = self.changed.notified();
            if !self.with(|state| state.way(from, to).stalled) {
                return;
            }
            changed.await;
            due = Instant::now();
        }
    }
}

impl State {
    pub(super) fn elapsed(&mut self) -> Duration {
        self.latest = self.latest.max(self.begun.elapsed());
        self.latest
    }

    pub(super) fn tell(&mut self, what: String) {
        let at = self.elapsed();
        self.trace.push(Event { at, what });
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.hosts.iter().position(|host| host.name == name)
    }

    pub(super) fn number(&self, name: &str) -> usize {
        let found = self.find(name);
        found.unwrap_or_else(|| panic!("no host of this network is called {name:?}"))
    }

    /// The host's number, and the number of its current life.
    pub(super) fn start(&mut self, name: &str) -> (usize, u64) {
        let number = self.find(name).unwrap_or_else(|| {
            self.hosts.push(HostState {
                name: name.to_owned(),
                life: 0,
                crashed: false,
                tasks: Vec::new(),
            });
            self.hosts.len() - 1
        });
        let host = &mut self.hosts[number];
        if std::mem::take(&mut host.crashed) {
            host.life += 1;
            self.tell(format!("{name} starts again"));
        }
        (number, self.hosts[number].life)
    }

    pub(super) fn adopt<T>(&mut self, host: &Host, task: &JoinHandle<T>) -> bool {
        let lives = self.lives(host);
        if lives {
            let tasks = &mut self.hosts[host.number].tasks;
            tasks.retain(|task| !task.is_finished());
            tasks.push(task.abort_handle());
        }
        lives
    }

    pub(super) fn lives(&self, host: &Host) -> bool {
        let state = &self.hosts[host.number];
        state.life == host.life && !state.crashed
    }

    pub(super) fn change(
        &mut self,
        from: usize,
        to: usize,
        what: &str,
        change: impl FnOnce(&mut Way),
    ) {
        change(self.ways.entry((from, to)).or_default());
        let (from, to) = (&self.hosts[from].name, &self.hosts[to].name);
        self.tell(format!("link {from} -> {to}: {what}"));
        // Every waiter checks what the change means for it.
        for end in self.connections.values_mut().flatten() {
            self.wakes.extend(end.reader.take());
            self.wakes.extend(end.writer.take());
        }
    }

    pub(super) fn crash(&mut self, name: &str) -> Vec<AbortHandle> {
        let number = self.number(name);
        self.tell(format!("{name} crashes"));
        self.hosts[number].crashed = true;
        let numbers: Vec<u64> = self.connections.keys().copied().collect();
        for (id, side) in numbers.into_iter().flat_map(|id| [(id, 0), (id, 1)]) {
            let (own, _) = self.ends(id, side);
            if own.host == number && !own.dead {
                own.dead = true;
                let woken = [own.reader.take(), own.writer.take()];
                self.wakes.extend(woken.into_iter().flatten());
                self.leave(id, side, Piece::Reset);
            }
        }
        // Nobody has a handle on connections that were not accepted.
        let listeners = std::mem::take(&mut self.listeners).into_iter();
        let (gone, others) = listeners.partition(|(_, listening)| listening.host == number);
        self.listeners = others;
        let gone: BTreeMap<String, Listening> = gone;
        for id in gone.into_values().flat_map(|listening| listening.waiting) {
            self.drop_end(id, 1);
        }
        std::mem::take(&mut self.hosts[number].tasks)
    }

    fn way(&mut self, from: usize, to: usize) -> &mut Way {
        self.ways.entry((from, to)).or_default()
    }

    /// When bytes that are sent now arrive.
    fn due(&mut self, from: usize, to: usize) -> Instant {
        let chance = self.chance.number();
        let way = self.way(from, to);
        let part = (chance >> 11) as f64 / (1u64 << 53) as f64;
        let takes = way.delay.saturating_add(way.jitter.mul_f64(part));
        Instant::now() + takes.min(LONGEST_DELAY)
    }

    /// Listens there. Returns the address.
    pub(super) fn listen(&mut self, host: &Host, port: u16) -> Result<String> {
        self.check(host)?;
        let address = |port: u16| format!("{}:{port}", host.name);
        let is_free = |port: &u16| !self.listeners.contains_key(&address(*port));
        let port = match port {
            0 => (FIRST_PORT..=u16::MAX).find(is_free),
            port => Some(port).filter(is_free),
        };
        let port = port.ok_or(ErrorKind::AddrInUse)?;
        let listening = Listening {
            host: host.number,
            waiting: VecDeque::new(),
            waker: None,
        };
        self.listeners.insert(address(port), listening);
        Ok(address(port))
    }

    pub(super) fn stop_listening(&mut self, host: &Host, address: &str) {
        if self.lives(host) {
            let stopped = self.listeners.remove(address);
            // Nobody will accept these any more.
            for id in stopped.into_iter().flat_map(|stopped| stopped.waiting) {
                self.drop_end(id, 1);
            }
        }
    }

    pub(super) fn check(&self, host: &Host) -> Result<()> {
        match self.lives(host) {
            true => Ok(()),
            false => Err(Error::other(format!("host {} has crashed", host.name))),
        }
    }

    /// The host of an address.
    pub(super) fn resolve(&self, address: &str) -> Result<usize> {
        let host = address
            .rsplit_once(':')
            .and_then(|(name, _)| self.find(name));
        host.ok_or_else(|| Error::new(ErrorKind::NotFound, "the network has no such host"))
    }

    /// Opens a connection to the listener there.
    pub(super) fn open(&mut self, from: usize, address: &str) -> Result<u64> {
        let name = self.hosts[from].name.clone();
        let listening = self.listeners.get_mut(address);
        let listening = listening.filter(|listening| listening.waiting.len() < BACKLOG);
        let Some(listening) = listening else {
            self.tell(format!("{name} -> {address}: refused"));
            let why = "nobody listens there, or too many wait to be accepted";
            return Err(Error::new(ErrorKind::ConnectionRefused, why));
        };
        self.made += 1;
        let id = self.made;
        listening.waiting.push_back(id);
        self.wakes.extend(listening.waker.take());
        let ends = [from, listening.host].map(End::new);
        self.connections.insert(id, ends);
        self.tell(format!("{id} {name} -> {address}: connected"));
        Ok(id)
    }

    pub(super) fn poll_accept(
        &mut self,
        host: &Host,
        address: &str,
        waker: &Waker,
    ) -> Poll<(u64, usize)> {
        // After a crash, another life may listen there.
        let lives = self.lives(host);
        let listening = self.listeners.get_mut(address).filter(|_| lives);
        // A crash is not reported here: nobody is left to hear of it.
        let Some(listening) = listening else {
            return Poll::Pending;
        };
        let Some(id) = listening.waiting.pop_front() else {
            listening.waker = Some(waker.clone());
            return Poll::Pending;
        };
        Poll::Ready((id, self.connections[&id][0].host))
    }

    /// The name of a host.
    pub(super) fn name(&self, host: usize) -> &str {
        &self.hosts[host].name
    }
}
