//! A message that is there but for its bulk parts, until the application decides.

use super::reading::{Eager, assemble};
use crate::channels::Adopted;
use crate::device::Buffer;
use crate::error::Error;
use crate::message::Message;
use crate::pipe::stats::MessageStats;
use crate::proto::{Carriage, Head, OpId};

/// What this side's channel sends to the peer's once a part is read, or not wanted.
#[derive(Clone, Copy, Debug)]
pub(in crate::pipe) struct Answer {
    pub(in crate::pipe) op: OpId,
    pub(in crate::pipe) body: &'static [u8],
    /// It is sent at once, not with the next message.
    pub(in crate::pipe) urgent: bool,
}

/// What a part's descriptor and the driver's record of it take, without the dimensions.
const PART: usize = 256;

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
    /// The answer of the channel that had a part's memory at once.
    answer: Option<Answer>,
}

impl Arrival {
    /// None of its parts is here.
    pub(in crate::pipe) fn new(id: u64, head: Head, whole: bool) -> Self {
        let here = None;
        Self {
            id,
            head,
            whole,
            here,
        }
    }

    /// These parts came with its frame.
    pub(in crate::pipe) fn take_eager(&mut self, parts: Eager) {
        let bytes = parts.iter().map(|(_, buffer)| buffer.len() as u64);
        let came = MessageStats {
            streamed: bytes.sum(),
            ..MessageStats::default()
        };
        debug_assert!(self.here.is_none(), "what rides in its frame comes first");
        self.here = Some(Box::new(Here {
            parts,
            came,
            answer: None,
        }));
    }

    /// Adds parts that have come ahead, in order: now all parts are here.
    pub(in crate::pipe) fn take_ahead(&mut self, parts: Vec<(u16, Buffer)>, came: MessageStats) {
        let here = self.here.get_or_insert_default();
        here.came += came;
        here.parts.extend(parts);
        here.parts.sort_unstable_by_key(|(part, _)| *part);
        self.whole = true;
    }

    /// Adds the part whose memory its channel had.
    pub(in crate::pipe) fn take_adopted(&mut self, part: u16, channel: u8, adopted: Adopted) {
        let here = self.here.get_or_insert_default();
        here.came.carried_by(channel);
        if adopted.is_copy {
            here.came.copied_by_writer = adopted.memory.len() as u64;
        }
        let at = here.parts.partition_point(|(before, _)| *before < part);
        // Most often it is the only one: less code than `insert`.
        here.parts.push((part, adopted.memory));
        if at + 1 < here.parts.len() {
            here.parts[at..].rotate_right(1);
        }
        here.answer = Some(Answer {
            op: OpId::incoming(self.id, part),
            body: adopted.answer,
            urgent: adopted.urgent,
        });
    }

    /// How the parts that are here came.
    pub(in crate::pipe) fn came(&self) -> MessageStats {
        self.here
            .as_ref()
            .map_or_else(MessageStats::default, |here| here.came)
    }

    /// Takes out a part that did not come in the frame, to be copied elsewhere.
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

    /// The answer of the channel that had a part's memory.
    pub(in crate::pipe) fn answer(&self) -> Option<Answer> {
        self.here.as_ref()?.answer
    }

    /// Bytes of the part that its channel had, unless it was copied elsewhere, or is not wanted.
    pub(in crate::pipe) fn borrowed(&self, skipped: &[u16]) -> u64 {
        let (Some(here), Some(Answer { op, .. })) = (&self.here, self.answer()) else {
            return 0;
        };
        let mut parts = here.parts.iter();
        let borrowed = parts.find(|(part, _)| *part == op.part && !skipped.contains(part));
        borrowed.map_or(0, |(_, memory)| memory.len() as u64)
    }

    /// Whether all its bytes are here.
    pub(in crate::pipe) fn is_whole(&self) -> bool {
        self.whole
    }

    /// Bytes of what is here, roughly.
    pub(in crate::pipe) fn weight(&self) -> usize {
        let parts = self.head.carriages().len();
        let dims = self.head.tensors().iter().map(|tensor| tensor.shape.len());
        let parts = PART * parts + size_of::<u64>() * dims.sum::<usize>();
        self.head.metadata_len() + self.came().streamed as usize + parts
    }

    /// What it was made of.
    pub(in crate::pipe) fn into_parts(self) -> (Head, Eager, MessageStats) {
        let here = self.here.map_or_else(Here::default, |here| *here);
        (self.head, here.parts, here.came)
    }

    /// The message of an arrival that is whole.
    pub(in crate::pipe) fn into_message(self) -> Result<Message, Error> {
        // Measured: `benches/RESULTS.md`, "Messages without parts".
        if self.head.carriages().is_empty() {
            return Ok(Message::new(self.head.metadata));
        }
        let parts = self.here.map_or_else(Eager::new, |here| here.parts);
        let mut parts = parts.into_iter().peekable();
        assemble(self.head, |part, device| {
            let found = parts.next_if(|(number, _)| *number == part);
            found.map_or_else(|| Buffer::empty(device), |(_, buffer)| buffer)
        })
    }
}
