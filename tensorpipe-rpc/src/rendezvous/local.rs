//! The table of this process, behind its lock. Within the process, values are handed over without a copy.
//!
//! Invariant: while the lock is held, nothing is woken, no waker is cloned, and no value or waker is dropped, because all of these run
//! foreign code.

use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use super::consumers::Consumers;
use super::error::{RecvError, SendError};
use super::key::Key;
use super::limits::{Limits, Stats};
use super::service::Hello;
use super::table::{ReceiveMode, Table};
use super::value::Value;
use crate::caught::wake;
use crate::lock::lock;
use crate::observe::should_log;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) name: Arc<str>,
    pub(super) incarnation: u64,
    /// The secret from which the numbers of loans, and those told to producers, are derived.
    secret: RandomState,
    pub(super) consumers: Consumers,
    /// Counts receipts and aborts that were invalid.
    refused: AtomicU64,
    table: Mutex<Table<Waker>>,
}

impl Local {
    pub(super) fn new(name: Arc<str>, incarnation: u64, limits: Limits) -> Self {
        Self {
            name,
            incarnation,
            secret: RandomState::new(),
            consumers: Consumers::default(),
            refused: AtomicU64::new(0),
            table: Mutex::new(Table::new(limits)),
        }
    }

    /// Changes the table, then does the resulting wakes and drops outside the lock.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut Table<Waker>) -> T) -> T {
        let (result, deferred) = {
            let mut table = lock(&self.table);
            let result = act(&mut table);
            (result, table.take_deferred())
        };
        deferred.wakes.into_iter().for_each(wake);
        drop((deferred.dropped, deferred.stale));
        result
    }

    /// The name and incarnation of this process. Anybody may know them.
    pub(super) fn hello(&self) -> Hello {
        Hello {
            name: self.name.to_string(),
            incarnation: self.incarnation,
        }
    }

    /// What this process says to a producer when it consumes: its name, and a number in place of its incarnation that only this
    /// producer learns. It is the number of no loan, because a producer's name is no key.
    pub(super) fn hello_to(&self, producer: &str) -> Hello {
        Hello {
            name: self.name.to_string(),
            incarnation: self.secret.hash_one(producer),
        }
    }

    /// The number of the loan of this key's value. Only the process that is lent the value learns it.
    pub(super) fn loan(&self, key: &Key) -> u64 {
        self.secret.hash_one(key.as_str())
    }

    /// Counts invalid messages of a peer, and logs a warning now and then.
    pub(super) fn refuse(&self, times: u64, peer: &str) {
        const WHAT: &str = "receipts or aborts of who has no part in them";
        if times > 0 {
            self.refused.fetch_add(times, Ordering::Relaxed);
            if should_log(("refused", WHAT, "")) {
                tracing::warn!(peer, "refused {WHAT}");
            }
        }
    }

    pub(super) fn stats(&self) -> Stats {
        Stats {
            refused: self.refused.load(Ordering::Relaxed),
            ..self.with(|table| table.stats())
        }
    }

    /// Checks that this process, in this incarnation, is the key's producer.
    pub(super) fn check_producer(&self, key: &Key) -> Result<(), SendError> {
        if key.producer() == &*self.name && key.incarnation() == self.incarnation {
            return Ok(());
        }
        Err(SendError::NotProducer {
            key: key.clone(),
            name: self.name.clone(),
            incarnation: self.incarnation,
        })
    }

    /// Sends. If the key's consumer has aborted before anything was sent to it, that counts now.
    pub(super) fn send<T>(
        &self,
        key: &Key,
        send: impl FnOnce(&mut Table<Waker>) -> Result<T, SendError>,
    ) -> Result<T, SendError> {
        self.check_producer(key)?;
        let consumer = key.consumer();
        self.with(|table| {
            if !table.has_sent_to(consumer)
                && let Some(aborted) = self.consumers.aborted(consumer)
            {
                table.abort(&aborted);
            }
            send(table)
        })
    }

    /// Takes a place at a key.
    pub(super) fn reserve(
        self: &Arc<Self>,
        key: &Key,
        give: ReceiveMode,
    ) -> Result<Reservation, RecvError> {
        let number = self.with(|table| table.recv(key, give))?;
        Ok(Reservation {
            local: self.clone(),
            key: key.clone(),
            number,
            ended: false,
        })
    }
}

/// A place at a key, to receive the value. Dropping it gives the place up; a value that is here stays.
#[derive(Debug)]
pub(super) struct Reservation {
    local: Arc<Local>,
    key: Key,
    number: u64,
    ended: bool,
}

impl Reservation {
    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    /// The value was received from elsewhere. An error if it is no longer wanted.
    pub(super) fn claim(&mut self) -> Result<(), RecvError> {
        self.ended = true;
        self.local.with(|table| table.claim(&self.key, self.number))
    }
}

impl Future for Reservation {
    type Output = Result<Value, RecvError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Cloned here, because a waker is somebody else's code: not under the lock.
        let mut wake = Some(cx.waker().clone());
        let polled = self
            .local
            .with(|table| table.poll(&self.key, self.number, &mut wake));
        self.ended = polled.is_ready();
        polled
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.ended {
            self.local
                .with(|table| table.withdraw(&self.key, self.number));
        }
    }
}
