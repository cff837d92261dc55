//! A call as far as its threads hand over to each other: `handover` and `credits` are those of `tensorpipe-rpc/src/engine/`.

pub mod calls;
#[path = "../../../tensorpipe-rpc/src/engine/streams/credits.rs"]
mod credits;
#[path = "../../../tensorpipe-rpc/src/engine/handover.rs"]
mod handover;
pub mod streams;

/// Of a stream: what was sent, or may be.
#[derive(Clone, Copy, Default)]
struct Tally {
    items: u64,
    bytes: u64,
}

/// What may be sent before the reader has said anything: less than there.
const FIRST: Tally = Tally {
    items: 1,
    bytes: 1 << 10,
};
