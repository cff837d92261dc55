//! The table of replicas: which can be called, which may be soon, and why the others cannot.
//!
//! One lock guards it, held for short sections. A replica is called only while it is [`Phase::Live`] and has the service. Whichever
//! call or task first finds it gone takes it out. The list of replicas may change at any time: tasks and calls know a replica by its
//! number, which no other one ever has, and what they say of one that has left is dropped.
//!
//! Invariant: nobody wakes or logs under the lock, as wakers and subscribers are the user's code. Whoever changes the table wakes
//! first and logs then, so that a subscriber that panics keeps nobody waiting.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::balance::Balance;
use super::builder::Options;
use super::replica::{Live, Phase, Picked, Replica};
use crate::caught::ignore_panic;
use crate::client::connection::Connection;
use crate::error::{ConnectError, ReplicaError};
use crate::lock::{Mutex, MutexGuard, Notify, Ordering, lock};
use crate::observe::{metrics, should_log};
use crate::schema::Schema;

/// What the handles, calls and tasks of one set of replicas share.
pub(super) struct Shared {
    table: Mutex<Table>,
    /// Wakes calls that wait for a replica: one is live, or none will ever be.
    changed: Notify,
    pub(super) options: Options,
}

pub(super) struct Table {
    /// In the order of their numbers.
    pub(super) replicas: Vec<Replica>,
    next_number: usize,
    /// Why nobody may join any more.
    closed: Option<ConnectError>,
    /// The program has let go of all replicas.
    is_let_go: bool,
    /// The services that clients have asked for. The list only grows, because a service is identified by its position.
    pub(super) schemas: Vec<&'static Schema>,
    /// The turn of each service. With one for all, clients that call in step would each keep to some replicas.
    turns: Vec<usize>,
    /// A warning said that no replica is left.
    warned_none_left: bool,
}

/// A replica that was taken out of the table.
struct Lost {
    url: Arc<str>,
    wake: Arc<Notify>,
    error: ConnectError,
    /// No other one is live.
    is_last: bool,
}

/// How the list of replicas has changed.
pub(super) struct Change {
    /// The numbers of those that have joined.
    pub(super) joined: Vec<usize>,
    pub(super) left: Vec<Replica>,
}

/// Where a call can go.
pub(super) enum Pick {
    Replica(Picked),
    /// Only the replicas that were tried can be called.
    AllTried,
    /// A replica may be live soon.
    NotYet,
    /// All replicas have been given up, or have no such service.
    Unavailable,
}

impl Shared {
    /// No replicas: they [join](Self::change).
    pub(super) fn new(options: Options) -> Self {
        Self {
            table: Mutex::new(Table {
                replicas: Vec::new(),
                next_number: 0,
                closed: None,
                is_let_go: false,
                schemas: Vec::new(),
                turns: Vec::new(),
                warned_none_left: false,
            }),
            changed: Notify::new(),
            options,
        }
    }

    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    /// The position of a service. If it is new, wakes the tasks of live replicas to ask for it.
    pub(super) fn service(&self, schema: &'static Schema) -> usize {
        let (service, tasks) = {
            let mut table = self.table();
            let mut known = table.schemas.iter();
            if let Some(service) = known.position(|known| std::ptr::eq(*known, schema)) {
                return service;
            }
            table.schemas.push(schema);
            table.turns.push(0);
            let replicas = table.replicas.iter();
            let tasks: Vec<_> = replicas.map(|replica| replica.wake.clone()).collect();
            (table.schemas.len() - 1, tasks)
        };
        tasks.iter().for_each(|task| task.notify_one());
        service
    }

    /// Waits until `look` finds something. It looks now, and after each change.
    pub(super) async fn wait_for<T>(&self, look: impl Fn(&Self) -> Option<T>) -> T {
        loop {
            // Registered before the look, so that no change is missed.
            let changed = self.changed.notified();
            if let Some(found) = look(self) {
                return found;
            }
            changed.await;
        }
    }

    /// Picks a replica for a call, other than those in `tried`.
    pub(super) fn pick(&self, service: usize, tried: &[usize]) -> Pick {
        let balance = self.options.balance;
        loop {
            let picked = {
                let mut table = self.table();
                let turn = table.turns[service];
                // Read the loads once: they change meanwhile.
                let loads = |undecided: bool| -> Vec<_> {
                    let load = |replica: &Replica| {
                        let (live, _) = replica.serving(service)?;
                        let fits = undecided || !live.is_undecided();
                        (fits && !tried.contains(&replica.number)).then(|| match balance {
                            Balance::LeastBusy => live.connection.calls_in_flight(),
                            Balance::RoundRobin => 0,
                        })
                    };
                    table.replicas.iter().map(load).collect()
                };
                let picked = balance.pick(turn, &loads(false));
                // A replica that may answer nothing is better than none.
                let picked = picked.or_else(|| balance.pick(turn, &loads(true)));
                let picked = picked.and_then(|index| {
                    let replica = &table.replicas[index];
                    let (live, service) = replica.serving(service)?;
                    Some(Picked::new(replica.number, live.clone(), service))
                });
                let Some(picked) = picked else {
                    return table.without(service);
                };
                table.turns[service] = turn.wrapping_add(1);
                picked
            };
            match picked.live.connection.unavailable_reason() {
                None => return Pick::Replica(picked),
                // Its task has not noticed yet.
                Some(error) => self.mark_lost(picked.number, &picked.live, error),
            }
        }
    }

    /// As [`Shared::pick`], but waits for as long as the answer is [`Pick::NotYet`].
    pub(super) async fn wait_pick(&self, service: usize, tried: &[usize]) -> Pick {
        let look = |shared: &Self| match shared.pick(service, tried) {
            Pick::NotYet => None,
            picked => Some(picked),
        };
        self.wait_for(look).await
    }

    /// A replica that can be called, at all or for this service; an error if none ever will be.
    pub(super) fn find(
        &self,
        service: Option<usize>,
    ) -> Option<Result<(Connection, u32), ConnectError>> {
        let table = self.table();
        let found = table.replicas.iter().find_map(|replica| match service {
            Some(service) => replica.serving(service),
            None => match &replica.phase {
                Phase::Live(live) => Some((live, 0)),
                _ => None,
            },
        });
        let service = service.unwrap_or(usize::MAX);
        match found {
            Some((live, number)) => Some(Ok((live.connection.clone(), number))),
            None if table.replicas.iter().any(|one| one.may_serve(service)) => None,
            None => Some(Err(ConnectError::Unavailable(table.errors(service)))),
        }
    }

    /// Why the live replica with this connection does not have the service.
    pub(super) fn refusal(
        &self,
        service: usize,
        is_it: impl Fn(&Connection) -> bool,
    ) -> Option<ConnectError> {
        let table = self.table();
        let mut replicas = table.replicas.iter();
        let replica = replicas.find(
            |replica| matches!(&replica.phase, Phase::Live(live) if is_it(&live.connection)),
        )?;
        replica.services.get(service)?.as_ref().err().cloned()
    }

    /// Each replica's last error.
    pub(super) fn errors(&self, service: usize) -> Arc<[ReplicaError]> {
        self.table().errors(service)
    }

    /// The replica gets no more calls. Calls under way keep its pipe.
    pub(super) fn mark_lost(&self, number: usize, live: &Arc<Live>, error: ConnectError) {
        let lost = self.table().mark_lost(number, live, error);
        if let Some(lost) = lost {
            self.tell(lost);
        }
    }

    /// A call had no answer within its deadline. A replica that answers no calls is taken out, but only if another one has the
    /// service: otherwise the calls would have nowhere to go.
    pub(super) fn missed_deadline(&self, number: usize, live: &Arc<Live>, service: usize) {
        let Some(calls) = live.unanswered(self.options.unanswered) else {
            return;
        };
        let lost = {
            let mut table = self.table();
            let mut replicas = table.replicas.iter();
            let has_other = table.find(number).is_some_and(|one| one.is(live))
                && replicas.any(|one| one.number != number && one.serving(service).is_some());
            if !has_other {
                return;
            }
            live.unanswering.store(true, Ordering::Relaxed);
            table.mark_lost(number, live, ConnectError::Unanswered { calls })
        };
        if let Some(lost) = lost {
            self.tell(lost);
        }
    }

    /// All replicas that are not live are tried now, also those that were given up.
    pub(super) fn reconnect_all(&self) {
        let mut tasks = Vec::new();
        for replica in &mut self.table().replicas {
            if matches!(replica.phase, Phase::Waiting | Phase::GivenUp) {
                replica.reconnect_now = true;
                tasks.push(replica.wake.clone());
            }
        }
        tasks.iter().for_each(|task| task.notify_one());
    }

    /// Closes all replicas, with this error. Returns the connections that there were.
    pub(super) fn close(&self, error: &ConnectError) -> Vec<Connection> {
        let mut connections = Vec::new();
        {
            let mut table = self.table();
            table.closed = Some(error.clone());
            for replica in &mut table.replicas {
                if let Phase::Live(live) = std::mem::replace(&mut replica.phase, Phase::Closed) {
                    connections.push(live.connection.clone());
                }
                replica.last_error = Some(error.clone());
            }
        }
        ignore_panic(|| self.changed.notify_waiters());
        connections
    }

    pub(super) fn is_closed(&self) -> bool {
        self.table().closed.is_some()
    }

    /// From now on these are the replicas. One that is named as before stays as it is. The caller starts the tasks of those that have
    /// joined, ends those of the others, and [tells](Self::tell_left) that they have left.
    pub(super) fn change(&self, urls: &[Arc<str>]) -> Result<Change, ConnectError> {
        let mut table = self.table();
        if let Some(closed) = &table.closed {
            return Err(closed.clone());
        }
        // A URL may be named several times.
        let mut wanted = FxHashMap::<&str, usize>::default();
        for url in urls {
            *wanted.entry(url).or_default() += 1;
        }
        let mut is_wanted = |url: &str| {
            let count = wanted.get_mut(url).filter(|count| **count > 0);
            count.map(|count| *count -= 1).is_some()
        };
        // Of several at one URL, those that are live stay.
        let mut stay = vec![false; table.replicas.len()];
        for live_ones in [true, false] {
            for (stays, replica) in stay.iter_mut().zip(&table.replicas) {
                if matches!(replica.phase, Phase::Live(_)) == live_ones {
                    *stays = is_wanted(&replica.url);
                }
            }
        }
        let mut stay = stay.into_iter();
        let left = (table.replicas).extract_if(.., |_| stay.next() == Some(false));
        let left = left.collect();
        let mut joined = Vec::new();
        for url in urls.iter().filter(|url| is_wanted(url)) {
            let number = table.next_number;
            table.next_number += 1;
            table.replicas.push(Replica::new(number, url.clone()));
            joined.push(number);
        }
        Ok(Change { joined, left })
    }

    /// Tells of replicas that have left. They get no more calls; those under way keep their pipes.
    pub(super) fn tell_left(&self, left: Vec<Replica>) {
        // Who waits for one of them may wait in vain.
        ignore_panic(|| self.changed.notify_waiters());
        for replica in left {
            replica.wake.notify_one();
            let url = &replica.url;
            ignore_panic(|| tracing::info!(%url, "a replica is named no more"));
        }
    }
}

/// The calls that a replica's task makes.
impl Shared {
    /// Its URL, and what wakes its task.
    pub(super) fn url(&self, number: usize) -> Option<(Arc<str>, Arc<Notify>)> {
        let table = self.table();
        let replica = table.find(number)?;
        Some((replica.url.clone(), replica.wake.clone()))
    }

    /// `false` if the replica has left or is closed: its task has nothing more to do.
    pub(super) fn connecting(&self, number: usize) -> bool {
        let mut table = self.table();
        let Some(replica) = table.find_mut(number) else {
            return false;
        };
        replica.reconnect_now = false;
        replica.go_to(Phase::Connecting)
    }

    /// The replica's pipe is connected.
    pub(super) fn connected(&self, number: usize, live: &Arc<Live>) {
        let (url, warned) = {
            let mut table = self.table();
            let none_left = table.warned_none_left;
            let Some(replica) = table.find_mut(number) else {
                return;
            };
            replica.services.clear();
            if !replica.go_to(Phase::Live(live.clone())) {
                return;
            }
            let warned = std::mem::take(&mut replica.warned) || none_left;
            let url = replica.url.clone();
            table.warned_none_left = false;
            (url, warned)
        };
        ignore_panic(|| self.changed.notify_waiters());
        metrics::replica_connected();
        let pipe = live.connection.pipe().name();
        ignore_panic(|| match warned {
            // A log of warnings must not end with one that is over.
            true => tracing::warn!(%url, pipe, "a replica is there again"),
            false => tracing::info!(%url, pipe, "a replica is there"),
        });
    }

    /// Whether `live` is still the replica's pipe.
    pub(super) fn is_live(&self, number: usize, live: &Arc<Live>) -> bool {
        let table = self.table();
        table.find(number).is_some_and(|replica| replica.is(live))
    }

    /// A service that the replica has not been asked for yet.
    pub(super) fn next_unbound(&self, number: usize, live: &Arc<Live>) -> Option<&'static Schema> {
        let table = self.table();
        let replica = table.find(number)?;
        let next = table.schemas.get(replica.services.len());
        next.copied().filter(|_| replica.is(live))
    }

    /// The replica's answer to a bind of the service that [`Shared::next_unbound`] gave.
    pub(super) fn record_bind(
        &self,
        number: usize,
        live: &Arc<Live>,
        answer: Result<u32, ConnectError>,
    ) {
        let refusal = answer.as_ref().err().cloned();
        let url = {
            let mut table = self.table();
            let Some(replica) = table.find_mut(number).filter(|replica| replica.is(live)) else {
                return;
            };
            if refusal.is_some() {
                replica.last_error.clone_from(&refusal);
            }
            replica.services.push(answer);
            replica.url.clone()
        };
        ignore_panic(|| self.changed.notify_waiters());
        if let Some(error) = refusal {
            ignore_panic(|| tracing::warn!(%url, %error, "a replica is not suitable"));
        }
    }

    /// The replica could not be asked, and will be again.
    pub(super) fn put_off(&self, number: usize, live: &Arc<Live>, error: ConnectError) {
        let mut table = self.table();
        if let Some(replica) = table.find_mut(number).filter(|replica| replica.is(live)) {
            replica.last_error = Some(error);
        }
    }

    /// An attempt to connect failed. `warns` if that has gone on for a while.
    pub(super) fn failed(&self, number: usize, error: ConnectError, warns: bool) {
        let url = {
            let mut table = self.table();
            let Some(replica) = table.find_mut(number) else {
                return;
            };
            if replica.go_to(Phase::Waiting) {
                replica.last_error = Some(error.clone());
            }
            replica.warned |= warns;
            replica.url.clone()
        };
        ignore_panic(|| match warns {
            true => tracing::warn!(%url, %error, "a replica is not there"),
            false => tracing::debug!(%url, %error, "a replica is not there"),
        });
    }

    pub(super) fn given_up(&self, number: usize) {
        let (url, error) = {
            let mut table = self.table();
            let Some(replica) = table.find_mut(number) else {
                return;
            };
            replica.go_to(Phase::GivenUp);
            replica.warned = true;
            (replica.url.clone(), replica.last_error.clone())
        };
        ignore_panic(|| self.changed.notify_waiters());
        let error = error.as_ref().map(tracing::field::display);
        ignore_panic(|| tracing::warn!(%url, error, "a replica is given up"));
    }

    /// The tasks of all replicas are about to be ended: those that are live are let go of, not lost.
    pub(super) fn let_go(&self) {
        self.table().is_let_go = true;
    }

    /// The replica's task has ended, and nobody connects it again.
    pub(super) fn forsaken(&self, number: usize, error: ConnectError) {
        let (before, is_lost) = {
            let mut table = self.table();
            let is_lost = !table.is_let_go;
            let Some(replica) = table.find_mut(number) else {
                return;
            };
            if !matches!(replica.phase, Phase::Closed) {
                replica.last_error = Some(error);
            }
            (
                std::mem::replace(&mut replica.phase, Phase::Closed),
                is_lost,
            )
        };
        ignore_panic(|| self.changed.notify_waiters());
        if let Phase::Live(live) = before {
            if is_lost {
                metrics::replica_lost();
            }
            // Perhaps the last handle of its pipe, which closes. Not under the lock.
            drop(live);
        }
    }

    pub(super) fn should_reconnect_now(&self, number: usize) -> bool {
        let table = self.table();
        table
            .find(number)
            .is_some_and(|replica| replica.reconnect_now)
    }

    /// Wakes the task of a replica that is gone, and logs the loss.
    fn tell(&self, lost: Lost) {
        lost.wake.notify_one();
        metrics::replica_lost();
        let Lost { url, error, .. } = lost;
        let warns = lost.is_last
            && should_log(("no replica is left", "", ""))
            && self.table().warn_none_left();
        ignore_panic(|| match warns {
            true => tracing::warn!(%url, %error, "the last replica is gone: no call can be made"),
            false => tracing::info!(%url, %error, "a replica is gone"),
        });
    }
}

impl Table {
    /// `None` if it has left.
    fn find(&self, number: usize) -> Option<&Replica> {
        let at = self
            .replicas
            .binary_search_by_key(&number, |one| one.number);
        at.ok().map(|at| &self.replicas[at])
    }

    fn find_mut(&mut self, number: usize) -> Option<&mut Replica> {
        let at = self
            .replicas
            .binary_search_by_key(&number, |one| one.number);
        at.ok().map(|at| &mut self.replicas[at])
    }

    /// `None` if that was done before. The caller tells of what it returns once it has released the lock.
    fn mark_lost(&mut self, number: usize, live: &Arc<Live>, error: ConnectError) -> Option<Lost> {
        let replica = self.find_mut(number).filter(|replica| replica.is(live))?;
        replica.phase = Phase::Waiting;
        replica.services.clear();
        replica.last_error = Some(error.clone());
        let (url, wake) = (replica.url.clone(), replica.wake.clone());
        Some(Lost {
            url,
            wake,
            error,
            is_last: self.none_live(),
        })
    }

    fn none_live(&self) -> bool {
        let mut replicas = self.replicas.iter();
        !replicas.any(|one| matches!(one.phase, Phase::Live(_)))
    }

    /// Whether to warn that no replica is left. If so, the next one to be there is worth a warning, too.
    fn warn_none_left(&mut self) -> bool {
        let warns = self.none_live();
        self.warned_none_left |= warns;
        warns
    }

    /// Why no replica was picked.
    fn without(&self, service: usize) -> Pick {
        let mut replicas = self.replicas.iter();
        if replicas.clone().any(|one| one.serving(service).is_some()) {
            Pick::AllTried
        } else if replicas.any(|one| one.may_serve(service)) {
            Pick::NotYet
        } else {
            Pick::Unavailable
        }
    }

    fn errors(&self, service: usize) -> Arc<[ReplicaError]> {
        let replicas = self.replicas.iter();
        replicas.map(|one| one.error(service)).collect()
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
