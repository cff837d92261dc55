//! Nobody forks here.

use std::sync::OnceLock;

use crate::error::SystemError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin;

impl Origin {
    pub(crate) fn here() -> Result<Self, SystemError> {
        Ok(Self)
    }
}

#[derive(Debug)]
pub(crate) struct PerProcess<T>(OnceLock<T>);

impl<T> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }

    pub(crate) fn get(&self, make: impl FnOnce() -> T) -> &T {
        self.0.get_or_init(make)
    }
}
