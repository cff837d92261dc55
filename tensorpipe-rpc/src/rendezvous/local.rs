//! The table of this process, behind its lock: what meets here is handed over, without a copy.
//!
//! Invariant: while the lock is held nobody is woken, and no value and no waker is dropped: all of these run code of others.

use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use super::error::{RecvError, SendError};
use super::key::Key;
use super::limits::{Limits, Stats};
use super::service::Hello;
use super::table::{ReceiveMode, Table};
use super::value::Value;
use crate::lock::lock;
use crate::observe::should_log;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) name: Arc<str>,
    pub(super) incarnation: u64,
    /// Makes the numbers of loans.
    secret: RandomState,
    /// Receipts and aborts that changed nothing.
    refused: AtomicU64,
    table: Mutex<Table<Waker>>,
}

impl Local {
    pub(super) fn new(name: Arc<str>, incarnation: u64, limits: Limits) -> Self {
        Self {
            name,
            incarnation,
            secret: RandomState::new(),
            refused: AtomicU64::new(0),
            table: Mutex::new(Table::new(limits)),
        }
    }

    /// Does something to the table, and what follows from it.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut Table<Waker>) -> T) -> T {
        let (result, after) = {
            let mut table = lock(&self.table);
            let result = act(&mut table);
            (result, table.after())
        };
        after.wakes.into_iter().for_each(Waker::wake);
        drop((after.dropped, after.stale));
        result
    }

    /// Who this process is.
    pub(super) fn hello(&self) -> Hello {
        Hello {
            name: self.name.to_string(),
            incarnation: self.incarnation,
        }
    }

    /// The number by which whoever is lent the value of this key speaks of it: nobody else finds it out.
    pub(super) fn loan(&self, key: &Key) -> u64 {
        self.secret.hash_one(key.as_str())
    }

    /// Counts what a peer had no right to say, and warns now and then.
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

    /// Whether this process, as it runs now, makes the values of the key.
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

/// A place at a key, from which the value is received. Dropping it gives it up: a value that is here stays.
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

    /// The value was received elsewhere; an error if it is not wanted any more.
    pub(super) fn claim(&mut self) -> Result<(), RecvError> {
        self.ended = true;
        self.local.with(|table| table.claim(&self.key, self.number))
    }
}

impl Future for Reservation {
    type Output = Result<Value, RecvError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let wake = || cx.waker().clone();
        let polled = self
            .local
            .with(|table| table.poll(&self.key, self.number, wake));
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
