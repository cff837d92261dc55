//! Sending: one way out for every message.
//!
//! [`submit`] chooses a channel for each part, gives the message to the protocol, and sends it where nothing is before it. The
//! protocol either puts the message's frame among the bytes to be sent, or queues it; what it queues leaves with a round of the
//! driver.
//!
//! - A write is over when the connection has taken the bytes. A message that was taken in part counts as unwritten until the rest has left.
//!   A message that waits in the send buffer behind others (at most 16 KiB) counts as written, like bytes that a socket has taken.
//! - Messages that may wait for others stay in the send buffer, and the background task is told once. So do the answers of a handler that
//!   is called again. At the latest 8 of them (32 if a write is a system call) leave together, so that the peer works while more are
//!   written. If a write is a system call, messages in the protocol's queue wait for each other in the same way.

mod choose;
mod dispatch;
#[cfg(test)]
mod tests;
pub(super) mod write;

use self::choose::choose;
use self::dispatch::{Pushed, dispatch, dispatch_queued};
pub use self::dispatch::{Submitted, When};
use super::core::Core;
use super::driver::{expects_batch, wake_all};
use super::io::Io;
use super::lane::SendOptions;
use super::shared::Shared;
use crate::device::Buffer;
use crate::error::{Error, Misuse};
use crate::message::{Message, MessageTensor, Payload};
use crate::proto::{OutgoingPart, OutgoingParts, TensorFields};
use crate::route::Diverted;
use crate::sync::{Arc, lock};
use crate::tensor::{Shape, byte_len};

/// A message to be sent, for [`EnginePipe::submit`](crate::engine::EnginePipe::submit). Its metadata is borrowed, since it is copied into
/// the send buffer. Up to four parts take no allocation.
#[derive(Debug)]
pub struct Outbound<'a> {
    metadata: &'a [u8],
    parts: OutgoingParts<Buffer>,
    /// How many of them are payloads.
    payloads: usize,
    /// If set, each tensor goes over one of these channels.
    required: Option<Arc<Vec<String>>>,
    /// If set, counts what a channel sends of this message as another one would.
    diverted: Option<Diverted>,
    /// It is queued even where as many messages are as may be.
    is_paced: bool,
}

impl<'a> Outbound<'a> {
    /// A message of metadata alone.
    #[inline]
    pub fn new(metadata: &'a [u8]) -> Self {
        Self {
            metadata,
            parts: OutgoingParts::new(),
            payloads: 0,
            required: None,
            diverted: None,
            is_paced: false,
        }
    }

    /// Adds a payload: before the tensors.
    pub fn payload(&mut self, payload: Payload) {
        let part = OutgoingPart {
            len: payload.data.len() as u64,
            metadata: payload.metadata,
            tensor: None,
            channel: None,
            source: payload.data,
        };
        self.parts.insert(self.payloads, part);
        self.payloads += 1;
    }

    /// Adds a tensor.
    pub fn tensor(&mut self, tensor: impl Into<MessageTensor>) {
        let MessageTensor {
            tensor,
            metadata,
            target,
        } = tensor.into();
        let fields = TensorFields {
            dtype: tensor.dtype(),
            shape: Shape::from(tensor.shape()),
            source: tensor.device(),
            target,
        };
        let source = tensor.into_buffer();
        debug_assert_eq!(
            byte_len(fields.dtype, &fields.shape),
            Some(source.len() as u64),
            "the reader would end the pipe"
        );
        self.parts.push(OutgoingPart {
            len: source.len() as u64,
            metadata,
            tensor: Some(fields),
            channel: None,
            source,
        });
    }

    /// Adds all of these, if there are any.
    #[inline]
    pub fn extend<T: Into<MessageTensor>>(&mut self, payloads: Vec<Payload>, tensors: Vec<T>) {
        if !payloads.is_empty() {
            payloads
                .into_iter()
                .for_each(|payload| self.payload(payload));
        }
        if !tensors.is_empty() {
            tensors.into_iter().for_each(|tensor| self.tensor(tensor));
        }
    }

    /// As [`Message::require`].
    #[inline]
    pub fn require(&mut self, channels: Option<Arc<Vec<String>>>) {
        self.required = channels;
    }

    /// If set, also counts there what a channel sends of this message as another one would.
    #[inline]
    pub fn tell_diverted(&mut self, diverted: Option<Diverted>) {
        self.diverted = diverted;
    }

    /// Its sender keeps to a pace: where many messages are queued it waits until its last one has begun to leave. So it may exceed
    /// [`Limits::queued_writes`](crate::Limits::queued_writes) by one message, and others cannot shut it out.
    pub fn pace(&mut self) {
        self.is_paced = true;
    }

    /// Bytes of all its metadata, payloads and tensors together.
    #[inline]
    pub fn byte_len(&self) -> u64 {
        let parts = self.parts.iter();
        let parts = parts.map(|part| part.metadata.len() as u64 + part.len);
        self.metadata.len() as u64 + parts.sum::<u64>()
    }
}

/// Sends a whole message.
pub(super) fn submit_message(
    core: &Arc<Core>,
    message: Message,
    watched: bool,
) -> Result<Submitted, Error> {
    let mut outbound = Outbound::new(&message.metadata);
    outbound.extend(message.payloads, message.tensors);
    outbound.require(message.required);
    submit(core, &mut outbound, When::Now, watched, |_| ())
}

/// Sends a message at once, or queues it. `numbered` gets its number while nobody else can know it. The caller drives if the result says
/// so. `watched`: somebody is going to ask how the message ends.
pub(super) fn submit(
    core: &Arc<Core>,
    message: &mut Outbound<'_>,
    when: When,
    watched: bool,
    numbered: impl FnOnce(u64),
) -> Result<Submitted, Error> {
    // Dropped last.
    let _kicked = Kicked(core);
    let mut guard = lock(&core.shared);
    let shared = &mut *guard;
    check_open(core, shared, message.is_paced)?;
    if !message.parts.is_empty() {
        // None named: none required.
        message.required.take_if(|channels| channels.is_empty());
        let required = message.required.as_ref().map(|channels| &channels[..]);
        choose(shared, &core.route, required, &mut message.parts)?;
    }
    let mut io = match shared.state.is_next() {
        true => core.driver.hold(),
        false => None,
    };
    let queue_was_empty = io.as_deref().is_some_and(Io::is_all_written);
    let waits = watched && !queue_was_empty;
    // A watched message can be cancelled while it is queued, so it is not put into the send buffer behind others.
    let room = io.as_deref_mut().filter(|_| !waits).and_then(Io::room);
    let bytes = message.byte_len();
    let written = (shared.state).write(message.metadata, &mut message.parts, room)?;
    let id = written.number;
    let (mut sent, queued) = match written.sent {
        true => (io, None),
        false => (None, io),
    };
    if let Some(io) = &mut sent {
        // Before the callback, which may panic: the message's frame is in the send buffer already.
        io.push_message();
    }
    numbered(id);
    if written.pending {
        if message.required.is_some() || message.diverted.is_some() {
            let (required, diverted) = (message.required.take(), message.diverted.take());
            shared.want(id, SendOptions { required, diverted });
        }
        core.mark_unwritten();
        if watched {
            shared.writes.insert(id, None);
        }
    }
    let Some(mut io) = sent else {
        let batched = match when {
            When::Now => false,
            When::Coalesce(under_way) => expects_batch(under_way, core.driver.last_batch()),
            When::NextDrive | When::NextDriveIfSyscall => true,
        };
        let may_wait =
            batched && core.driver.io_is_syscall() && !shared.has_work() && !core.answers_more();
        drop(guard);
        let waits = may_wait
            && queued
                .or_else(|| core.driver.hold())
                .is_some_and(|io| dispatch_queued(core, io, bytes));
        return Ok(Submitted {
            id,
            batched,
            over: false,
            drive: !waits,
        });
    };
    let mut wakes = Vec::new();
    if written.pending || shared.state.has_delayed() {
        // Frames of the channels leave with the message, delayed acknowledgements, too. Results of lanes wait for a round: a message is not
        // over before it has left.
        shared.process_events(&mut wakes);
        shared.state.send_delayed();
        io.take_frames(shared);
        wakes.append(&mut io.wakes);
    } else if !shared.on_sending.is_empty() {
        shared.wake_on_sending(&mut wakes);
    }
    let pushed = Pushed {
        id,
        queue_was_empty,
        pending: written.pending,
        watched,
    };
    let submitted = dispatch(core, guard, io, pushed, when);
    wake_all(wakes);
    Ok(submitted)
}

/// Drives if another thread has kicked while this one had the connection. Inside the handler it does not: the thread that calls the handler
/// checks for kicks itself.
struct Kicked<'a>(&'a Arc<Core>);

impl Drop for Kicked<'_> {
    fn drop(&mut self) {
        if self.0.is_handling() || !self.0.driver.is_kicked() {
            return;
        }
        match std::thread::panicking() {
            false => self.0.drive(),
            // A second panic would end the process.
            true => self.0.driver.wakers.notify(),
        }
    }
}

/// Why nothing more can be written.
fn check_open(core: &Core, shared: &Shared, is_paced: bool) -> Result<(), Error> {
    shared.check_ended()?;
    if shared.state.is_closing() {
        return Err(shared.closed(false));
    }
    if shared.state.peer_ignores_from().is_some() {
        return Err(shared.going_away());
    }
    if shared.state.unwritten() >= core.queued_writes && !is_paced {
        return Err(Misuse::TooManyWrites(core.queued_writes).into());
    }
    Ok(())
}
