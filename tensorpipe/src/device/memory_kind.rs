//! What sort of memory a part lies in, as far as it matters to who moves it.

use std::fmt;

use super::DeviceKind;

/// What sort of memory a tensor or payload lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Ordinary main memory, also that of received parts that were not borrowed.
    Heap,
    /// Memory that can be lent to other processes of this machine: of [`Pool::tensor`](crate::Pool::tensor).
    Pool,
    /// Memory of another process, which has lent it to this one: mapped to be read here. Its owner can still write to it. Sent back
    /// to its owner it is not copied; passed on to a third process it is.
    Borrowed,
    /// Memory of a device of this kind.
    Device(DeviceKind),
}

impl MemoryKind {
    /// Those of main memory.
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
