//! What a process serves to those who receive from it.
//!
//! As TensorFlow's `RecvTensor`, the consumer pulls: a value stays with its producer until somebody asks for it, and from there
//! until whoever asked says that it has it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tensorpipe_macros::tensor_service;

use super::error::{Aborted, RecvError};
use super::key::{Key, KeyError};
use super::local::Local;
use super::table::Give;
use super::value::Value;

/// The calls between two processes.
#[tensor_service(crate = "crate")]
pub(crate) trait TensorRendezvous {
    /// Who is there.
    #[rpc(idempotent)]
    async fn hello(&self) -> Hello;

    /// Waits for the value of a key, and lends it.
    async fn pull(&self, key: String) -> Pulled;

    /// The caller has these values: they need not be kept.
    #[rpc(idempotent)]
    async fn received(&self, keys: Vec<String>) -> ();

    /// The caller's rendezvous was aborted; so is this one.
    #[rpc(idempotent)]
    async fn abort(&self, by: String, reason: String) -> ();
}

/// Who is at the other end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) name: String,
    pub(crate) incarnation: u64,
}

/// What comes of a pull.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Pulled {
    Value(Value),
    Refused(Refusal),
}

/// Why there is no value.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Refusal {
    Aborted {
        by: String,
        reason: String,
    },
    Finished,
    Awaited,
    Received,
    Restarted {
        now: u64,
    },
    Stranger {
        name: String,
    },
    /// The key makes no sense, in these words.
    NoKey(String),
}

/// The longest words of another process that are kept, in characters.
const WORDS: usize = 4096;

impl Refusal {
    fn of(error: RecvError) -> Self {
        match error {
            RecvError::Aborted(Aborted { by, reason }) => Self::Aborted {
                by: by.to_string(),
                reason: reason.to_string(),
            },
            RecvError::Finished { .. } => Self::Finished,
            RecvError::Awaited(_) => Self::Awaited,
            RecvError::Received(_) => Self::Received,
            // A place at the table of this process ends with nothing else.
            other => Self::NoKey(other.to_string()),
        }
    }
}

/// The words of another process, to be shown: shortened, without what moves the cursor of a terminal.
pub(super) fn words(text: &str) -> Arc<str> {
    let mut shown = String::new();
    for c in text.chars().take(WORDS) {
        match c {
            '\n' | '\t' => shown.push(c),
            c if c.is_control() => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown.into()
}

/// Serves the values of this process.
#[derive(Debug)]
pub(super) struct Desk(pub(super) Arc<Local>);

impl Desk {
    async fn lend(&self, key: &str) -> Result<Value, Refusal> {
        let local = &self.0;
        let key: Key = key
            .parse()
            .map_err(|error: KeyError| Refusal::NoKey(error.to_string()))?;
        if key.producer() != &*local.name {
            let name = local.name.to_string();
            return Err(Refusal::Stranger { name });
        }
        if key.incarnation() != local.incarnation {
            let now = local.incarnation;
            return Err(Refusal::Restarted { now });
        }
        // Gives its place up when the call is cancelled, its deadline passes, or its caller is gone.
        let placed = local.place(&key, Give::Lend).map_err(Refusal::of)?;
        placed.await.map_err(Refusal::of)
    }
}

impl TensorRendezvous for Desk {
    async fn hello(&self) -> Hello {
        Hello {
            name: self.0.name.to_string(),
            incarnation: self.0.incarnation,
        }
    }

    async fn pull(&self, key: String) -> Pulled {
        match self.lend(&key).await {
            Ok(value) => Pulled::Value(value),
            Err(refusal) => Pulled::Refused(refusal),
        }
    }

    async fn received(&self, keys: Vec<String>) {
        let keys = keys.iter().filter_map(|key| key.parse::<Key>().ok());
        let keys: Vec<_> = keys.collect();
        self.0.with(|table| {
            for key in &keys {
                table.confirm(key);
            }
        });
    }

    async fn abort(&self, by: String, reason: String) {
        let (by, reason) = (words(&by), words(&reason));
        self.0.with(|table| table.abort(&Aborted { by, reason }));
    }
}
