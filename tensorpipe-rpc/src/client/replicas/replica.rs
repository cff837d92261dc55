//! One of several servers: whether it can be called now, or perhaps later, and what it answered for each service.

use std::sync::Arc;

use crate::client::connection::Connection;
use crate::error::{ConnectError, ReplicaError};
use crate::lock::{AtomicBool, AtomicUsize, Notify, Ordering};

/// See the module's documentation.
pub(super) struct Replica {
    /// Which one it is, whoever leaves or joins.
    pub(super) number: usize,
    pub(super) url: Arc<str>,
    pub(super) phase: Phase,
    /// The server's answers to the binds so far, by the service's position in the table.
    pub(super) services: Vec<Result<u32, ConnectError>>,
    pub(super) last_error: Option<ConnectError>,
    /// A warning said that it is not there.
    pub(super) warned: bool,
    /// It is to be connected now, without waiting for the back-off.
    pub(super) reconnect_now: bool,
    /// Wakes its task.
    pub(super) wake: Arc<Notify>,
}

/// The states of a replica's connection.
pub(super) enum Phase {
    Connecting,
    Live(Arc<Live>),
    /// It waits for the next attempt.
    Waiting,
    GivenUp,
    Closed,
}

/// A replica's pipe, as long as it can be called.
pub(in crate::client) struct Live {
    pub(in crate::client) connection: Connection,
    /// It has answered a call, so its server works.
    pub(super) answered: AtomicBool,
    /// It was taken out because it left calls unanswered.
    pub(super) unanswering: AtomicBool,
    /// The pipe before it was taken out for that: the first call on this one decides.
    on_trial: bool,
    /// The calls under way that decide.
    deciding: AtomicUsize,
}

impl Live {
    pub(super) fn new(connection: Connection, on_trial: bool) -> Arc<Self> {
        Arc::new(Self {
            connection,
            answered: AtomicBool::new(false),
            unanswering: AtomicBool::new(false),
            on_trial,
            deciding: AtomicUsize::new(0),
        })
    }

    fn is_on_trial(&self) -> bool {
        self.on_trial && !self.answered.load(Ordering::Relaxed)
    }

    /// Whether it gets no further call before one that is under way has decided.
    pub(super) fn is_undecided(&self) -> bool {
        let decides = || self.deciding.load(Ordering::Relaxed) > 0;
        // The call may have its answer, and nobody looks.
        self.is_on_trial() && decides() && self.connection.calls_in_flight() > 0
    }

    /// How many calls in a row it has left unanswered, if that reaches the limit: `most`, or one while it is on trial.
    pub(super) fn unanswered(&self, most: u32) -> Option<u32> {
        let most = if self.is_on_trial() { 1 } else { most.max(1) };
        let late = self.connection.missed_in_a_row();
        (late >= most).then_some(late)
    }
}

/// The replica of one call, held until that is answered. Calls that are sent once let go at once: they decide nothing, and a stream
/// may last for ever.
pub(in crate::client) struct Picked {
    pub(super) number: usize,
    pub(in crate::client) live: Arc<Live>,
    /// The server's number for the service.
    pub(in crate::client) service: u32,
}

impl Picked {
    pub(super) fn new(number: usize, live: Arc<Live>, service: u32) -> Self {
        if live.on_trial {
            live.deciding.fetch_add(1, Ordering::Relaxed);
        }
        Self {
            number,
            live,
            service,
        }
    }
}

impl Drop for Picked {
    fn drop(&mut self) {
        if self.live.on_trial {
            self.live.deciding.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Replica {
    pub(super) fn new(number: usize, url: Arc<str>) -> Self {
        Self {
            number,
            url,
            phase: Phase::Connecting,
            services: Vec::new(),
            last_error: None,
            warned: false,
            reconnect_now: false,
            wake: Arc::default(),
        }
    }

    pub(super) fn is(&self, live: &Arc<Live>) -> bool {
        matches!(&self.phase, Phase::Live(own) if Arc::ptr_eq(own, live))
    }

    /// Its pipe, and its number for the service, if the service can be called there.
    pub(super) fn serving(&self, service: usize) -> Option<(&Arc<Live>, u32)> {
        match (&self.phase, self.services.get(service)) {
            (Phase::Live(live), Some(Ok(number))) => Some((live, *number)),
            _ => None,
        }
    }

    /// Whether it may serve the service later.
    pub(super) fn may_serve(&self, service: usize) -> bool {
        match &self.phase {
            Phase::Connecting | Phase::Waiting => true,
            Phase::Live(_) => self.services.get(service).is_none_or(Result::is_ok),
            Phase::GivenUp | Phase::Closed => false,
        }
    }

    pub(super) fn error(&self, service: usize) -> ReplicaError {
        let answer = self.services.get(service);
        let refusal = answer.and_then(|answer| answer.as_ref().err());
        ReplicaError {
            url: self.url.clone(),
            error: refusal.or(self.last_error.as_ref()).cloned(),
        }
    }

    /// Changes the phase, unless it is closed: that is final.
    pub(super) fn go_to(&mut self, phase: Phase) -> bool {
        let open = !matches!(self.phase, Phase::Closed);
        if open {
            self.phase = phase;
        }
        open
    }
}
