//! Memory and its handles.
//!
//! `region`, `memory` and `memory_kind` are those of `tensorpipe/src/device/`, `pool::lendable` that of its pool.

#[expect(dead_code, unreachable_pub, reason = "applications use it, too")]
#[path = "../../../tensorpipe/src/device/memory.rs"]
mod memory;
#[expect(dead_code, unreachable_pub, reason = "the choice of a channel uses it")]
#[path = "../../../tensorpipe/src/device/memory_kind.rs"]
mod memory_kind;
pub(crate) mod pool;
#[expect(dead_code, unreachable_pub, reason = "applications use it, too")]
#[path = "../../../tensorpipe/src/device/region.rs"]
mod region;

pub(crate) use memory::Memory;
pub(crate) use memory_kind::MemoryKind;
pub(crate) use region::{Buffer, BufferMut};

/// No device queues anything here.
pub(crate) struct QueuedWork;

/// Main memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) kind: DeviceKind,
}

/// The only one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DeviceKind;

impl Device {
    pub(crate) const CPU: Self = Self { kind: DeviceKind };

    pub(crate) fn is_cpu(self) -> bool {
        self == Self::CPU
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.kind.fmt(f)
    }
}

impl std::fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("cpu")
    }
}
