//! The consumers that receive from this process, by the names they claim.
//!
//! A consumer claims its name, so the name proves nothing, whatever its connection has proved. Its incarnation is a number that
//! nobody can guess. The first to claim a name is that consumer while its connection lives, and only the same incarnation can speak
//! for it. Its abort counts only once this process has sent something to it, and not if another incarnation has come by then
//! ([`Table::abort_by`](super::table::Table::abort_by)). An incarnation that comes while the old connection still looks alive is
//! not heard; after a failure of the network that lasts until the keep-alive ends the old one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::key::{Part, check};
use super::service::Hello;
use crate::context::Caller;
use crate::lock::lock;

/// How many consumers are known at once.
const MOST: usize = 1024;

/// How many of them one connection may bring. A process brings one.
const MOST_OF_ONE: usize = 8;

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Consumers {
    known: Mutex<HashMap<String, Known>>,
}

struct Known {
    incarnation: u64,
    /// The connection over which it came last.
    caller: Arc<Caller>,
}

impl Known {
    fn is_there(&self) -> bool {
        let engine = self.caller.engine();
        engine.is_some_and(|engine| !engine.pipe.has_ended())
    }
}

impl Consumers {
    /// Whether `who`, at the other end of this connection, is the consumer of that name.
    pub(super) fn is(&self, who: &Hello, caller: &Arc<Caller>) -> bool {
        let known = &mut *lock(&self.known);
        match known.get_mut(&who.name) {
            Some(same) if same.incarnation == who.incarnation => {
                same.caller = caller.clone();
                return true;
            }
            Some(other) if other.is_there() => return false,
            _ => {}
        }
        if known.len() >= MOST {
            known.retain(|_, known| known.is_there());
        }
        let of_one = known
            .values()
            .filter(|known| Arc::ptr_eq(&known.caller, caller));
        if of_one.count() >= MOST_OF_ONE {
            return false;
        }
        if known.len() >= MOST || check(Part::Consumer, &who.name).is_err() {
            return false;
        }
        let came = Known {
            incarnation: who.incarnation,
            caller: caller.clone(),
        };
        known.insert(who.name.clone(), came);
        true
    }
}
