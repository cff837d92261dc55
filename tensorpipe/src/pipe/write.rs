//! Writing: a message leaves at once where nothing is before it, else it is queued.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::bare;
use super::core::{Core, Waiter};
use super::driver::{Interest, wake_all};
use super::io::Io;
use super::leaving::{Queued, When, left_in_part};
use super::sender::dissect;
use super::shared::Shared;
use super::straight;
use crate::error::{Error, Misuse, ResetCode};
use crate::message::Message;
use crate::proto::{Through, Written};
use crate::sync::lock;

/// A write under way. See [`Pipe::write`](super::Pipe::write).
pub struct Write {
    waiter: Waiter,
    stage: Stage,
}

enum Stage {
    Refused(Error),
    /// Every byte has left.
    Sent(u64),
    Queued(u64),
    Over,
}

impl std::fmt::Debug for Write {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Write")
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}

impl Write {
    pub(super) fn start(core: Arc<Core>, message: Message) -> Self {
        let stage = match enqueue(&core, message, When::Now { watched: true }, |_| ()) {
            Ok(Queued { id, over: true, .. }) => Stage::Sent(id),
            Ok(Queued { id, drive, .. }) => {
                if drive {
                    core.drive();
                }
                Stage::Queued(id)
            }
            Err(error) => Stage::Refused(error),
        };
        Self {
            waiter: Waiter::new(core),
            stage,
        }
    }

    /// The message's number, unless it was refused at once.
    pub fn id(&self) -> Option<u64> {
        match self.stage {
            Stage::Sent(id) | Stage::Queued(id) => Some(id),
            Stage::Refused(_) | Stage::Over => None,
        }
    }

    /// Takes the message back: what has not left does not leave, and the peer hears of it.
    pub fn cancel(self) {
        if let Some(id) = self.id() {
            reset(
                self.waiter.core(),
                id,
                ResetCode::Cancelled,
                "the write was cancelled",
            );
        }
    }
}

impl Future for Write {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let id = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Sent(_) => return Poll::Ready(Ok(())),
            Stage::Refused(error) => return Poll::Ready(Err(error)),
            Stage::Queued(id) => id,
            Stage::Over => {
                let over = "a write was polled after it had ended".to_owned();
                return Poll::Ready(Err(Misuse::Other(over).into()));
            }
        };
        self.stage = Stage::Queued(id);
        let result = std::task::ready!(self.waiter.poll(cx, Interest::Write(id), |shared| {
            let result = shared.writes.get_mut(&id)?.take()?;
            shared.writes.remove(&id);
            Some(result)
        }));
        self.stage = Stage::Over;
        Poll::Ready(result)
    }
}

impl Drop for Write {
    fn drop(&mut self) {
        if let Stage::Queued(id) = self.stage
            && !self.waiter.core().is_inherited()
        {
            lock(&self.waiter.core().shared).writes.remove(&id);
        }
    }
}

/// Sends a message at once, or queues it; `note` hears its number while nobody else can know it.
pub(super) fn enqueue<'a>(
    core: &Arc<Core>,
    content: impl Into<Content<'a>>,
    when: When,
    note: impl FnOnce(u64),
) -> Result<Queued, Error> {
    let queued = send_or_queue(core, content.into(), when, note);
    // Whoever came while this one had the connection relies on it: also one who was told to come. Whoever calls the handler
    // looks by itself.
    if !core.is_handling() && core.driver.is_kicked() {
        core.drive();
    }
    queued
}

/// What is to be sent.
pub(super) enum Content<'a> {
    Message(Message),
    /// Metadata alone.
    Bare(&'a [u8]),
}

impl From<Message> for Content<'_> {
    fn from(message: Message) -> Self {
        Self::Message(message)
    }
}

impl<'a> From<&'a [u8]> for Content<'a> {
    fn from(metadata: &'a [u8]) -> Self {
        Self::Bare(metadata)
    }
}

impl Content<'_> {
    /// Its metadata, if it has nothing else.
    fn bare(&self) -> Option<&[u8]> {
        match self {
            Self::Bare(metadata) => Some(metadata),
            Self::Message(message) => {
                let bare = message.payloads.is_empty() && message.tensors.is_empty();
                bare.then_some(&*message.metadata)
            }
        }
    }

    fn into_message(self) -> Message {
        match self {
            Self::Message(message) => message,
            Self::Bare(metadata) => Message::new(Bytes::copy_from_slice(metadata)),
        }
    }
}

fn send_or_queue(
    core: &Arc<Core>,
    content: Content<'_>,
    when: When,
    note: impl FnOnce(u64),
) -> Result<Queued, Error> {
    let mut guard = lock(&core.shared);
    let shared = &mut *guard;
    if let Some(error) = &shared.ended {
        return Err(error.clone());
    }
    if shared.state.is_closing() {
        return Err(Error::Closed {
            pipe: core.name.clone(),
            by_peer: false,
        });
    }
    if shared.state.peer_ignores_from().is_some() {
        let reason = shared.peer_goes_because.clone();
        return Err(Error::GoingAway {
            pipe: core.name.clone(),
            reason,
        });
    }
    if shared.state.unwritten() >= core.queued_writes {
        return Err(Misuse::TooManyWrites(core.queued_writes).into());
    }
    if let Some(metadata) = content.bare()
        && let Some(appended) = bare::append(core, shared, metadata, when)
    {
        note(appended.id);
        return Ok(bare::leave(core, guard, appended, when));
    }
    let mut message = content.into_message();
    if let Some(appended) = straight::append(core, shared, &mut message, when) {
        note(appended.id);
        return Ok(bare::leave(core, guard, appended, when));
    }
    let (descriptor, parts) = dissect(shared, message)?;
    let now = matches!(when, When::Now { .. }) && shared.state.is_next();
    let mut io = now.then(|| core.hold_io()).flatten();
    let frames = io.as_deref_mut().and_then(Io::frames_if_clear);
    let written = match frames {
        Some(frames) => shared.state.write_through(descriptor, parts, frames)?,
        None => Written::Queued(shared.state.write(descriptor, parts)?),
    };
    let watched = matches!(when, When::Now { watched: true });
    match (written, io) {
        (Written::Through(through), Some(mut io)) => {
            let id = through.number;
            note(id);
            let whole = through.starts.is_empty();
            io.push_through(through.eager);
            if !whole {
                core.has_unwritten();
                if watched {
                    shared.writes.insert(id, None);
                }
                for (op, channel, source) in through.starts {
                    shared.start(op, channel, source);
                }
                // What the channels say leaves with it.
                io.take_frames(shared);
            }
            // A long message may leave no room for all of that.
            let idle = shared.is_idle() && shared.state.is_next();
            // The connection may take a system call.
            drop(guard);
            let sent = io.send_through(core, id);
            if !sent {
                left_in_part(core, &io, id, whole && watched);
            }
            Ok(Queued {
                id,
                over: sent && whole,
                drive: !sent || !idle,
            })
        }
        (Written::Queued(id) | Written::Through(Through { number: id, .. }), _) => {
            core.has_unwritten();
            if watched {
                shared.writes.insert(id, None);
            }
            note(id);
            Ok(Queued {
                id,
                over: false,
                drive: true,
            })
        }
    }
}

pub(super) fn reset(core: &Arc<Core>, id: u64, code: ResetCode, reason: &str) {
    let mut wakes = Vec::new();
    {
        let mut shared = lock(&core.shared);
        if shared.ended.is_some() {
            return;
        }
        shared.state.reset(id, code, reason);
        let error = Error::Reset {
            code,
            reason: reason.into(),
        };
        shared.end_write(id, Err(error), &mut wakes);
        shared.process(core, &mut wakes);
    }
    wake_all(wakes);
    core.drive();
}

/// Waits until the peer's application has read. See [`Pipe::flush`](super::Pipe::flush).
pub struct Flush {
    waiter: Waiter,
    /// Everything before this message.
    until: u64,
}

impl std::fmt::Debug for Flush {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flush")
            .field("until", &self.until)
            .finish_non_exhaustive()
    }
}

impl Flush {
    pub(super) fn start(core: Arc<Core>) -> Self {
        let until = {
            let mut shared = lock(&core.shared);
            let last = shared.state.last_written();
            if let Some(last) = last {
                shared.state.flush(last);
            }
            last.map_or(0, |last| last + 1)
        };
        core.drive();
        Self {
            waiter: Waiter::new(core),
            until,
        }
    }
}

impl Future for Flush {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let until = self.until;
        let name = self.waiter.core().name.clone();
        self.waiter
            .poll(cx, Interest::Flush, |shared: &mut Shared| {
                if shared.ignored_from.is_some_and(|ignored| ignored < until) {
                    return Some(Err(Error::GoingAway {
                        pipe: name.clone(),
                        reason: shared.peer_goes_because.clone(),
                    }));
                }
                if shared.flushed_to >= until {
                    return Some(Ok(()));
                }
                shared.ended.clone().map(Err)
            })
    }
}
