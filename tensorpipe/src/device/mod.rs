//! Devices and the memory that lives on them.
//!
//! A [`Device`] is a kind and an index. Kinds are names, not an enum: a backend outside this crate brings its own.
//!
//! # A device of your own
//!
//! The example `custom_device` has all of these:
//!
//! 1. A [`DeviceKind`].
//! 2. A [`Memory`] that keeps a [`QueuedWork`] beside its handle on the device, and frees the handle when it is dropped.
//! 3. A [`Fence`] for positions in the device's queues.
//! 4. An [`Allocator`] of that memory, for [`ContextBuilder::allocator`](crate::ContextBuilder::allocator).
//! 5. Code that queues copies on the device. A copy orders itself behind [`Buffer::ready`] of its source and behind
//!    [`BufferMut::unfinished`] of its destination. With the copy's fence, the code calls [`Buffer::use_until`] on the source and
//!    [`BufferMut::freeze_at`] on the destination.
//! 6. A [`Channel`](crate::channels::Channel) that has the device among its devices.
//!
//! The suites in the module `conformance` (a feature) check them: `device_conformance!` 2 to 5, `channel_conformance!` 6.
//!
//! Tensors are never staged silently. If no channel of the pipe serves a tensor's device, its write fails ([`Misuse::OutOfReach`]) and
//! sends nothing, whatever its size. [`Tensor::to`](crate::Tensor::to) makes a copy in main memory, which every peer takes; for that, the
//! allocator needs [`Allocator::copy`]. A tensor without a target lands in main memory, even if both ends have its device. The writer names
//! a device with [`MessageTensor::to_device`](crate::MessageTensor::to_device), or the reader with [`Place::On`](crate::Place::On).
//!
//! # How work is ordered
//!
//! Device memory is filled and read by queued work. The CPU queues it and goes on.
//!
//! | question | answer | with CUDA |
//! |---|---|---|
//! | when may it be read? | behind [`Buffer::ready`], a [`Fence`] | an event: the reader's stream waits for it |
//! | when may it be used again? | behind [`BufferMut::unfinished`]: that, and the work of [`Buffer::use_until`] | an event for each stream that uses it |
//! | what is it registered with? | one registration for an allocation and a domain, which ends first | `cuMemHostRegister`, a descriptor |
//! | where does it come from? | [`Context::allocator`](crate::Context::allocator): a [`DevicePool`] before the [`Allocator`] | physical memory (`cuMemCreate`), cut into blocks |
//!
//! Main memory keeps no fences: it is ready when it is handed over. A device's own thread never runs a handler, since a handler may wait
//! for that very device. A task on the pipe's runtime runs it instead.

mod allocator;
#[cfg(feature = "cuda")]
pub mod cuda;
mod destination;
mod fence;
mod memory;
mod memory_kind;
mod pool;
mod region;

pub use allocator::{Allocator, Allocators, Copying, DevicePool};
pub(crate) use destination::Destination;
pub use fence::{Fence, QueuedWork, Registered};
pub use memory::Memory;
pub use memory_kind::MemoryKind;
pub(crate) use pool::LendableBlock;
pub use pool::{LendableStats, Pool, PoolOptions, PoolStats};
pub use region::{Buffer, BufferMut};

pub use crate::sys::block::ALIGNMENT;
pub use crate::sys::registrations::{Domain, Registrable, Registrations};

use std::fmt;
use std::str::FromStr;

use crate::error::Misuse;

/// A device of one side, and its descriptor for the peer.
#[derive(Clone, Copy, Debug)]
pub struct DeviceOffer<'a> {
    /// Where memory lies.
    pub device: Device,
    /// Tells whether the other side's device reaches it; at most 1 KiB.
    pub descriptor: &'a [u8],
}

impl<'a> DeviceOffer<'a> {
    /// A device with its descriptor.
    pub fn new(device: Device, descriptor: &'a [u8]) -> Self {
        Self { device, descriptor }
    }
}

const KIND_MAX: usize = 15;

/// What sort of device: `cpu`, `cuda`, or a name that a backend of your own brings.
///
/// At most 15 lower-case ASCII letters, digits or `_`, the first one a letter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceKind {
    name: [u8; KIND_MAX],
    len: u8,
}

impl DeviceKind {
    /// Main memory.
    pub const CPU: Self = Self::new("cpu");
    /// An NVIDIA GPU.
    pub const CUDA: Self = Self::new("cuda");

    /// A kind of your own, for constants.
    ///
    /// # Panics
    /// If `name` breaks the rule above; in a constant, that is a compile error. [`DeviceKind::parse`] returns an error instead.
    pub const fn new(name: &str) -> Self {
        match Self::checked(name) {
            Some(kind) => kind,
            None => panic!(
                "a device kind is 1 to 15 lower-case letters, digits or `_`, the first one a letter"
            ),
        }
    }

    /// As [`new`](Self::new), for names from outside.
    pub fn parse(name: &str) -> Result<Self, Misuse> {
        Self::checked(name).ok_or_else(|| Misuse::Device(name.to_owned()))
    }

    const fn checked(name: &str) -> Option<Self> {
        let bytes = name.as_bytes();
        if bytes.is_empty() || bytes.len() > KIND_MAX || !bytes[0].is_ascii_lowercase() {
            return None;
        }
        let mut out = [0; KIND_MAX];
        let mut i = 0;
        while i < bytes.len() {
            let b = bytes[i];
            if !(b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_') {
                return None;
            }
            out[i] = b;
            i += 1;
        }
        Some(Self {
            name: out,
            len: bytes.len() as u8,
        })
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.name[..usize::from(self.len)]).unwrap_or_default()
    }
}

impl fmt::Debug for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A place where tensors live, printed as `cpu:0`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Device {
    /// What sort.
    pub kind: DeviceKind,
    /// Which one of them.
    pub index: u32,
}

impl Device {
    /// Main memory.
    pub const CPU: Self = Self {
        kind: DeviceKind::CPU,
        index: 0,
    };

    /// Device number `index` of `kind`.
    pub const fn new(kind: DeviceKind, index: u32) -> Self {
        Self { kind, index }
    }

    /// Whether the CPU can read and write its memory.
    pub fn is_cpu(self) -> bool {
        self.kind == DeviceKind::CPU
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.index)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl FromStr for Device {
    type Err = Misuse;

    fn from_str(s: &str) -> Result<Self, Misuse> {
        let bad = || Misuse::Device(s.to_owned());
        let (kind, index) = s.split_once(':').ok_or_else(bad)?;
        Ok(Self {
            kind: DeviceKind::parse(kind).map_err(|_| bad())?,
            index: index.parse().map_err(|_| bad())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_prints_and_parses() {
        let device: Device = "cuda:3".parse().unwrap();
        assert_eq!(device, Device::new(DeviceKind::CUDA, 3));
        assert_eq!(device.to_string(), "cuda:3");
        for bad in [
            "",
            "cuda",
            "Cuda:0",
            ":0",
            "cuda:",
            "cuda:-1",
            "0cuda:0",
            "abcdefghijklmnop:0",
        ] {
            assert_eq!(bad.parse::<Device>(), Err(Misuse::Device(bad.to_owned())));
        }
    }
}
