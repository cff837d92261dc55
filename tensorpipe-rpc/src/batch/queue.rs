//! Decides which calls make a batch, and when it runs: without a clock, a task or a tensor.
//!
//! Calls of one key share a group while it has room. A group runs when it is full, or when the first of its calls has waited long
//! enough. If `concurrency` batches run already, it goes on gathering until one ends.
//!
//! Invariant: each call leaves once, through [`BatchQueue::leave`] or in a batch. A batch has one key, and at most `max_size` rows
//! unless it is one call. The group that is due first runs first, so none starves. Callers choose the number of groups, so every
//! step is logarithmic in it.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

/// The settings in the method's attribute.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// Rows of a batch; a call without rows counts as one.
    pub(super) max_size: u64,
    /// How long a call waits for others.
    pub(super) max_wait: Duration,
    /// How many batches run at once.
    pub(super) concurrency: usize,
}

/// Calls that wait for their batch. `K` is the key that calls of a batch share, `M` is a call.
pub(super) struct BatchQueue<K, M> {
    rules: Rules,
    /// The group with room, for each key.
    open: HashMap<K, u64>,
    groups: FxHashMap<u64, Group<K, M>>,
    /// All groups, by when they should run.
    due: BTreeSet<(Instant, u64)>,
    /// The group of each call that waits.
    slots: FxHashMap<u64, u64>,
    numbers: u64,
    running: usize,
    /// The latest time that it knows of. Threads read the clock before they wait for the queue, so they may come with an earlier one.
    latest: Option<Instant>,
    /// Set while some thread takes batches out: the latest time for which it was asked to.
    dispatching: Option<Instant>,
    /// A running mean of how long runs take.
    run: Option<Duration>,
}

struct Group<K, M> {
    key: K,
    opened: Instant,
    due: Instant,
    size: u64,
    closed: bool,
    members: Vec<Member<M>>,
}

struct Member<M> {
    slot: u64,
    due: Instant,
    size: u64,
    call: M,
}

/// A waiting call's place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchSlot {
    pub(super) number: u64,
    /// When its batch should run at the latest. The call's timer starts the batch then.
    pub(super) due: Instant,
}

impl<K: Clone + Eq + Hash, M> BatchQueue<K, M> {
    pub(super) fn new(rules: Rules) -> Self {
        Self {
            rules,
            open: HashMap::new(),
            groups: FxHashMap::default(),
            due: BTreeSet::new(),
            slots: FxHashMap::default(),
            numbers: 0,
            running: 0,
            latest: None,
            dispatching: None,
            run: None,
        }
    }

    /// Adds a call. If `exclusive`, it shares its batch with no other.
    pub(super) fn join(
        &mut self,
        now: Instant,
        key: K,
        rows: u64,
        exclusive: bool,
        deadline: Option<Instant>,
        call: M,
    ) -> BatchSlot {
        let now = self.at_least(now);
        let size = rows.max(1);
        let max = self.rules.max_size;
        let due = self.due_of(now, deadline);
        let slot = self.number();
        let room = match self.open.get(&key) {
            _ if exclusive || size >= max => None,
            Some(&group) if self.groups[&group].size + size <= max => Some(group),
            // The group has too little room for this call, so it is closed.
            Some(&group) => {
                self.close(group);
                None
            }
            None => None,
        };
        let number = room.unwrap_or_else(|| {
            let number = self.number();
            if !exclusive && size < max {
                self.open.insert(key.clone(), number);
            }
            self.groups.insert(
                number,
                Group {
                    key,
                    opened: now,
                    due,
                    size: 0,
                    closed: exclusive || size >= max,
                    members: Vec::new(),
                },
            );
            self.due.insert((due, number));
            number
        });
        let group = self.groups.entry(number);
        group.and_modify(|group| {
            group.size = group.size.saturating_add(size);
            group.members.push(Member {
                slot,
                due,
                size,
                call,
            });
        });
        self.slots.insert(slot, number);
        self.settle(number);
        if self.groups[&number].size >= max || exclusive {
            self.close(number);
        }
        BatchSlot { number: slot, due }
    }

    /// Removes a call whose caller has gone. Returns it if it was still waiting.
    pub(super) fn leave(&mut self, slot: u64) -> Option<M> {
        let number = self.slots.remove(&slot)?;
        let group = self.groups.get_mut(&number)?;
        let at = group
            .members
            .iter()
            .position(|member| member.slot == slot)?;
        let member = group.members.remove(at);
        group.size -= member.size;
        match group.members.is_empty() {
            true => drop(self.remove(number)),
            false => self.settle(number),
        }
        Some(member.call)
    }

    /// Closes the group of this call, so that it runs as soon as it can.
    pub(super) fn flush(&mut self, slot: u64) {
        if let Some(&number) = self.slots.get(&slot) {
            self.close(number);
        }
    }

    /// Asks to take batches out. Returns `true` if the caller must do it, with [`BatchQueue::next`] until there are none. Otherwise
    /// another thread is doing it, and now includes this moment.
    pub(super) fn start_dispatch(&mut self, now: Instant) -> bool {
        let now = self.at_least(now);
        let is_first = self.dispatching.is_none();
        self.dispatching = self.dispatching.max(Some(now));
        is_first
    }

    /// Takes out a batch that is to run now. It counts as running until [`BatchQueue::ended`]. Only for the thread that
    /// [`BatchQueue::start_dispatch`] chose.
    pub(super) fn next(&mut self) -> Option<Vec<(u64, M)>> {
        let batch = self.take_due();
        if batch.is_none() {
            self.dispatching = None;
        }
        batch
    }

    /// This time, or the latest one that it knows of: a group must not seem to be opened in the future, or it would not run once it is full.
    fn at_least(&mut self, now: Instant) -> Instant {
        *self
            .latest
            .insert(self.latest.map_or(now, |latest| latest.max(now)))
    }

    fn take_due(&mut self) -> Option<Vec<(u64, M)>> {
        if self.running >= self.rules.concurrency {
            return None;
        }
        let &(due, number) = self.due.first()?;
        if due > self.dispatching? {
            return None;
        }
        let group = self.remove(number)?;
        self.running += 1;
        let members = group.members.into_iter();
        let batch: Vec<_> = members.map(|member| (member.slot, member.call)).collect();
        for (slot, _) in &batch {
            self.slots.remove(slot);
        }
        Some(batch)
    }

    /// A run has ended, after this time; `None` if it was given up.
    pub(super) fn ended(&mut self, took: Option<Duration>) {
        self.running -= 1;
        if let Some(took) = took {
            self.run = Some(match self.run {
                None => took,
                Some(mean) => mean - mean / 8 + took / 8,
            });
        }
    }

    /// How many calls wait.
    pub(super) fn waiting(&self) -> usize {
        self.slots.len()
    }

    /// How many batches run.
    pub(super) fn running(&self) -> usize {
        self.running
    }

    /// When a call is due. It waits at most half of the time that its deadline leaves besides the run itself.
    fn due_of(&self, now: Instant, deadline: Option<Instant>) -> Instant {
        let wait = match deadline {
            None => self.rules.max_wait,
            Some(at) => {
                let left = at.saturating_duration_since(now);
                let spare = left.saturating_sub(self.run.unwrap_or_default());
                self.rules.max_wait.min(spare / 2)
            }
        };
        now + wait
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Closes a group: it takes no more calls, and is due as of when it was opened.
    fn close(&mut self, number: u64) {
        let Some(group) = self.groups.get_mut(&number) else {
            return;
        };
        group.closed = true;
        if self.open.get(&group.key) == Some(&number) {
            self.open.remove(&group.key);
        }
        self.settle(number);
    }

    /// Computes anew when a group is due.
    fn settle(&mut self, number: u64) {
        let Some(group) = self.groups.get_mut(&number) else {
            return;
        };
        let first = group.members.iter().map(|member| member.due).min();
        let due = match first {
            Some(first) if !group.closed => first,
            _ => group.opened,
        };
        if due != group.due {
            self.due.remove(&(group.due, number));
            self.due.insert((due, number));
            group.due = due;
        }
    }

    fn remove(&mut self, number: u64) -> Option<Group<K, M>> {
        let group = self.groups.remove(&number)?;
        self.due.remove(&(group.due, number));
        if self.open.get(&group.key) == Some(&number) {
            self.open.remove(&group.key);
        }
        Some(group)
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
