//! Memory and its handles.
//!
//! `region` is that of `tensorpipe/src/device/`, `pool::lendable` that of its pool.

pub(crate) mod pool;
#[expect(dead_code, unreachable_pub, reason = "applications use it, too")]
#[path = "../../../tensorpipe/src/device/region.rs"]
mod region;

pub(crate) use region::{Buffer, BufferMut, Memory};

/// Main memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Device;

impl Device {
    pub(crate) const CPU: Self = Self;

    pub(crate) fn is_cpu(self) -> bool {
        self == Self::CPU
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("cpu")
    }
}
