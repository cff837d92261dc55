//! What the calls go over: each context has one transport, and every channel.

use std::sync::Arc;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tensorpipe::transports::{ShmTransport, TcpTransport, Transport};
use tensorpipe::{Context, MemoryKind, Pays, Pool, PoolOptions, Threshold};

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
        Ok(Context::builder()
            .transports([transport])
            .threshold("cma", Threshold::new(Pays::From(READ)))
            .threshold(
                "lease",
                Threshold::new(Pays::From(COPIED)).of(MemoryKind::Heap),
            )
            .pool(Pool::new(PoolOptions {
                retain: KEPT,
                ..PoolOptions::default()
            }))
            .build()?)
    }

    /// An address of this process that nobody else has.
    pub(super) fn url(self, place: &str) -> String {
        match self {
            Self::Shm => format!("shm://churn-{}-{place}", std::process::id()),
            Self::Tcp => "tcp://127.0.0.1:0".to_owned(),
        }
    }
}

/// From which size on ordinary memory is read by the other process: so that some of it is, over any transport, and some streamed.
const READ: u64 = 256 << 10;

/// And from which on it is copied for it.
const COPIED: u64 = 512 << 10;

/// What a pool keeps warm between two rests, ordinary memory and lendable memory each: little, so that blocks are given back
/// in the bustle, too.
const KEPT: u64 = 16 << 20;
