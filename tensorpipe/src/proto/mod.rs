//! The protocol, free of I/O: bytes and commands in, bytes and events out; `now` is an argument.
//!
//! [`handshake`] turns two brochures into one selection; [`PipeState`] then moves messages. Neither ever touches the
//! bytes of a payload or tensor: it says where they belong, the driver carries them.
//!
//! [`PipeState`] is generic over the driver's handles on memory: `S` to send from, `D` to receive into. So its tests run on plain
//! vectors and a virtual clock, over links that stall, reorder and are cut at each byte.
//!
//! A message is one MESSAGE frame: descriptor, metadata, eager parts. Descriptors keep their order; reads end independently.
//! Bulk parts wait for GRANT, or go ahead of it as far as the reader's window says. They travel by the channel that the sender
//! named in the descriptor. On the pipe's own connection they are DATA frames of at most a chunk, and control frames pass
//! between any two of them: a huge tensor holds up nothing. RESET and REFUSE end one message, GOAWAY and FIN the pipe. PING
//! finds a silent peer.

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

#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;

pub(crate) use flow::{AHEAD_PART, AtOnce};
pub(crate) use input::{Arriving, Input, Offer};
pub(crate) use keep_alive::KeepAlive;

#[cfg(test)]
pub(crate) use outgoing::Written;
pub(crate) use output::{Mark, Segment};
pub use pipe::OpId;
pub(crate) use pipe::{Event, PipeState};
pub(crate) use wire::descriptor::{Carriage, Head, metadata_at};
pub(crate) use write::{OutgoingPart, OutgoingParts, OutgoingTensor, Room};
