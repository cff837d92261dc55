//! The protocol, free of I/O: bytes and commands in, bytes and events out; `now` is an argument.
//!
//! [`handshake`] turns two brochures into one selection; [`PipeState`] then moves messages. Neither ever touches the
//! bytes of a payload or tensor: it says where they belong, the driver carries them.
//!
//! What the peer says comes in by `input` and `control`; what this side says leaves by `output`. `read` and `parts` act on the
//! peer's messages, which `incoming` holds; `write` acts on this side's, which `outgoing` holds; `flow` counts credit.

pub(crate) mod handshake;
pub(crate) mod wire;

mod control;
mod flow;
mod incoming;
mod input;
mod keep_alive;
mod numbered;
mod outgoing;
mod output;
mod parts;
mod pipe;
mod read;
#[cfg(any(test, feature = "fuzzing"))]
mod sound;
mod write;

#[cfg(any(test, feature = "fuzzing"))]
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "a fuzz target is one end of a story")
)]
pub(crate) mod sim;
#[cfg(test)]
mod tests;

pub(crate) use flow::{AHEAD_PART, AtOnce};
pub(crate) use input::{Arriving, Input, Offer};
pub(crate) use keep_alive::KeepAlive;
pub(crate) use outgoing::{OutgoingPart, OutgoingParts, OutgoingTensor, Room};
pub(crate) use output::{Mark, Segment};
pub use pipe::OpId;
pub(crate) use pipe::{Event, PipeState};
pub(crate) use wire::descriptor::{Carriage, Head, metadata_at};
pub(crate) use wire::frame::Reason;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use write::Written;
