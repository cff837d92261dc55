//! A call, reduced to the hand-overs between its threads. `oneshot`, `credits`, `inbox` and `unread` are the real files of
//! `tensorpipe-rpc/src/engine/`.

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

/// Items and bytes of a stream that were sent or may be sent.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    items: u64,
    bytes: u64,
}

/// The window before the reader has granted any; smaller than the real one.
const INITIAL_WINDOW: Tally = Tally {
    items: 1,
    bytes: 1 << 10,
};

/// The incoming direction of a call's streams.
struct CallStreams {
    inbox: Option<inbox::Inbox>,
    waits: AtomicBool,
}
