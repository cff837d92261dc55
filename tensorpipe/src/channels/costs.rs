//! From which size on each channel pays: one table, of what was measured.
//!
//! Measured with `tp-bench` between two processes of one machine with two cores, p50; the figures are in `benches/RESULTS.md`. A
//! context says otherwise by `ContextBuilder::threshold`.

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

/// Handing a key over costs a frame of the other end's; up to 4 KiB a copy in the message's frame costs less.
pub(super) const XTH: [Threshold; 1] = [entry(Pays::From((4 << 10) + 1), None, None)];

/// Memory of a device rides in no frame.
#[cfg(feature = "cuda")]
pub(super) const CUDA_XTH: [Threshold; 1] = [entry(Pays::From(1), None, None)];

/// The same for a loan, whatever its size. Over shm a message without tensors took 1.8 µs, and one with 4 KiB in the frame 3.0.
/// With a leased tensor it took 4.1 (64 KiB) and 4.6 (1 MiB).
///
/// Ordinary memory is copied for it: that pays as soon as a ring would have to be read before all of it is written. Less rides in the
/// frame, where it is with its reader whether or not that reads.
pub(super) const LEASE: [Threshold; 3] = [
    entry(Pays::From((4 << 10) + 1), None, Some(MemoryKind::Pool)),
    entry(Pays::From((4 << 10) + 1), None, Some(MemoryKind::Borrowed)),
    entry(Pays::From(32 << 10), None, Some(MemoryKind::Heap)),
];

/// Of a reader that may use several processors: two of its threads copy. Over shm, ratio to `basic`, at 4, 8, 16, 32 and 128 MiB: up
/// 0.9–1.1, 0.8–1.0, 0.8–1.0, 0.8–0.9, 0.95; down 1.0, 0.9, 0.8–0.9, 0.8, 0.7–0.9. Over tcp, at 4, 16 and 64 MiB:
/// 0.6–1.0, 0.6–0.7, 0.7–0.8.
const CMA_SEVERAL: [Threshold; 2] = [
    entry(Pays::From(8 << 20), Some("shm"), None),
    entry(Pays::From(4 << 20), None, None),
];

/// Of a reader and a writer that share one processor: half of the copies take half of the time, and nobody waits for a turn. At
/// 256 KiB, 1, 4, 16 and 64 MiB: over shm 1.1, 0.6–0.8, 0.8, 0.6, 0.8–0.9; over tcp 0.5–0.9, 0.6, 0.3, 0.3, 0.5–0.6.
const CMA_ONE: [Threshold; 1] = [entry(Pays::From(1 << 20), None, None)];

/// Of a reader with one processor, and a writer that runs on another one meanwhile: then both ends of a connection copy at once,
/// where `cma` would have one thread. At 4, 16 and 64 MiB: over shm 1.4, 1.1, 1.2–1.9; over tcp 0.8–1.2, 1.0, 1.2–1.3.
const CMA_EACH_ONE: [Threshold; 1] = [entry(Pays::LastResort, None, None)];

/// Of a writer here; `None` for a reader that does not say what it has.
pub(super) fn cma(writer: Processors, reader: Option<Processors>) -> Vec<Threshold> {
    match reader {
        Some(reader) if reader.usable > 1 => CMA_SEVERAL.to_vec(),
        Some(reader) if reader.are_one_with(writer) => CMA_ONE.to_vec(),
        _ => CMA_EACH_ONE.to_vec(),
    }
}

/// What smaller tensors gain does not pay for the turn-taking.
pub(super) const MPT: [Threshold; 1] = [entry(Pays::From(4 << 20), None, None)];

/// The frame saves the go-ahead's round trip. Also what a channel of one's own begins with.
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
