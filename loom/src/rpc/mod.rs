//! A call as far as its threads hand over to each other: `oneshot`, `credits`, `inbox` and `unread` are those of `tensorpipe-rpc/src/engine/`.

pub mod calls;
#[path = "../../../tensorpipe-rpc/src/engine/streams/credits.rs"]
mod credits;
#[allow(dead_code, reason = "applications use all of it")]
#[path = "../../../tensorpipe-rpc/src/engine/streams/inbox.rs"]
mod inbox;
pub mod items;
#[path = "../../../tensorpipe-rpc/src/engine/oneshot.rs"]
mod oneshot;
pub mod streams;
#[allow(dead_code, reason = "who opens streams is not modelled")]
#[path = "../../../tensorpipe-rpc/src/engine/streams/unread.rs"]
mod unread;

use crate::sync::AtomicBool;

/// Of a stream: what was sent, or may be.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    items: u64,
    bytes: u64,
}

/// What may be sent before the reader has said anything: less than there.
const INITIAL_WINDOW: Tally = Tally {
    items: 1,
    bytes: 1 << 10,
};

/// The incoming direction of a call's streams.
struct CallStreams {
    inbox: Option<inbox::Inbox>,
    waits: AtomicBool,
}
