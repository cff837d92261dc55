//! A context's demand that some tensors go over certain channels, or not at all.

use std::fmt;

use super::Refusal;
use crate::device::{Device, DeviceKind};

/// Tensors from or to devices of a kind go over one of these channels, or not at all. For main memory: tensors that stay in main memory.
#[derive(Clone, Debug)]
pub(crate) struct Requirement {
    pub(crate) kind: DeviceKind,
    pub(crate) channels: Vec<String>,
}

impl Requirement {
    pub(super) fn is_about(&self, source: Device, target: Device) -> bool {
        let ends = [source.kind, target.kind];
        match self.kind {
            DeviceKind::CPU => ends == [DeviceKind::CPU; 2],
            kind => ends.contains(&kind),
        }
    }

    pub(crate) fn allows(&self, channel: &str) -> bool {
        self.channels.iter().any(|known| known == channel)
    }

    /// Those of `all` that are about any of these pairs: this side's, the peer's.
    pub(crate) fn between(all: &[Self], pairs: &[(Device, Device)]) -> Vec<Self> {
        let about = |one: &&Self| pairs.iter().any(|(from, to)| one.is_about(*from, *to));
        all.iter().filter(about).cloned().collect()
    }

    /// Its line in a route.
    pub(crate) fn refusal(&self) -> Refusal {
        Refusal {
            candidate: format!("other channels for {}", self.kind),
            reason: format!("this context requires {self}").into(),
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.channels.join(" or "))
    }
}
