//! Memory and its handles.
//!
//! `region`, `memory`, `memory_kind` and `pool::lendable` are the real files of `tensorpipe/src/device/`.

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

/// Stand-in: no device queues work here.
pub(crate) struct QueuedWork;

/// Main memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) kind: DeviceKind,
}

/// The only kind of device.
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
