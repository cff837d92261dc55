//! The protocol, free of I/O: bytes and commands in, bytes and events out; `now` is an argument.
//!
//! [`handshake`] turns two brochures into one selection; [`PipeState`] then moves messages. Neither ever touches the
//! bytes of a payload or tensor: it says where they belong, the driver carries them.

pub(crate) mod handshake;
pub(crate) mod wire;

mod bare;
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
mod straight;
mod write;

#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;

pub(crate) use bare::metadata_at;
pub(crate) use flow::AtOnce;
pub(crate) use input::Input;
pub(crate) use keep_alive::KeepAlive;

pub(crate) use outgoing::{Through, Written};
pub(crate) use output::{Mark, Segment};
pub use pipe::OpId;
pub(crate) use pipe::{Event, PipeState};
pub(crate) use straight::{Leaving, Offered};
pub(crate) use wire::descriptor::TensorFields;
pub(crate) use write::OutgoingPart;
