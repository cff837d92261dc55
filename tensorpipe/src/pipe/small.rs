//! A message of metadata alone, given to the handler where it is.
//!
//! Taking it costs no lock: whoever calls the handler remembers which ones it took, and gives their credit back for several
//! at once. Invariant: one that is neither taken nor refused nor turned into an [`Incoming`] is skipped.

use std::cell::RefCell;

use bytes::Bytes;
use smallvec::SmallVec;

use super::arrival::Arrival;
use super::core::Core;
use super::incoming::Incoming;
use crate::error::ResetCode;
use crate::sync::Arc;

/// Numbers of messages that the handler took.
pub(super) type Finished = RefCell<SmallVec<[u64; 8]>>;

/// A message of metadata alone: all of it is here. Dropping it skips the message.
pub struct Small<'a> {
    core: &'a Arc<Core>,
    finished: &'a Finished,
    id: u64,
    /// `None` once it is decided.
    metadata: Option<Bytes>,
}

impl std::fmt::Debug for Small<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Small")
            .field("id", &self.id)
            .field("metadata", &self.metadata)
            .finish_non_exhaustive()
    }
}

impl<'a> Small<'a> {
    pub(super) fn new(
        core: &'a Arc<Core>,
        finished: &'a Finished,
        id: u64,
        metadata: Bytes,
    ) -> Self {
        Self {
            core,
            finished,
            id,
            metadata: Some(metadata),
        }
    }

    /// Its number among the peer's messages on this pipe.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// All of it.
    pub fn metadata(&self) -> &[u8] {
        self.metadata.as_deref().unwrap_or_default()
    }

    /// Takes it: its writer gets its credit back when the handler has returned.
    pub fn accept(mut self) -> Bytes {
        self.finished.borrow_mut().push(self.id);
        self.metadata.take().unwrap_or_default()
    }

    /// Does not want it, for a reason that the writer gets as [`Error::Refused`](crate::Error::Refused).
    pub fn refuse(self, reason: &str) {
        self.into_incoming().refuse(reason);
    }

    /// The same message, to be kept or decided elsewhere.
    pub fn into_incoming(mut self) -> Incoming {
        self.take_incoming()
    }

    fn take_incoming(&mut self) -> Incoming {
        let metadata = self.metadata.take().unwrap_or_default();
        Incoming::new(self.core.clone(), Arrival::bare(self.id, metadata))
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        if self.metadata.is_some() {
            self.take_incoming().decline(ResetCode::Skipped, "");
        }
    }
}
