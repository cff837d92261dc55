//! The bytes on a connection: a preface, then frames of an 8-byte header and a body.
//!
//! All integers are little-endian. A frame that a version does not know is an error, unless its header says that it may be skipped. A known
//! frame may end in fields that a version does not know, which are skipped too. WIRE.md shows each frame byte by byte, and a test compares.

pub(crate) mod codec;
pub(crate) mod descriptor;
pub(crate) mod frame;
pub(crate) mod hello;
mod limits;

/// The first eight bytes of every connection: not ASCII (no text protocol begins so), and mangled by every translation of line ends.
pub(crate) const MAGIC: [u8; 8] = *b"\x93TPIPE\r\n";

/// The highest version that this code speaks, and the lowest.
pub(crate) const VERSION: u16 = 1;
pub(crate) const VERSION_MIN: u16 = 1;

/// Magic, highest version, lowest version.
pub(crate) const PREFACE_LEN: usize = 12;

pub(crate) fn preface() -> [u8; PREFACE_LEN] {
    let mut out = [0; PREFACE_LEN];
    out[..8].copy_from_slice(&MAGIC);
    out[8..10].copy_from_slice(&VERSION.to_le_bytes());
    out[10..].copy_from_slice(&VERSION_MIN.to_le_bytes());
    out
}
