//! An input read as choices.

/// What is left of an input. Where it has ended, every choice is the first.
pub(crate) struct Script<'a>(pub(crate) &'a [u8]);

impl<'a> Script<'a> {
    pub(crate) fn has_ended(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    /// A number below `choices`.
    pub(crate) fn below(&mut self, choices: usize) -> usize {
        usize::from(self.byte()) % choices.max(1)
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> Option<T> {
        choices.get(self.below(choices.len())).copied()
    }

    pub(crate) fn number(&mut self) -> u64 {
        let mut bytes = [0; 8];
        let given = self.bytes(8);
        bytes[..given.len()].copy_from_slice(given);
        u64::from_le_bytes(bytes)
    }
}
