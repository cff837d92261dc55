//! The kinds of memory that a part can lie in, as far as channels distinguish them.

use std::fmt;

use super::DeviceKind;

/// What sort of memory a tensor or payload lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Ordinary main memory, including received parts that were not borrowed.
    Heap,
    /// Memory that can be lent to other processes of this machine: of [`Pool::tensor`](crate::Pool::tensor).
    Pool,
    /// Memory that another process has lent to this one, which reads it through a mapping. Its owner can still write to it. Sending
    /// it back to the owner makes no copy; passing it on to a third process does.
    Borrowed,
    /// Memory of a device of this kind.
    Device(DeviceKind),
}

impl MemoryKind {
    /// The kinds of main memory.
    pub(crate) const MAIN: [Self; 3] = [Self::Heap, Self::Pool, Self::Borrowed];
}

/// `heap`, `pool`, `borrowed`, or the device's kind.
impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Heap => f.write_str("heap"),
            Self::Pool => f.write_str("pool"),
            Self::Borrowed => f.write_str("borrowed"),
            Self::Device(kind) => kind.fmt(f),
        }
    }
}
