//! What can be seen of replicas.

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
    /// Where it is.
    pub url: Arc<str>,
    /// Whether it is called.
    pub state: ReplicaState,
    /// Which transport and channels carry its calls. `None` while it is not there.
    pub route: Option<Arc<Route>>,
    /// Calls of these clients that wait for its answer.
    pub calls_under_way: usize,
    /// Why it was not there last, or, of one that is, why it has not all services.
    pub last_error: Option<ConnectError>,
}

/// Whether a replica is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplicaState {
    /// An attempt to connect is under way, or its server has not said yet whether it has the services.
    Connecting,
    /// It is there, and gets calls.
    Live,
    /// It is not there; the next attempt comes after a pause.
    Waiting,
    /// It is there and gets no calls: it has none of the services, or other definitions of them. When another server takes its
    /// place, that one is asked.
    Unsuitable,
    /// It was not there for too long. [`Replicas::reconnect`](super::Replicas::reconnect) tries again.
    GivenUp,
    /// By [`Replicas::close`](super::Replicas::close).
    Closed,
}

impl Replica {
    /// As it is now; `services`: as many are asked for.
    pub(super) fn status(&self, services: usize) -> ReplicaStatus {
        let (mut calls_under_way, mut route) = (0, None);
        let state = match &self.phase {
            Phase::Connecting => ReplicaState::Connecting,
            Phase::Live(live) => {
                calls_under_way = live.connection.calls_under_way();
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
        ReplicaStatus {
            url: self.url.clone(),
            state,
            route,
            calls_under_way,
            last_error: self.last_error.clone(),
        }
    }
}

impl Shared {
    /// What is known of each.
    pub(super) fn status(&self) -> Vec<ReplicaStatus> {
        let table = self.table();
        let services = table.schemas.len();
        let replicas = table.replicas.iter();
        replicas.map(|replica| replica.status(services)).collect()
    }
}
