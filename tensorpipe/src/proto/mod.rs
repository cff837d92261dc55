//! The protocol, free of I/O: bytes and commands in, bytes and events out; `now` is an argument.
//!
//! [`handshake`] turns two brochures into one selection; [`PipeState`] then moves messages. Neither ever touches the
//! bytes of a payload or tensor: it says where they belong, the driver carries them.
//!
//! [`PipeState`] is generic over the driver's handles on memory: `S` to send from, `D` to receive into. So its tests run on plain
//! vectors and a virtual clock, over links that stall and are cut at each byte; lanes with connections of their own overtake.
//!
//! A message is one MESSAGE frame: descriptor, metadata, eager parts. Descriptors keep their order; reads end independently.
//! Bulk parts wait for GRANT, or go ahead of it as far as the reader's window says. They travel by the channel that the sender
//! named in the descriptor. On the pipe's own connection they are DATA frames of at most a chunk, and control frames pass
//! between any two of them: a huge tensor holds up nothing. RESET and REFUSE end one message, GOAWAY and FIN the pipe. PING
//! finds a silent peer.
//!
//! What the peer says comes in by `input` and `control`; what this side says leaves by `output`. `read` acts on the
//! peer's messages, which `incoming` holds; `write` acts on this side's, which `outgoing` holds; `flow` counts credit.

pub(crate) mod handshake;
pub(crate) mod wire;

mod control;
mod flow;
mod incoming;
mod input;
mod keep_alive;
mod outgoing;
mod output;
mod pipe;
mod read;
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
pub(crate) use outgoing::{OutgoingPart, OutgoingParts, Room};
pub(crate) use output::{Mark, Segment};
pub use pipe::OpId;
pub(crate) use pipe::{Event, PipeState};
pub(crate) use wire::descriptor::{Carriage, Head, TensorFields, metadata_at};
pub(crate) use wire::frame::Reason;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use write::Written;
