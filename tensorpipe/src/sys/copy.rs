//! Copies of some KiB that avoid `rep movsb` where it is slow.
//!
//! From 2 KiB or 4 KiB up to about the size of a second-level cache, glibc copies with that instruction if the processor claims that it is
//! fast. AMD's processors do. But they take up to thirty times as long if the lower twelve bits of the destination are 1 to 63 more than
//! those of the source. That is glibc's bug 30994, fixed in 2.40. Copying in smaller pieces uses vectors instead: here, all short copies do
//! so, and all that would be that slow. (Zen 3, glibc 2.36: a message of 16 KiB over `shm` took 10.9 µs for a round trip, now 5.4. In other
//! cases the instruction is faster: 1 MiB in 30 instead of 38 µs, 16 MiB in 2.1 instead of 3.3 ms.)

#![allow(
    unsafe_code,
    reason = "what others may write to meanwhile is copied by raw pointers"
)]

use std::ptr;

use super::fork::OnceBox;

/// Bytes of a piece: less than glibc's least threshold.
const PIECE: usize = 2 << 10;

/// From this many bytes on, the instruction is faster, except where it is slow.
const LONG: usize = 32 << 10;

/// Copies all of `from` to the memory of the same length.
///
/// # Panics
/// The lengths differ.
pub(crate) fn copy(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len());
    // SAFETY: both have this length, and one that can be written to overlaps no other.
    unsafe { copy_raw(from.as_ptr(), to.as_mut_ptr(), from.len()) }
}

/// Copies bytes that others may see or change meanwhile.
///
/// # Safety
/// As for [`ptr::copy_nonoverlapping`], except that another process may write to either memory: it is then unspecified which bytes are
/// copied.
pub(crate) unsafe fn copy_raw(from: *const u8, to: *mut u8, len: usize) {
    let is_fast = len >= LONG && !collide(from, to);
    if len <= PIECE || is_fast || !strings_are_slow() {
        // SAFETY: the caller's.
        unsafe { ptr::copy_nonoverlapping(from, to, len) }
        return;
    }
    let mut at = 0;
    while at < len {
        let piece = PIECE.min(len - at);
        // SAFETY: within the memory that the caller vouches for, as `at < len`.
        let from = unsafe { from.add(at) };
        // SAFETY: as above.
        let to = unsafe { to.add(at) };
        // SAFETY: `piece` bytes are left of both.
        unsafe { ptr::copy_nonoverlapping(from, to, piece) }
        at += piece;
    }
}

/// Whether the processor would mistake its own stores for the data that it is about to load.
fn collide(from: *const u8, to: *const u8) -> bool {
    (1..64).contains(&(to.addr().wrapping_sub(from.addr()) % 4096))
}

/// Whether this is a processor of AMD's.
fn strings_are_slow() -> bool {
    static SLOW: OnceBox<bool> = OnceBox::new();
    *SLOW.get_or_init(is_amd)
}

#[cfg(target_arch = "x86_64")]
fn is_amd() -> bool {
    let vendor = std::arch::x86_64::__cpuid(0);
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes) == [*b"Auth", *b"enti", *b"cAMD"]
}

#[cfg(not(target_arch = "x86_64"))]
fn is_amd() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_byte_arrives_and_no_other_is_touched(len in 0usize..70_000, from in 0usize..70, to in 0usize..70) {
            let source: Vec<u8> = (0..from + len).map(|at| (at * 31 / 7) as u8).collect();
            let mut dest = vec![0xAA; to + len + 64];
            copy(&source[from..], &mut dest[to..to + len]);
            prop_assert!(dest[to..to + len] == source[from..]);
            prop_assert!(dest[..to].iter().chain(&dest[to + len..]).all(|byte| *byte == 0xAA));
        }
    }
}
