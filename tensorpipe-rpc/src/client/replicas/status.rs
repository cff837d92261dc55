//! The status of replicas, as users see it.

use std::sync::Arc;

use tensorpipe::Route;
use tensorpipe::engine::EnginePipe;

use super::replica::{Phase, Replica};
use super::table::Shared;
use crate::error::ConnectError;

/// A replica at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReplicaStatus {
    /// The replica's URL.
    pub url: Arc<str>,
    /// Whether it gets calls.
    pub state: ReplicaState,
    /// Which transport and channels carry its calls. `None` while it is not connected.
    pub route: Option<Arc<Route>>,
    /// Calls of this handle and its clients that wait for its answer.
    pub calls_in_flight: usize,
    /// Why it is not connected: a failed attempt, a loss or a close. For a live one: why it lacks some services.
    pub last_error: Option<ConnectError>,
}

/// Whether a replica gets calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplicaState {
    /// An attempt to connect is under way, or its server has not said yet whether it has the services.
    Connecting,
    /// It is connected, and gets calls.
    Live,
    /// It is not connected; the next attempt comes after a pause.
    Waiting,
    /// It is connected and gets no calls: it has none of the services, or other definitions of them. If another server takes its
    /// place, that one is asked anew.
    Unsuitable,
    /// It could not be reached for too long. [`Replicas::reconnect`](super::Replicas::reconnect) tries again.
    GivenUp,
    /// It was closed by [`Replicas::close`](super::Replicas::close), or the runtime has ended on which the replicas were made.
    Closed,
}

impl Replica {
    /// Its status now. `services` is how many services clients have asked for.
    pub(super) fn status(&self, services: usize) -> ReplicaStatus {
        let (mut calls_in_flight, mut route) = (0, None);
        let state = match &self.phase {
            Phase::Connecting => ReplicaState::Connecting,
            Phase::Live(live) => {
                calls_in_flight = live.connection.calls_in_flight();
                route = Some(live.connection.pipe().shared_route());
                if services == 0 || self.services.iter().any(Result::is_ok) {
                    ReplicaState::Live
                } else if self.services.len() < services {
                    ReplicaState::Connecting
                } else {
                    ReplicaState::Unsuitable
                }
            }
            Phase::Waiting => ReplicaState::Waiting,
            Phase::GivenUp => ReplicaState::GivenUp,
            Phase::Closed => ReplicaState::Closed,
        };
        // Why it was away before no longer matters once it is live.
        let matters = state != ReplicaState::Live || self.services.iter().any(Result::is_err);
        ReplicaStatus {
            url: self.url.clone(),
            state,
            route,
            calls_in_flight,
            last_error: self.last_error.clone().filter(|_| matters),
        }
    }
}

impl Shared {
    /// The status of each replica.
    pub(super) fn status(&self) -> Vec<ReplicaStatus> {
        let table = self.table();
        let services = table.schemas.len();
        let replicas = table.replicas.iter();
        replicas.map(|replica| replica.status(services)).collect()
    }
}
