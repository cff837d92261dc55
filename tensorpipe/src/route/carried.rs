//! How much a channel was given to carry, so that users can see which one did.

use std::fmt;

use crate::sync::{Arc, AtomicU64, Ordering};

/// What a channel has been given to carry from this side, on one pipe. Clones are handles on the same counters.
#[derive(Clone, Default)]
pub struct Carried(Arc<Counters>);

#[derive(Default)]
struct Counters {
    parts: AtomicU64,
    bytes: AtomicU64,
}

impl Carried {
    /// Tensors and payloads.
    pub fn parts(&self) -> u64 {
        self.0.parts.load(Ordering::Relaxed)
    }

    /// Their bytes.
    pub fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// Counts one more part. The caller has the pipe's lock: no exchange is needed.
    pub(crate) fn count(&self, bytes: u64) {
        let Counters { parts, bytes: all } = &*self.0;
        parts.store(self.parts() + 1, Ordering::Relaxed);
        all.store(self.bytes() + bytes, Ordering::Relaxed);
    }
}

impl PartialEq for Carried {
    fn eq(&self, other: &Self) -> bool {
        (self.parts(), self.bytes()) == (other.parts(), other.bytes())
    }
}

impl Eq for Carried {}

impl fmt::Debug for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Carried")
            .field("parts", &self.parts())
            .field("bytes", &self.bytes())
            .finish()
    }
}
