//! What was carried, how things ended, what went wrong, and who is still talking.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tensorpipe::{Error, Route};
use tokio::sync::watch;

use super::parcel::judge;

/// Shared by everybody who talks.
#[derive(Clone, Debug)]
pub(super) struct Book {
    inner: Arc<Mutex<Inner>>,
    talking: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Inner {
    ways: BTreeMap<String, Carried>,
    endings: BTreeMap<&'static str, u64>,
    faults: Vec<String>,
    talking: BTreeMap<u64, String>,
    talks: u64,
}

/// What one way has carried to this process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Carried {
    pub(crate) pipes: u64,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// Tensors and payloads that the way's own channel was given here.
    pub(crate) given: u64,
    /// Why this machine does not have that channel.
    pub(crate) refused: Option<String>,
}

/// The outcome of a soak.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) case: &'static str,
    pub(crate) seed: u64,
    pub(crate) kills: u32,
    pub(crate) seconds: f64,
    pub(crate) ways: BTreeMap<String, Carried>,
    /// How operations ended that did not succeed.
    pub(crate) endings: BTreeMap<&'static str, u64>,
    /// The longest that it took after a kill until nothing of the peer was left.
    pub(crate) longest_recovery_ms: f64,
    /// Private memory after the first kills, and at the end.
    pub(crate) anon_kib: (u64, u64),
}

impl Book {
    pub(super) fn new() -> Self {
        Self {
            inner: Arc::default(),
            talking: watch::Sender::new(0),
        }
    }

    /// Somebody talks over `way` until the guard is dropped.
    pub(super) fn begin(&self, way: &str) -> Talking {
        let mut inner = self.lock();
        inner.talks += 1;
        let number = inner.talks;
        inner.talking.insert(number, way.to_owned());
        drop(inner);
        self.talking.send_modify(|count| *count += 1);
        Talking {
            book: self.clone(),
            number,
        }
    }

    /// A pipe was opened.
    pub(super) fn opened(&self, way: &str) {
        self.carried(way, |carried| carried.pipes += 1);
    }

    /// A message was read and is right.
    pub(super) fn read(&self, way: &str, bytes: u64) {
        self.carried(way, |carried| {
            carried.messages += 1;
            carried.bytes += bytes;
        });
    }

    /// A pipe of the way has done what it did, which `channel` should have carried.
    pub(super) fn went(&self, way: &str, channel: &str, route: &Route) {
        let mut used = route.channels.iter().filter(|used| used.name == channel);
        let used = used.next().map(|used| used.carried.parts());
        let candidate = format!("channel {channel}");
        let mut refused = route.refused.iter();
        let refused = refused.find(|refusal| refusal.candidate == candidate);
        self.carried(way, |carried| {
            carried.given += used.unwrap_or_default();
            carried.refused = refused.map(|refusal| refusal.reason.clone());
        });
    }

    /// Something ended with an error, which is a fault unless a peer that was killed explains it.
    pub(super) fn ended(&self, way: &str, what: &str, error: &Error) {
        let (kind, expected) = judge(error);
        *self.lock().endings.entry(kind).or_default() += 1;
        if !expected {
            self.fault(format!("{way}: {what}: {error}"));
        }
    }

    /// Something is wrong.
    pub(super) fn fault(&self, what: String) {
        self.lock().faults.push(what);
    }

    pub(super) fn faults(&self) -> Vec<String> {
        self.lock().faults.clone()
    }

    /// Waits until nobody talks any more.
    pub(super) async fn silence(&self) {
        let mut talking = self.talking.subscribe();
        // The sender is here.
        let _ = talking.wait_for(|count| *count == 0).await;
    }

    /// Over which ways somebody still talks.
    pub(super) fn still_talking(&self) -> Vec<String> {
        self.lock().talking.values().cloned().collect()
    }

    pub(super) fn ways(&self) -> BTreeMap<String, Carried> {
        self.lock().ways.clone()
    }

    pub(super) fn endings(&self) -> BTreeMap<&'static str, u64> {
        self.lock().endings.clone()
    }

    fn carried(&self, way: &str, change: impl FnOnce(&mut Carried)) {
        let mut inner = self.lock();
        match inner.ways.get_mut(way) {
            Some(carried) => change(carried),
            None => change(inner.ways.entry(way.to_owned()).or_default()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody who talks.
#[derive(Debug)]
pub(super) struct Talking {
    book: Book,
    number: u64,
}

impl Drop for Talking {
    fn drop(&mut self) {
        self.book.lock().talking.remove(&self.number);
        self.book.talking.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use tensorpipe::Misuse;

    use super::*;

    #[test]
    fn an_end_that_nobody_explains_is_a_fault() {
        let book = Book::new();
        let pipe = Arc::from("pipe");
        let by_peer = true;
        book.ended("shm", "read", &Error::Closed { pipe, by_peer });
        assert!(book.faults().is_empty());
        book.ended("shm", "read", &Misuse::NoRuntime.into());
        assert!(book.faults()[0].starts_with("shm: read: no tokio runtime"));
        assert_eq!(book.endings().len(), 2);
    }

    #[tokio::test]
    async fn silence_comes_with_the_last_guard() {
        let book = Book::new();
        let talking = book.begin("shm");
        assert_eq!(book.still_talking(), ["shm"]);
        let waited = tokio::spawn({
            let book = book.clone();
            async move { book.silence().await }
        });
        tokio::task::yield_now().await;
        assert!(!waited.is_finished());
        drop(talking);
        waited.await.expect("it does not panic");
        assert!(book.still_talking().is_empty());
    }
}
