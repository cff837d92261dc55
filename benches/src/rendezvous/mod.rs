//! What a value takes from its send to its receive: within one process, and from one process to another.
//!
//! ```text
//! here (measures)                          there (a task, or a second process)
//!   ping, step n   ── value ──▶              receives it, sends it back
//!                  ◀── value ──  pong, step n
//!   go, step n     ───────────▶              sends `stream/0` … , as fast as there is room
//!                  ◀── values ── K of them are asked for at any time
//! ```

mod here;
mod there;

pub(crate) use here::measure;
pub(crate) use there::play;

use serde::{Deserialize, Serialize};

use crate::plan::Plan;

/// The names of the two in a key.
const HERE: &str = "here";
const THERE: &str = "there";

const PING: &str = "ping";
const PONG: &str = "pong";
const GO: &str = "go";

/// A value of a stream.
fn streamed(number: u64) -> String {
    format!("stream/{number}")
}

/// What the second process must know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Orders {
    plan: Plan,
    /// Where the first one serves its values.
    here: String,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// One value at a time, there and back.
    Round,
    /// Many, with so many receives under way at any time.
    Stream(u32),
}

/// Values of one round of a stream, for each receive that is under way.
const DEPTH: u64 = 16;
