//! Stand-in for ordinary memory, which no model uses.

use crate::error::SystemError;

#[derive(Debug)]
pub(crate) struct Block(Vec<u8>);

impl Block {
    pub(crate) fn zeroed(len: usize) -> Self {
        Self(vec![0; len])
    }

    pub(crate) fn try_zeroed(len: usize) -> Result<Self, SystemError> {
        Ok(Self::zeroed(len))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
