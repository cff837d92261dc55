//! The service by which other processes receive from this one.
//!
//! The consumer pulls, as in TensorFlow's `RecvTensor`. A value stays with its producer until it is pulled, and then until the
//! consumer confirms it. A value comes with a secret loan number, and a receipt for it repeats the number. The receipt may come
//! over any connection, because the first one may have broken. Other receipts, and aborts of a process that is no
//! [consumer](super::consumers), change nothing.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tensorpipe_macros::tensor_service;

use super::error::{Aborted, RecvError};
use super::key::{Key, KeyError};
use super::local::Local;
use super::table::ReceiveMode;
use super::value::Value;
use crate::context::CallContext;
use crate::error::printable;

/// The calls between two processes.
#[tensor_service(crate = "crate")]
pub(crate) trait TensorRendezvous {
    /// Who is there. The caller says who it is.
    #[rpc(idempotent)]
    async fn hello(&self, from: Hello, cx: &CallContext) -> Hello;

    /// Waits for the value of a key, and lends it.
    async fn pull(&self, key: String) -> Pulled;

    /// The caller has these values: they need not be kept.
    #[rpc(idempotent)]
    async fn received(&self, receipts: Vec<Receipt>, cx: &CallContext) -> ();

    /// The caller's rendezvous was aborted; so is this one.
    #[rpc(idempotent)]
    async fn abort(&self, by: Hello, reason: String, cx: &CallContext) -> ();
}

/// Who is there. As its incarnation a consumer says a number that it tells only to this producer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) name: String,
    pub(crate) incarnation: u64,
}

/// The answer to a pull.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Pulled {
    Lent { value: Value, loan: u64 },
    Refused(Refusal),
}

/// Confirms that a value has arrived.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Receipt {
    pub(crate) key: String,
    /// The number that came with the value.
    pub(crate) loan: u64,
}

/// Why a pull got no value.
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
    WrongPeer {
        name: String,
    },
    /// The key is invalid, for this reason.
    NoKey(String),
    /// The producer has lent so many values whose receipt nobody has confirmed.
    Unconfirmed {
        values: u64,
    },
}

/// The longest text of another process that is kept, in bytes.
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
            RecvError::Unconfirmed { values } => Self::Unconfirmed {
                values: values as u64,
            },
            // A place in this process's table ends with no other error.
            other => Self::NoKey(other.to_string()),
        }
    }
}

/// A text of another process, safe to be shown.
pub(super) fn words(text: &str) -> Arc<str> {
    printable(text.as_bytes(), WORDS).into()
}

/// Serves the values of this process.
pub(super) struct Answers {
    local: Arc<Local>,
}

impl Answers {
    pub(super) fn new(local: Arc<Local>) -> Self {
        Self { local }
    }

    async fn lend(&self, key: &str) -> Result<Pulled, Refusal> {
        let local = &self.local;
        let key: Key = key
            .parse()
            .map_err(|error: KeyError| Refusal::NoKey(error.to_string()))?;
        if key.producer() != &*local.name {
            let name = local.name.to_string();
            return Err(Refusal::WrongPeer { name });
        }
        if key.incarnation() != local.incarnation {
            let now = local.incarnation;
            return Err(Refusal::Restarted { now });
        }
        // The place is given up when the call is cancelled, its deadline passes, or its caller is gone.
        let reserved = local
            .reserve(&key, ReceiveMode::Lend)
            .map_err(Refusal::of)?;
        let value = reserved.await.map_err(Refusal::of)?;
        let loan = local.loan(&key);
        Ok(Pulled::Lent { value, loan })
    }
}

impl TensorRendezvous for Answers {
    async fn hello(&self, from: Hello, cx: &CallContext) -> Hello {
        // Registers the caller now, before anybody else can claim its name: it may have to abort later.
        self.local.consumers.is(&from, &cx.inner.caller);
        self.local.hello()
    }

    async fn pull(&self, key: String) -> Pulled {
        match self.lend(&key).await {
            Ok(lent) => lent,
            Err(refusal) => Pulled::Refused(refusal),
        }
    }

    async fn received(&self, receipts: Vec<Receipt>, cx: &CallContext) {
        let local = &self.local;
        let mut refused = 0;
        let receipts = receipts.into_iter().filter_map(|Receipt { key, loan }| {
            let key: Key = key.parse().ok()?;
            // A receipt for an earlier incarnation is honest, but too late.
            local.check_producer(&key).ok()?;
            let known = loan == local.loan(&key);
            refused += u64::from(!known);
            known.then_some(key)
        });
        let keys: Vec<_> = receipts.collect();
        local.with(|table| {
            for key in &keys {
                table.confirm(key);
            }
        });
        local.refuse(refused, cx.peer());
    }

    async fn abort(&self, by: Hello, reason: String, cx: &CallContext) {
        let aborted = Aborted {
            by: words(&by.name),
            reason: words(&reason),
        };
        let local = &self.local;
        // Kept before the table is asked: a first send to it, at the same time, asks in the other order.
        let heard = local.consumers.abort(&by, &cx.inner.caller, &aborted);
        if heard {
            local.with(|table| table.abort_by(&by.name, &aborted));
        }
        local.refuse(u64::from(!heard), cx.peer());
    }
}
