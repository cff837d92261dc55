//! Fuzz input, read as a sequence of choices. The meeting and the hostile lanes draw from it in the order in which they ask.

use std::sync::{Arc, Mutex, MutexGuard};

/// Where it has ended, every choice is the first. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Input(Arc<Mutex<Left>>);

#[derive(Debug)]
struct Left {
    bytes: Vec<u8>,
    at: usize,
    /// What lanes and exchanges have said, at most 64 of it.
    heard: Vec<Vec<u8>>,
}

impl Input {
    pub(super) fn new(bytes: &[u8]) -> Self {
        Self(Arc::new(Mutex::new(Left {
            bytes: bytes.to_vec(),
            at: 0,
            heard: Vec::new(),
        })))
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        self.0.lock().unwrap()
    }

    pub(super) fn has_ended(&self) -> bool {
        let left = self.left();
        left.at >= left.bytes.len()
    }

    pub(super) fn byte(&self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    /// So many of them, or as many as there are.
    pub(super) fn bytes(&self, len: usize) -> Vec<u8> {
        let mut left = self.left();
        let end = (left.at + len).min(left.bytes.len());
        let bytes = left.bytes[left.at..end].to_vec();
        left.at = end;
        bytes
    }

    /// A number below `choices`.
    pub(crate) fn below(&self, choices: usize) -> usize {
        usize::from(self.byte()) % choices.max(1)
    }

    pub(super) fn heard(&self, words: &[u8]) {
        let mut left = self.left();
        if left.heard.len() < 64 {
            left.heard.push(words.to_vec());
        }
    }

    /// Something to say: made up, or heard before, maybe with a byte changed.
    pub(super) fn words(&self) -> Vec<u8> {
        match self.below(4) {
            0 => self.bytes(self.below(64)),
            1 => vec![self.byte()],
            how => {
                let all = self.left().heard.clone();
                let mut words = all.get(self.below(all.len())).cloned().unwrap_or_default();
                if how == 3 && !words.is_empty() {
                    let at = self.below(words.len());
                    words[at] ^= self.byte();
                }
                words
            }
        }
    }
}
