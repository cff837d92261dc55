//! Why a channel that was chosen moves nothing: some problems only show when it is tried.

use std::fmt;
use std::sync::{Arc, OnceLock};

/// Why a channel that was chosen moves nothing in one direction or both: some things only show when they are tried. Clones
/// are handles on the same words.
#[derive(Clone, Default)]
pub struct Degraded(Arc<Words>);

#[derive(Default)]
struct Words {
    sending: OnceLock<String>,
    receiving: OnceLock<String>,
}

impl Degraded {
    /// Why it sends nothing from this side, if it does not.
    pub fn sending(&self) -> Option<&str> {
        self.0.sending.get().map(String::as_str)
    }

    /// Why nothing comes to this side over it, if nothing does.
    pub fn receiving(&self) -> Option<&str> {
        self.0.receiving.get().map(String::as_str)
    }

    /// Says why it sends nothing. The first reason stays.
    pub fn cannot_send(&self, reason: impl Into<String>) {
        let _ = self.0.sending.set(reason.into());
    }

    /// Says why nothing comes. The first reason stays.
    pub fn cannot_receive(&self, reason: impl Into<String>) {
        let _ = self.0.receiving.set(reason.into());
    }
}

impl PartialEq for Degraded {
    fn eq(&self, other: &Self) -> bool {
        self.sending() == other.sending() && self.receiving() == other.receiving()
    }
}

impl Eq for Degraded {}

impl fmt::Debug for Degraded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Degraded")
            .field("sending", &self.sending())
            .field("receiving", &self.receiving())
            .finish()
    }
}
