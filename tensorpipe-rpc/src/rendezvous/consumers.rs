//! The consumers that receive from this process, by the names they claim.
//!
//! A consumer claims its name, so the name proves nothing, whatever its connection has proved. It says a number as its incarnation
//! that it tells only to this producer ([`Local::hello_to`](super::local::Local::hello_to)). The first to claim a name is that
//! consumer while its connection lives, and only the same number can speak for it. A consumer that connects again says the same
//! number; one that is started again says another. That one is not heard while the old connection still looks alive; after a failure of
//! the network that lasts until the keep-alive ends the old one.
//!
//! An abort counts only once this process has sent something to the consumer. It is kept with the consumer until then, and goes when
//! another incarnation comes. Consumers whose connection is gone are kept, too, until there are [`MOST`]. A connection brings one
//! consumer at most, so whoever wants to keep others out needs as many connections.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use super::error::Aborted;
use super::key::{Part, check};
use super::service::Hello;
use crate::context::Caller;
use crate::engine::Engine;
use crate::lock::lock;

/// How many consumers are known at once.
const MOST: usize = 1024;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Consumers {
    known: Mutex<HashMap<String, Known>>,
}

#[derive(Debug)]
struct Known {
    incarnation: u64,
    /// The connection over which it came last.
    engine: Weak<Engine>,
    aborted: Option<Aborted>,
}

impl Known {
    /// The handle on its connection goes to `handles`: dropping the last one runs foreign code.
    fn is_there(&self, handles: &mut Vec<Arc<Engine>>) -> bool {
        let Some(engine) = self.engine.upgrade() else {
            return false;
        };
        let is_there = !engine.pipe.has_ended();
        handles.push(engine);
        is_there
    }
}

impl Consumers {
    /// Whether `who`, at the other end of this connection, is the consumer of that name. Registers it if nobody else is.
    pub(super) fn is(&self, who: &Hello, caller: &Caller) -> bool {
        self.with(who, caller, |_| ())
    }

    /// As [`Self::is`], and if so, keeps its abort.
    pub(super) fn abort(&self, who: &Hello, caller: &Caller, aborted: &Aborted) -> bool {
        self.with(who, caller, |known| known.aborted = Some(aborted.clone()))
    }

    /// The abort of the consumer of this name.
    pub(super) fn aborted(&self, name: &str) -> Option<Aborted> {
        lock(&self.known).get(name)?.aborted.clone()
    }

    fn with(&self, who: &Hello, caller: &Caller, act: impl FnOnce(&mut Known)) -> bool {
        let Some(engine) = caller.weak_engine() else {
            return false;
        };
        // Dropped when the lock is released.
        let handles = &mut Vec::new();
        let known = &mut *lock(&self.known);
        match known.get_mut(&who.name) {
            Some(same) if same.incarnation == who.incarnation => {
                same.engine = engine.clone();
                act(same);
                return true;
            }
            Some(other) if other.is_there(handles) => return false,
            _ => {}
        }
        if known.len() >= MOST {
            known.retain(|_, known| known.is_there(handles));
        }
        let mut all = known.values();
        if known.len() >= MOST
            || all.any(|known| Weak::ptr_eq(&known.engine, engine))
            || check(Part::Consumer, &who.name).is_err()
        {
            return false;
        }
        let mut came = Known {
            incarnation: who.incarnation,
            engine: engine.clone(),
            aborted: None,
        };
        act(&mut came);
        known.insert(who.name.clone(), came);
        true
    }
}
