//! What the calls go over: each context has one transport, and every channel.

use std::sync::Arc;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tensorpipe::Context;
use tensorpipe::transports::{ShmTransport, TcpTransport, Transport};

/// A transport between processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Road {
    Shm,
    Tcp,
}

pub(super) const ALL: [Road; 2] = [Road::Shm, Road::Tcp];

impl Road {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        }
    }

    pub(super) fn context(self) -> Result<Context> {
        let transport: Arc<dyn Transport> = match self {
            Self::Shm => Arc::new(ShmTransport::new()),
            Self::Tcp => Arc::new(TcpTransport::new()),
        };
        Ok(Context::builder().transports([transport]).build()?)
    }

    /// An address of this process that nobody else has.
    pub(super) fn url(self, place: &str) -> String {
        match self {
            Self::Shm => format!("shm://churn-{}-{place}", std::process::id()),
            Self::Tcp => "tcp://127.0.0.1:0".to_owned(),
        }
    }
}
