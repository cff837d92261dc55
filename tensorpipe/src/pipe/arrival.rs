//! A message that is there but for its bulk parts, until the application decides.

use std::sync::Arc;

use bytes::Bytes;

use super::core::Core;
use super::reading::{Eager, build_whole};
use super::shared::Shared;
use super::stats::MessageStats;
use crate::channels::Adopted;
use crate::descriptor::Descriptor;
use crate::device::Buffer;
use crate::message::Message;
use crate::proto::OpId;

/// What a channel has to say of a part when it is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) body: &'static [u8],
    pub(super) urgent: bool,
}

/// A message that is there but for its bulk parts. Boxed where it waits: it is handed on several times.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) id: u64,
    pub(super) descriptor: Descriptor,
    /// Parts that are here.
    pub(super) eager: Eager,
    /// How these came.
    pub(super) came: MessageStats,
    /// The one that a channel had at once, and what it has to say when it is read.
    offered: Option<(u16, Answer)>,
    /// All its bytes are here.
    whole: bool,
}

impl Arrival {
    /// The parts that are here came with its frame.
    pub(super) fn new(id: u64, descriptor: Descriptor, eager: Eager) -> Self {
        let came = MessageStats::in_frame(bytes_of(&eager));
        Self {
            id,
            whole: descriptor.byte_len() == came.streamed,
            descriptor,
            eager,
            came,
            offered: None,
        }
    }

    /// The same, but for one of them, which this channel had.
    pub(super) fn with_adopted(
        id: u64,
        descriptor: Descriptor,
        mut eager: Eager,
        (part, channel): (u16, u8),
        adopted: Adopted,
    ) -> Self {
        let mut came = MessageStats::in_frame(bytes_of(&eager));
        came.carried_by(channel);
        let at = eager.partition_point(|(before, _)| *before < part);
        eager.insert(at, (part, adopted.memory));
        let answer = Answer {
            body: adopted.answer,
            urgent: adopted.urgent,
        };
        Self {
            id,
            descriptor,
            eager,
            came,
            offered: Some((part, answer)),
            whole: true,
        }
    }

    /// Takes the part that a channel had at once, if it is this one.
    pub(super) fn take_offered(&mut self, part: u16) -> Option<Buffer> {
        let (offered, _) = self.offered?;
        let at = self
            .eager
            .iter()
            .position(|(number, _)| *number == part && part == offered)?;
        Some(self.eager.remove(at).1)
    }

    /// Says what its channel has to say now that it is read, or not wanted.
    pub(super) fn answer(&self, shared: &mut Shared) {
        if let Some((part, answer)) = self.offered {
            (shared.state).channel(OpId::incoming(self.id, part), answer.body);
        }
    }

    /// The same where whoever reads it most likely answers soon.
    fn answer_late(&self, core: &Arc<Core>, shared: &mut Shared) {
        match self.offered {
            Some((part, answer)) if !answer.urgent => {
                shared.answer_late(core, OpId::incoming(self.id, part), answer.body);
            }
            _ => self.answer(shared),
        }
    }

    /// Counts the part that its channel had, unless it was copied elsewhere, or is not wanted.
    pub(super) fn count_borrowed(&self, skipped: &[u16], shared: &mut Shared) {
        let borrowed = |(part, memory): &(u16, Buffer)| {
            let offered = self.offered.is_some_and(|(offered, _)| offered == *part);
            (offered && !skipped.contains(part)).then_some(memory.len() as u64)
        };
        shared.lane_stats.borrowed += self.eager.iter().find_map(borrowed).unwrap_or(0);
    }

    /// The same as [`answer`](Self::answer), to be said by whoever takes it.
    pub(super) fn take_answer(&mut self) -> Option<&'static [u8]> {
        Some(self.offered.take()?.1.body)
    }

    /// Of metadata alone.
    pub(super) fn bare(id: u64, metadata: Bytes) -> Self {
        let descriptor = Descriptor {
            metadata,
            payloads: Vec::new(),
            tensors: Vec::new(),
        };
        Self::new(id, descriptor, Eager::new())
    }

    fn is_bare(&self) -> bool {
        self.descriptor.payloads.is_empty() && self.descriptor.tensors.is_empty()
    }

    /// Whether all its bytes are here.
    pub(super) fn is_whole(&self) -> bool {
        self.whole
    }

    /// Bytes of what is here, roughly.
    pub(super) fn weight(&self) -> usize {
        let parts = self.descriptor.payloads.len() + self.descriptor.tensors.len();
        self.descriptor.metadata.len() + self.came.streamed as usize + 64 * parts
    }

    /// The application reads it, which is whole. Returns whether the peer is to hear of it: it gets credit, or the answer to a
    /// flush.
    pub(super) fn finish(&self, core: &Arc<Core>, shared: &mut Shared) -> bool {
        self.count_borrowed(&[], shared);
        match core.driver.is_polling() {
            true => self.answer_late(core, shared),
            false => self.answer(shared),
        }
        shared.state.take_whole(self.id);
        shared.state.has_control()
    }

    /// It is whole.
    pub(super) fn into_message(self) -> Message {
        if self.is_bare() {
            return Message::new(self.descriptor.metadata);
        }
        build_whole(self.descriptor, self.eager)
    }
}

fn bytes_of(parts: &Eager) -> u64 {
    parts.iter().map(|(_, buffer)| buffer.len() as u64).sum()
}
