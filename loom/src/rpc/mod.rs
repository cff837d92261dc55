//! A call, reduced to the hand-overs between its threads. `collected`, `oneshot`, `slot`, `table`, `credits`, `held`, `inbox` and `unread` are
//! the real files of `tensorpipe-rpc/src/engine/`.

pub mod calls;
#[path = "../../../tensorpipe-rpc/src/engine/collected.rs"]
mod collected;
#[path = "../../../tensorpipe-rpc/src/engine/streams/credits.rs"]
mod credits;
pub mod ends;
#[allow(
    dead_code,
    reason = "who gives a call up is not modelled with its streams"
)]
#[path = "../../../tensorpipe-rpc/src/engine/streams/held.rs"]
mod held;
#[allow(dead_code, reason = "applications use all of it")]
#[path = "../../../tensorpipe-rpc/src/engine/streams/inbox.rs"]
mod inbox;
pub mod items;
#[path = "../../../tensorpipe-rpc/src/engine/oneshot.rs"]
mod oneshot;
pub mod releases;
#[allow(dead_code, reason = "calls without streams are modelled")]
#[path = "../../../tensorpipe-rpc/src/engine/slot.rs"]
mod slot;
pub mod streams;
#[allow(dead_code, reason = "the engine uses all of it")]
#[path = "../../../tensorpipe-rpc/src/engine/table.rs"]
mod table;
#[allow(dead_code, reason = "who opens streams is not modelled")]
#[path = "../../../tensorpipe-rpc/src/engine/streams/unread.rs"]
mod unread;

use std::time::{Duration, Instant};

use slot::CallSlot;

use crate::error::CallError;
use crate::sync::{Arc, AtomicBool};

/// How a call ended.
#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    Value,
    Failed(CallError),
}

pub(crate) type Deadline = Option<(Instant, Duration)>;

/// Stand-in for what a slot holds for its call.
#[derive(Default)]
pub(crate) struct CallData {
    streams: Option<Arc<CallStreams>>,
    trace: Option<Trace>,
    receive_placement: Option<()>,
}

pub(crate) struct Trace;

impl Trace {
    fn ended(&self, _: &Outcome) {}
}

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
pub(crate) struct CallStreams {
    inbox: Option<inbox::Inbox>,
    waits: AtomicBool,
    held: held::HeldOutcome,
    /// The outcome that the call's slot would get.
    outcome: oneshot::Oneshot<Outcome>,
}

impl CallStreams {
    fn new(window: Tally, unread: &Arc<unread::UnreadBudget>) -> Arc<Self> {
        Arc::new(Self {
            inbox: Some(inbox::Inbox::new(window, unread.clone())),
            waits: AtomicBool::new(false),
            held: held::HeldOutcome::default(),
            outcome: oneshot::Oneshot::new(),
        })
    }

    fn no_more_sent(&self) {}
}
