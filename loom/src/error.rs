//! Stand-ins for errors. In the models only connections to replicas fail.

use std::fmt;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) enum SystemError {}

impl fmt::Display for SystemError {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

/// Why a call failed.
#[derive(Debug, PartialEq)]
pub(crate) struct CallError;

/// Why a replica cannot be called.
#[derive(Clone, Debug)]
pub(crate) enum ConnectError {
    ShuttingDown,
    Unanswered { calls: u32 },
    Unavailable(Arc<[ReplicaError]>),
}

#[derive(Clone, Debug)]
pub(crate) struct ReplicaError {
    pub(crate) url: Arc<str>,
    pub(crate) error: Option<ConnectError>,
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ShuttingDown => f.write_str("it is shutting down"),
            Self::Unanswered { calls } => write!(f, "{calls} calls had no answer"),
            Self::Unavailable(replicas) => write!(f, "none of {} is there", replicas.len()),
        }
    }
}
