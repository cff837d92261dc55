//! What a channel was given and sent another way, and why: so that a slow tensor can be explained afterwards.

use std::fmt;

use crate::sync::{Arc, Mutex, lock};

/// What a channel was given to send from this side, and sent as another channel would. Clones are handles on the same list.
#[derive(Clone, Default)]
pub struct Diverted(Arc<Mutex<Vec<Diversion>>>);

/// What one channel sent as one other channel would.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Diversion {
    /// The channel as which it was sent.
    pub over: String,
    /// Tensors and payloads, or pieces of them.
    pub parts: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Why the last of them was.
    pub reason: String,
}

impl Diverted {
    /// One for each channel that was used instead, in the order in which they were first used.
    pub fn all(&self) -> Vec<Diversion> {
        lock(&self.0).clone()
    }

    /// Counts one more part.
    pub(crate) fn count(&self, over: &str, bytes: u64, reason: &str) {
        let mut all = lock(&self.0);
        let known = all.iter_mut().find(|one| one.over == over);
        let Some(known) = known else {
            return all.push(Diversion {
                over: over.to_owned(),
                parts: 1,
                bytes,
                reason: reason.to_owned(),
            });
        };
        known.parts += 1;
        known.bytes += bytes;
        if known.reason != reason {
            reason.clone_into(&mut known.reason);
        }
    }
}

impl fmt::Display for Diversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            over,
            parts,
            bytes,
            reason,
        } = self;
        write!(
            f,
            "{bytes} bytes went over {over} instead (count {parts}; last reason: {reason})"
        )
    }
}

impl PartialEq for Diverted {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.all() == other.all()
    }
}

impl Eq for Diverted {}

impl fmt::Debug for Diverted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.all(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_other_channel_is_counted_apart_with_its_last_reason() {
        let diverted = Diverted::default();
        let handle = diverted.clone();
        handle.count("basic", 5, "no room");
        handle.count("cuda_basic", 7, "no descriptors");
        handle.count("basic", 6, "no thread");
        assert_eq!(diverted, handle);
        let words: Vec<_> = diverted.all().iter().map(ToString::to_string).collect();
        assert_eq!(
            words,
            [
                "11 bytes went over basic instead (count 2; last reason: no thread)",
                "7 bytes went over cuda_basic instead (count 1; last reason: no descriptors)",
            ]
        );
    }
}
