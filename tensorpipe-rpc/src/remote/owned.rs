//! The owner's end: values that the other end of a connection refers to, and future results of calls under way.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex};

use rustc_hash::FxHashMap;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;

use super::Id;
use crate::caught::drop_quietly;
use crate::codec::Reply;
use crate::lock::lock;
use crate::observe::metrics;

/// A value that the other end may refer to.
pub(crate) trait Referent: Send + Sync {
    fn value(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;

    /// A copy of the value, for a fetch. `None` if it does not travel.
    fn fetched(&self) -> Option<Reply>;
}

impl fmt::Debug for dyn Referent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Referent")
    }
}

/// A value that can be fetched.
pub(super) struct Fetched<T>(pub(super) Arc<T>);

/// A value that cannot be fetched.
pub(super) struct Fixed<T>(pub(super) Arc<T>);

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> Referent for Fetched<T> {
    fn value(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self.0.clone()
    }

    fn fetched(&self) -> Option<Reply> {
        Some(Reply::of(&*self.0))
    }
}

impl<T: Send + Sync + 'static> Referent for Fixed<T> {
    fn value(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self.0.clone()
    }

    fn fetched(&self) -> Option<Reply> {
        None
    }
}

/// The values that one connection's peer refers to.
#[derive(Default)]
pub(crate) struct Owned {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// Values, by the call whose reply gave them away.
    values: FxHashMap<u64, Given>,
    /// The number of values.
    count: usize,
    /// Calls under way whose results later calls may already refer to.
    pending: FxHashMap<u64, Promised>,
    closed: bool,
}

/// The values that one reply gave away.
struct Given {
    values: Vec<Option<Arc<dyn Referent>>>,
    /// How many are left. Without it, each release would scan all values: quadratic in their number.
    left: usize,
}

/// The result of a call under way.
#[derive(Default)]
struct Promised {
    /// Wakes those who wait for the call, once it is out of the table.
    ended: Arc<Notify>,
    /// The peer has released the result already.
    unwanted: bool,
}

/// A call under way whose result later calls may already refer to. Dropped when the call has ended.
pub(crate) struct Pending {
    owned: Arc<Owned>,
    call: u64,
}

impl Drop for Owned {
    fn drop(&mut self) {
        let count = lock(&self.table).count;
        metrics::references_released(count);
    }
}

impl Owned {
    /// How many values the peer refers to.
    pub(crate) fn count(&self) -> usize {
        lock(&self.table).count
    }

    /// Registers the values that the reply to `call` gives away. Returns `false` if there is no room for so many.
    pub(crate) fn give(
        &self,
        call: u64,
        exports: Vec<Option<Arc<dyn Referent>>>,
        limit: usize,
    ) -> bool {
        let left = exports.iter().flatten().count();
        let refused = {
            let mut table = lock(&self.table);
            let unwanted = table
                .pending
                .get(&call)
                .is_some_and(|promised| promised.unwanted);
            if unwanted || table.closed {
                // The peer has released them already, or is gone.
                drop(table);
                drop_values(exports);
                return true;
            }
            if table.count + left > limit || table.values.contains_key(&call) {
                Some(exports)
            } else {
                table.count += left;
                let values = exports;
                table.values.insert(call, Given { values, left });
                None
            }
        };
        if refused.is_none() {
            metrics::references_given(left);
        }
        refused.map(drop_values).is_none()
    }

    pub(super) fn find(&self, id: Id) -> Option<Arc<dyn Referent>> {
        let table = lock(&self.table);
        let given = table.values.get(&id.call)?;
        given.values.get(id.index as usize)?.clone()
    }

    /// As `find`, by the numbers in a message of the peer's.
    pub(crate) fn find_at(&self, call: u64, index: u32) -> Option<Arc<dyn Referent>> {
        self.find(Id { call, index })
    }

    /// The peer releases what the reply to `call` gave away: one value, or all.
    pub(crate) fn release(&self, call: u64, index: Option<u32>) {
        let mut released = Vec::new();
        {
            let mut table = lock(&self.table);
            if let Some(promised) = table.pending.get_mut(&call) {
                promised.unwanted = true;
            }
            let Some(Given { values, left }) = table.values.get_mut(&call) else {
                return;
            };
            match index {
                Some(index) => {
                    released.extend(values.get_mut(index as usize).and_then(Option::take));
                }
                None => released.extend(values.iter_mut().filter_map(Option::take)),
            }
            *left -= released.len();
            if *left == 0 {
                table.values.remove(&call);
            }
            table.count -= released.len();
        }
        metrics::references_released(released.len());
        drop_values(released);
    }

    /// The connection has ended: drops all values, and ends all waits.
    pub(crate) fn close(&self) {
        let (values, pending, count) = {
            let mut table = lock(&self.table);
            table.closed = true;
            (
                std::mem::take(&mut table.values),
                std::mem::take(&mut table.pending),
                std::mem::take(&mut table.count),
            )
        };
        metrics::references_released(count);
        for promised in pending.values() {
            promised.ended.notify_waiters();
        }
        drop_values(values);
    }

    /// Registers a call that begins, and whose result later calls may refer to.
    pub(crate) fn begin(self: &Arc<Self>, call: u64) -> Pending {
        let promised = Promised::default();
        let before = lock(&self.table).pending.insert(call, promised);
        if let Some(promised) = before {
            // The peer has used a call number twice.
            promised.ended.notify_waiters();
        }
        Pending {
            owned: self.clone(),
            call,
        }
    }

    /// Whether a call is under way.
    pub(crate) fn is_pending(&self, call: u64) -> bool {
        lock(&self.table).pending.contains_key(&call)
    }

    /// Waits until a call has ended. Cancel safe.
    pub(crate) async fn ended(&self, call: u64) {
        let ended = match lock(&self.table).pending.get(&call) {
            Some(promised) => promised.ended.clone().notified_owned(),
            None => return,
        };
        ended.await;
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let promised = lock(&self.owned.table).pending.remove(&self.call);
        if let Some(promised) = promised {
            promised.ended.notify_waiters();
        }
    }
}

/// Drops values. A panic of such a drop is logged and goes no further.
pub(super) fn drop_values<T>(values: T) {
    drop_quietly(values, "a value that was referred to");
}
