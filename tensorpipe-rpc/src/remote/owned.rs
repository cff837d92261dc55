//! The owner's end: values that the other end of a connection refers to, and future results of calls under way.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;
use smallvec::{SmallVec, smallvec};
use tensorpipe::fork::Owner;
use tokio::sync::Notify;

use super::Id;
use crate::caught::drop_quietly;
use crate::codec::Reply;
use crate::lock::lock;
use crate::observe::metrics;

type Value = dyn Any + Send + Sync;

/// The table of a connection keeps room for so many values, however few there are.
const KEPT: usize = 1024;

pub(super) const TOO_MANY: &str = "too many references";

/// A value that the other end may refer to.
#[derive(Clone, Debug)]
pub(crate) struct Referent {
    pub(super) value: Arc<Value>,
    pub(super) copy: CopyValue,
}

/// How a fetch copies a value. It returns `None` for one that does not travel.
pub(super) type CopyValue = fn(&Value) -> Option<Reply>;

/// Copies a value of this type.
pub(super) fn copy<T: Serialize + DeserializeOwned + 'static>(value: &Value) -> Option<Reply> {
    value.downcast_ref::<T>().map(Reply::of)
}

/// As [`copy`], for a value that does not travel.
pub(super) fn no_copy(_: &Value) -> Option<Reply> {
    None
}

impl Referent {
    pub(super) fn new<T: Send + Sync + 'static>(value: &Arc<T>, copy: CopyValue) -> Self {
        let value = value.clone();
        Self { value, copy }
    }

    /// The type of the value.
    pub(crate) fn kind(&self) -> TypeId {
        Any::type_id(&*self.value)
    }

    /// A copy of the value, for a fetch. `None` if it does not travel.
    pub(crate) fn fetched(&self) -> Option<Reply> {
        (self.copy)(&*self.value)
    }
}

/// What an end refers to no more: the value at this index of the reply to a call, or all of its values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Release {
    pub(crate) call: u64,
    pub(crate) index: Option<u32>,
}

/// Values that are given to the peer, each at its index. Most replies give one. They are dropped one by one: of two drops that panic
/// in one, the second would end the process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exports(SmallVec<[Option<Referent>; 1]>);

impl Exports {
    pub(crate) fn one(referent: Referent) -> Self {
        Self(smallvec![Some(referent)])
    }

    /// Adds a value at the next index, which is `first` or above. Returns the index.
    pub(super) fn push(&mut self, first: u32, referent: Referent) -> Result<u32, &'static str> {
        let index = u32::try_from(self.0.len()).map_err(|_| TOO_MANY)?;
        let index = index.max(first);
        self.0.resize(index as usize, None);
        self.0.push(Some(referent));
        Ok(index)
    }
}

impl Drop for Exports {
    fn drop(&mut self) {
        self.0.drain(..).for_each(drop_value);
    }
}

/// The values that one connection's peer refers to.
#[derive(Default)]
pub(crate) struct Owned {
    owner: Owner,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// Values, by the call whose reply gave them away. Here and below the peer chooses the numbers, so the hash has a secret.
    values: HashMap<u64, Given>,
    /// The number of values.
    count: usize,
    /// Calls under way whose results later calls may already refer to.
    pending: HashMap<u64, Promised>,
    closed: bool,
}

/// The values that one reply gave away.
struct Given {
    /// In the order of their indices.
    values: SmallVec<[(u32, Option<Referent>); 1]>,
    /// How many are left. Without it, each release would scan all values: quadratic in their number.
    left: usize,
}

impl Given {
    fn new(mut exports: Exports, left: usize) -> Self {
        let values = (0..).zip(exports.0.drain(..));
        let values = values.filter(|(_, value)| value.is_some()).collect();
        Self { values, left }
    }

    fn at(&self, index: u32) -> Option<usize> {
        self.values.binary_search_by_key(&index, |(at, _)| *at).ok()
    }

    /// Takes out one value, or all.
    fn take(&mut self, index: Option<u32>) -> Exports {
        let Some(index) = index else {
            self.left = 0;
            let values = std::mem::take(&mut self.values);
            return Exports(values.into_iter().map(|(_, value)| value).collect());
        };
        let taken = self.at(index).and_then(|at| self.values[at].1.take());
        self.left -= usize::from(taken.is_some());
        if self.left < self.values.len() / 2 {
            // One that stays must not keep the room of all.
            self.values.retain(|(_, value)| value.is_some());
            self.values.shrink_to_fit();
        }
        Exports(smallvec![taken])
    }
}

/// The result of a call under way.
#[derive(Default)]
struct Promised {
    /// Wakes those who wait for the call, once it is out of the table. `None` while nobody waits, as for most calls.
    ended: Option<Arc<Notify>>,
    /// The peer has released the result already.
    unwanted: bool,
}

impl Promised {
    /// Wakes those who wait for the call.
    fn end(&self) {
        if let Some(ended) = &self.ended {
            ended.notify_waiters();
        }
    }
}

/// A call under way whose result later calls may already refer to. Dropped when the call has ended.
pub(crate) struct Pending {
    owned: Arc<Owned>,
    call: u64,
}

impl Drop for Owned {
    fn drop(&mut self) {
        let table = self.table.get_mut().unwrap_or_else(PoisonError::into_inner);
        let table = std::mem::take(table);
        match self.owner.is_other_process() {
            // The values are the parent's, one of whose threads may have been changing the table.
            true => std::mem::forget(table),
            false => end(table),
        }
    }
}

impl Owned {
    /// How many values the peer refers to.
    pub(crate) fn count(&self) -> usize {
        lock(&self.table).count
    }

    /// Registers the values that the reply to `call` gives away. Returns `false` if there is no room for so many.
    pub(crate) fn give(&self, call: u64, exports: Exports, limit: usize) -> bool {
        let left = exports.0.iter().flatten().count();
        let refused = {
            let mut table = lock(&self.table);
            let unwanted = table
                .pending
                .get(&call)
                .is_some_and(|promised| promised.unwanted);
            if unwanted || table.closed {
                // The peer has released them already, or is gone.
                drop(table);
                return true;
            }
            let count = table.count + left;
            match table.values.entry(call) {
                Entry::Vacant(vacant) if count <= limit => {
                    vacant.insert(Given::new(exports, left));
                    table.count = count;
                    None
                }
                _ => Some(exports),
            }
        };
        if refused.is_none() {
            metrics::references_given(left);
        }
        refused.is_none()
    }

    pub(super) fn find(&self, id: Id) -> Option<Referent> {
        let table = lock(&self.table);
        let given = table.values.get(&id.call)?;
        given.values[given.at(id.index)?].1.clone()
    }

    /// As `find`, by the numbers in a message of the peer's.
    pub(crate) fn find_at(&self, call: u64, index: u32) -> Option<Referent> {
        self.find(Id { call, index })
    }

    /// The peer releases what replies to these calls gave away: of each one value, or all.
    pub(crate) fn release(&self, releases: impl IntoIterator<Item = Release>) {
        let mut released = Exports::default();
        {
            let mut table = lock(&self.table);
            for Release { call, index } in releases {
                if let Some(promised) = table.pending.get_mut(&call) {
                    promised.unwanted = true;
                }
                let Entry::Occupied(mut given) = table.values.entry(call) else {
                    continue;
                };
                let mut taken = given.get_mut().take(index);
                released.0.extend(taken.0.drain(..).filter(Option::is_some));
                if given.get().left == 0 {
                    given.remove();
                }
            }
            table.count -= released.0.len();
            let (len, room) = (table.values.len(), table.values.capacity());
            if room > KEPT && len < room / 8 {
                table.values.shrink_to(2 * len);
            }
        }
        metrics::references_released(released.0.len());
    }

    /// The connection has ended: drops all values, and ends all waits.
    pub(crate) fn close(&self) {
        let closed = Table {
            closed: true,
            ..Table::default()
        };
        let table = std::mem::replace(&mut *lock(&self.table), closed);
        // Without the lock: this runs foreign code.
        end(table);
    }

    /// Registers a call that begins, and whose result later calls may refer to.
    pub(crate) fn begin(self: &Arc<Self>, call: u64) -> Pending {
        let promised = Promised::default();
        let before = lock(&self.table).pending.insert(call, promised);
        if let Some(promised) = before {
            // The peer has used a call number twice.
            promised.end();
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
        let ended = match lock(&self.table).pending.get_mut(&call) {
            Some(promised) => {
                let ended = promised.ended.get_or_insert_default();
                ended.clone().notified_owned()
            }
            None => return,
        };
        ended.await;
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.owned.owner.is_other_process() {
            return;
        }
        let promised = lock(&self.owned.table).pending.remove(&self.call);
        if let Some(promised) = promised {
            promised.end();
        }
    }
}

/// Drops all values, and ends all waits.
fn end(table: Table) {
    metrics::references_released(table.count);
    for promised in table.pending.values() {
        promised.end();
    }
    let values = table.values.into_values().flat_map(|given| given.values);
    values.for_each(drop_value);
}

/// Drops a value. A panic of the drop is logged and goes no further. Of two values in one, the second panic would end the process.
pub(crate) fn drop_value<T>(value: T) {
    drop_quietly(value, "a value that was referred to");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn referents(many: usize) -> Exports {
        let referent = Referent::new(&Arc::new(()), no_copy);
        Exports(std::iter::repeat_n(Some(referent), many).collect())
    }

    #[test]
    fn one_of_many_values_does_not_keep_the_room_of_all() {
        const MANY: u32 = 1000;
        let owned = Owned::default();
        let release = |index| {
            let index = Some(index);
            owned.release([Release { call: 7, index }]);
        };
        assert!(owned.give(7, referents(MANY as usize), usize::MAX));
        // Twice each: a peer may release what it has released.
        for index in (0..MANY - 1).chain(0..MANY - 1) {
            release(index);
            assert!(owned.find_at(7, index).is_none());
        }
        assert_eq!(owned.count(), 1);
        assert!(lock(&owned.table).values[&7].values.capacity() < 10);
        assert!(owned.find_at(7, MANY).is_none());
        assert!(owned.find_at(7, MANY - 1).is_some());
        release(MANY - 1);
        assert!(lock(&owned.table).values.is_empty());
    }

    /// Counts what is left as it is dropped, as a program's own code may.
    struct Counts(std::sync::Weak<Owned>, std::sync::mpsc::Sender<usize>);

    impl Drop for Counts {
        fn drop(&mut self) {
            let left = self.0.upgrade().map(|owned| owned.count());
            let _ = self.1.send(left.unwrap_or(usize::MAX));
        }
    }

    #[test]
    fn values_are_dropped_without_the_lock() {
        let owned = Arc::new(Owned::default());
        let (tell, told) = std::sync::mpsc::channel();
        let counts = Counts(Arc::downgrade(&owned), tell);
        let referent = Referent::new(&Arc::new(counts), no_copy);
        assert!(owned.give(1, Exports(smallvec![Some(referent)]), 1));
        owned.close();
        assert_eq!(told.try_recv(), Ok(0));
    }

    #[test]
    fn what_many_calls_have_given_leaves_no_room_behind() {
        let owned = Owned::default();
        let calls = 0..1 << 16;
        for call in calls.clone() {
            assert!(owned.give(call, referents(1), usize::MAX));
        }
        owned.release(calls.map(|call| Release { call, index: None }));
        let table = lock(&owned.table);
        assert!(table.count == 0 && table.values.capacity() <= KEPT);
    }

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("by design");
        }
    }

    /// A second panic while the first unwinds would end the process.
    #[test]
    fn values_whose_drops_panic_are_dropped_one_by_one() {
        let bombs = || {
            let mut bombs = Exports::default();
            for index in 0..3 {
                // `new` is lent a handle of each, which is dropped here.
                let bomb = Referent::new(&Arc::new(Bomb), no_copy);
                assert_eq!(bombs.push(0, bomb), Ok(index));
            }
            bombs
        };
        let owned = Owned::default();
        for call in 0..4 {
            assert!(owned.give(call, bombs(), 9) == (call < 3));
        }
        let release = |call, index| Release { call, index };
        owned.release([release(0, None), release(1, Some(1)), release(1, Some(2))]);
        owned.close();
        assert_eq!(owned.count(), 0);
        assert!(owned.give(5, bombs(), 9), "nobody wants them");
        // The reply that was to give them is not sent.
        drop(bombs());
    }
}
