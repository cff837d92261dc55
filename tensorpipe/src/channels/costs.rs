//! The sizes from which each channel pays, as measured, in one table.
//!
//! Measured with `tp-bench` between two processes of one machine with two cores, p50; the figures are in `benches/RESULTS.md`.
//! `ContextBuilder::threshold` overrides an entry for a context.

use std::borrow::Cow;

use crate::device::MemoryKind;
use crate::route::{Pays, Threshold};
use crate::sys::processors::Processors;

const fn entry(
    pays: Pays,
    transport: Option<&'static str>,
    memory: Option<MemoryKind>,
) -> Threshold {
    let transport = match transport {
        Some(transport) => Some(Cow::Borrowed(transport)),
        None => None,
    };
    Threshold {
        pays,
        transport,
        memory,
    }
}

/// A hand-over costs an extra frame from the reader; up to 4 KiB, a copy in the message's frame costs less.
pub(super) const XTH: [Threshold; 1] = [entry(Pays::From((4 << 10) + 1), None, None)];

/// Device memory never rides in a message's frame.
#[cfg(feature = "cuda")]
pub(super) const CUDA_XTH: [Threshold; 1] = [entry(Pays::From(1), None, None)];

/// As for `xth`: a loan costs the same whatever its size. Over shm, a message without tensors took 1.8 µs, one with 4 KiB in the frame 3.0,
/// and one with a leased tensor 4.1 (64 KiB) or 4.6 (1 MiB).
///
/// Ordinary memory has to be copied for it. At 16 KiB, a core each, an upload takes as long as in the frame, an echo 0.56 of that, 64 calls
/// under way 0.62 (shm) and 0.28 (tcp); at 12 KiB an upload takes 1.1. Where both ends share one core, an echo takes 1.7, an upload 1.15.
/// Smaller tensors ride in the frame, which brings them to the reader before it asks for them.
pub(super) const LEASE: [Threshold; 3] = [
    entry(Pays::From((4 << 10) + 1), None, Some(MemoryKind::Pool)),
    entry(Pays::From((4 << 10) + 1), None, Some(MemoryKind::Borrowed)),
    entry(Pays::From(16 << 10), None, Some(MemoryKind::Heap)),
];

/// For a reader that may use several processors: two of its threads copy. Ratio to `basic` over shm, at 4, 8, 16, 32 and 128 MiB: up
/// 0.9–1.1, 0.8–1.0, 0.8–1.0, 0.8–0.9, 0.95; down 1.0, 0.9, 0.8–0.9, 0.8, 0.7–0.9. Over tcp, at 4, 16 and 64 MiB: 0.6–1.0, 0.6–0.7,
/// 0.7–0.8.
const CMA_SEVERAL: [Threshold; 2] = [
    entry(Pays::From(8 << 20), Some("shm"), None),
    entry(Pays::From(4 << 20), None, None),
];

/// For a reader and a writer that share one processor: half of the copies take half of the time, and nobody waits to be scheduled. At 256
/// KiB, 1, 4, 16 and 64 MiB: over shm 1.1, 0.6–0.8, 0.8, 0.6, 0.8–0.9; over tcp 0.5–0.9, 0.6, 0.3, 0.3, 0.5–0.6.
const CMA_ONE: [Threshold; 1] = [entry(Pays::From(1 << 20), None, None)];

/// For a reader with one processor and a writer on another: over a connection, both ends copy at the same time, while `cma` would use one
/// thread. At 4, 16 and 64 MiB: over shm 1.4, 1.1, 1.2–1.9; over tcp 0.8–1.2, 1.0, 1.2–1.3.
const CMA_EACH_ONE: [Threshold; 1] = [entry(Pays::LastResort, None, None)];

/// Thresholds for a writer here; `None`: the reader does not describe its processors.
pub(super) fn cma(writer: Processors, reader: Option<Processors>) -> Vec<Threshold> {
    match reader {
        Some(reader) if reader.usable > 1 => CMA_SEVERAL.to_vec(),
        Some(reader) if reader.are_one_with(writer) => CMA_ONE.to_vec(),
        _ => CMA_EACH_ONE.to_vec(),
    }
}

/// For smaller tensors, the gain does not cover the coordination of several connections.
pub(super) const MPT: [Threshold; 1] = [entry(Pays::From(4 << 20), None, None)];

/// A part in the message's frame saves the go-ahead's round trip. User-defined channels start with this as well.
pub(super) const BASIC: [Threshold; 1] = [entry(Pays::BeyondFrame, None, None)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_reads_depends_on_the_processors_of_both() {
        let several = Processors {
            usable: 2,
            only: None,
        };
        let one = |only| Processors { usable: 1, only };
        let (first, second, quota) = (one(Some(0)), one(Some(1)), one(None));
        for (writer, reader, expected) in [
            (several, Some(several), &CMA_SEVERAL[..]),
            (first, Some(several), &CMA_SEVERAL),
            (first, Some(first), &CMA_ONE),
            (first, Some(second), &CMA_EACH_ONE),
            (several, Some(first), &CMA_EACH_ONE),
            (quota, Some(quota), &CMA_EACH_ONE),
            (several, None, &CMA_EACH_ONE),
        ] {
            assert_eq!(cma(writer, reader), expected, "{writer:?} {reader:?}");
        }
    }
}
