//! From which size on each channel pays: one table, of what was measured.
//!
//! Measured with `tp-bench` between two processes of one machine, a core each, there and back, p50; the figures are in
//! `benches/RESULTS.md`. A context says otherwise by `ContextBuilder::threshold`.

use std::borrow::Cow;

use crate::device::MemoryKind;
use crate::route::{Pays, Threshold};

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

/// The same for a loan, whatever its size: over shm a tensor of 4 KiB in the frame took 3.0 µs, a leased one of 64 KiB 4.1 and one of
/// 1 MiB 4.6, over the 1.8 of a message without tensors. Ordinary memory cannot be lent.
pub(super) const LEASE: [Threshold; 2] = [
    entry(Pays::From((4 << 10) + 1), None, Some(MemoryKind::Pool)),
    entry(Pays::From((4 << 10) + 1), None, Some(MemoryKind::Borrowed)),
];

/// Over the rings of shm never: there `basic` took 53 µs for 1 MiB where `cma` took 347, 1.9 ms for 16 MiB against 3.0, 7.8 ms for
/// 64 MiB against 14.1. Over tcp: 1 MiB 318 µs by `basic`, 368 by `cma`; 16 MiB 5.6 ms and 3.5; 64 MiB 18.8 and 13.1.
pub(super) const CMA: [Threshold; 2] = [
    entry(Pays::LastResort, Some("shm"), None),
    entry(Pays::From(4 << 20), None, None),
];

/// What smaller tensors gain does not pay for the turn-taking.
pub(super) const MPT: [Threshold; 1] = [entry(Pays::From(4 << 20), None, None)];

/// The frame saves the go-ahead's round trip. Also what a channel of one's own begins with.
pub(super) const BASIC: [Threshold; 1] = [entry(Pays::BeyondFrame, None, None)];
