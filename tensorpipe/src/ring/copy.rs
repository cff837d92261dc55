//! Copies between memory of this process and memory that another process may write.

use std::ptr::NonNull;

/// Copies `bytes` to `to`.
///
/// # Safety
/// `to` is valid for writes of `bytes.len()` bytes.
pub(super) unsafe fn into_shared(to: NonNull<u8>, bytes: &[u8]) {
    // SAFETY: valid by this function's contract, and memory of this process does not overlap a mapping of its own.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) }
}

/// Copies from `from` to `bytes`; `stream` leaves the caches alone, for more than they hold.
///
/// # Safety
/// `from` is valid for reads of `bytes.len()` bytes.
pub(super) unsafe fn out_of_shared(from: NonNull<u8>, bytes: &mut [u8], stream: bool) {
    #[cfg(target_arch = "x86_64")]
    if stream && bytes.len() >= 256 {
        // SAFETY: as this function.
        return unsafe { stream_out(from, bytes) };
    }
    let _ = stream;
    // SAFETY: valid by this function's contract, and memory of this process does not overlap a mapping of its own.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), bytes.as_mut_ptr(), bytes.len()) }
}

/// Stores past the caches: a line that is written whole need not be fetched first.
///
/// # Safety
/// As [`out_of_shared`].
#[cfg(target_arch = "x86_64")]
unsafe fn stream_out(from: NonNull<u8>, bytes: &mut [u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    const LINE: usize = 64;
    let len = bytes.len();
    let to = bytes.as_mut_ptr();
    let from = from.as_ptr();
    // Streaming stores want alignment.
    let head = to.align_offset(LINE).min(len);
    let tail = (len - head) % LINE;
    // SAFETY: `head <= len`.
    unsafe { std::ptr::copy_nonoverlapping(from, to, head) };
    let mut at = head;
    while at < len - tail {
        #[expect(
            clippy::multiple_unsafe_ops_per_block,
            reason = "one line: four loads, four stores"
        )]
        // SAFETY: `at + LINE <= len` for both, and `to + at` is aligned to a line. SSE2 is part of x86-64.
        unsafe {
            let from = from.add(at).cast::<__m128i>();
            let to = to.add(at).cast::<__m128i>();
            let a = _mm_loadu_si128(from);
            let b = _mm_loadu_si128(from.add(1));
            let c = _mm_loadu_si128(from.add(2));
            let d = _mm_loadu_si128(from.add(3));
            _mm_stream_si128(to, a);
            _mm_stream_si128(to.add(1), b);
            _mm_stream_si128(to.add(2), c);
            _mm_stream_si128(to.add(3), d);
        }
        at += LINE;
    }
    // SAFETY: `at <= len`.
    let from = unsafe { from.add(at) };
    // SAFETY: as above.
    let to = unsafe { to.add(at) };
    // SAFETY: what is left.
    unsafe { std::ptr::copy_nonoverlapping(from, to, tail) };
    // Streamed stores are weakly ordered: before anybody hears of them they must be there.
    // SAFETY: SSE is part of x86-64.
    unsafe { _mm_sfence() };
}
