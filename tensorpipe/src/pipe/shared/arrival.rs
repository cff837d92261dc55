//! A message that is there but for its bulk parts, until the application decides.

use super::Shared;
use super::reading::{Eager, build};
use crate::channels::Adopted;
use crate::device::Buffer;
use crate::error::Error;
use crate::message::Message;
use crate::pipe::stats::MessageStats;
use crate::proto::{Carriage, Head, OpId};

/// What a channel has to say of a part when it is read.
#[derive(Clone, Copy, Debug)]
struct Answer {
    part: u16,
    body: &'static [u8],
    urgent: bool,
}

/// See the module's documentation.
#[derive(Debug)]
pub(in crate::pipe) struct Arrival {
    pub(in crate::pipe) id: u64,
    pub(in crate::pipe) head: Head,
    /// All its bytes are here.
    whole: bool,
    /// `None` where it has no parts, or none of them is here.
    here: Option<Box<Here>>,
}

/// Parts that are here.
#[derive(Debug, Default)]
struct Here {
    parts: Eager,
    /// How they came.
    came: MessageStats,
    /// What the channel of the part that it had at once has to say.
    answer: Option<Answer>,
}

impl Arrival {
    /// These parts came with its frame.
    pub(in crate::pipe) fn new(id: u64, head: Head, parts: Eager, whole: bool) -> Self {
        let mut arrival = Self::without_parts(id, head, whole);
        if !parts.is_empty() {
            arrival.take_eager(parts);
        }
        arrival
    }

    /// None of its parts is here.
    pub(in crate::pipe) fn without_parts(id: u64, head: Head, whole: bool) -> Self {
        let here = None;
        Self {
            id,
            head,
            whole,
            here,
        }
    }

    /// The same, come since.
    pub(in crate::pipe) fn take_eager(&mut self, parts: Eager) {
        let bytes = parts.iter().map(|(_, buffer)| buffer.len() as u64).sum();
        let here = self.here.get_or_insert_default();
        here.came = MessageStats::in_frame(bytes);
        here.parts = parts;
    }

    /// And these have come ahead, in order: now all is here.
    pub(in crate::pipe) fn take_ahead(
        &mut self,
        (parts, came): (Vec<(u16, Buffer)>, MessageStats),
    ) {
        let here = self.here.get_or_insert_default();
        here.came += came;
        here.parts.extend(parts);
        here.parts.sort_unstable_by_key(|(part, _)| *part);
        self.whole = true;
    }

    /// And this one its channel had.
    pub(in crate::pipe) fn take_adopted(&mut self, part: u16, channel: u8, adopted: Adopted) {
        let here = self.here.get_or_insert_default();
        here.came.carried_by(channel);
        if adopted.is_copy {
            here.came.copied_by_writer = adopted.memory.len() as u64;
        }
        let at = here.parts.partition_point(|(before, _)| *before < part);
        here.parts.insert(at, (part, adopted.memory));
        here.answer = Some(Answer {
            part,
            body: adopted.answer,
            urgent: adopted.urgent,
        });
    }

    /// How what is here came.
    pub(in crate::pipe) fn came(&self) -> MessageStats {
        self.here
            .as_ref()
            .map_or_else(MessageStats::default, |here| here.came)
    }

    /// Takes a part that came apart from the frame, to be copied: then how its channel is told.
    pub(in crate::pipe) fn take_large(&mut self, part: u16) -> Option<Buffer> {
        let here = self.here.as_mut()?;
        let at = here.parts.iter().position(|(number, _)| *number == part)?;
        if self.head.carriages()[usize::from(part)] == Carriage::Eager {
            return None;
        }
        let (_, memory) = here.parts.remove(at);
        here.came.copied += memory.len() as u64;
        Some(memory)
    }

    /// Says what its channel has to say now that it is read, or not wanted.
    pub(in crate::pipe) fn answer(&self, shared: &mut Shared) {
        if let Some(answer) = self.here.as_ref().and_then(|here| here.answer) {
            (shared.state).channel(OpId::incoming(self.id, answer.part), answer.body);
        }
    }

    /// The same, to be said by whoever takes it.
    pub(in crate::pipe) fn take_answer(&mut self) -> Option<&'static [u8]> {
        Some(self.here.as_mut()?.answer.take()?.body)
    }

    /// Whether a channel has to hear when it is read.
    pub(in crate::pipe) fn wants_answer(&self) -> bool {
        self.here.as_ref().is_some_and(|here| here.answer.is_some())
    }

    /// Counts the part that its channel had, unless it was copied elsewhere, or is not wanted.
    pub(in crate::pipe) fn count_borrowed(&self, skipped: &[u16], shared: &mut Shared) {
        let Some((here, answer)) = self
            .here
            .as_ref()
            .and_then(|here| Some((here, here.answer?)))
        else {
            return;
        };
        let borrowed = |(part, memory): &(u16, Buffer)| {
            let counts = *part == answer.part && !skipped.contains(part);
            counts.then_some(memory.len() as u64)
        };
        shared.lane_stats.borrowed += here.parts.iter().find_map(borrowed).unwrap_or(0);
    }

    /// Whether all its bytes are here.
    pub(in crate::pipe) fn is_whole(&self) -> bool {
        self.whole
    }

    /// Bytes of what is here, roughly.
    pub(in crate::pipe) fn weight(&self) -> usize {
        let parts = self.head.carriages().len();
        self.head.metadata.len() + self.came().streamed as usize + 64 * parts
    }

    /// What is to be said of the part that a channel had: of which part, what, and whether it is urgent.
    pub(in crate::pipe) fn said(&self) -> Option<(u16, &'static [u8], bool)> {
        let answer = self.here.as_ref()?.answer?;
        Some((answer.part, answer.body, answer.urgent))
    }

    /// What it was made of.
    pub(in crate::pipe) fn into_parts(self) -> (Head, Eager, MessageStats) {
        let here = self.here.map_or_else(Here::default, |here| *here);
        (self.head, here.parts, here.came)
    }

    /// It is whole.
    pub(in crate::pipe) fn into_message(self) -> Result<Message, Error> {
        if self.head.carriages().is_empty() {
            return Ok(Message::new(self.head.metadata));
        }
        let parts = self.here.map_or_else(Eager::new, |here| here.parts);
        build(self.head, parts, Vec::new(), &[])
    }
}
