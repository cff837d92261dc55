//! The rings of a connection: a small one for each direction, and what makes each of them larger for a while.

use std::io;

use super::alarm::Alarm;
use super::errors::not_here;
use super::large::{Incoming, Outgoing};
use crate::process::process_id;
use crate::ring::{Consumer, Mapped, Producer};
use crate::sync::Arc;
use crate::sys::memfd::Mapping;
use crate::sys::peer::Peer;

pub(super) struct Rings {
    pub(super) out: Producer<Mapped>,
    pub(super) incoming: Consumer<Mapped>,
    pub(super) memory: Arc<Mapping>,
    pub(super) finished: bool,
    /// The larger rings of both directions.
    pub(super) large_out: Outgoing,
    pub(super) large_in: Incoming,
}

impl Rings {
    /// `side`: 0 writes to the first ring and reads from the second, 1 the other way round.
    pub(super) fn new(
        memory: Mapping,
        side: usize,
        peer: Option<Peer>,
        alarm: Alarm,
    ) -> Option<Self> {
        let memory = Arc::new(memory);
        let out = Mapped::new(memory.clone(), side)?;
        let incoming = Mapped::new(memory.clone(), 1 - side)?;
        let consumer = Consumer::new(incoming.clone());
        consumer.introduce(words(process_id()));
        Some(Self {
            out: Producer::new(out.clone()),
            incoming: consumer,
            memory,
            finished: false,
            large_out: Outgoing::new(peer, out, alarm),
            large_in: Incoming::new(incoming),
        })
    }

    /// Fails in a forked child, which has the socket and not the memory.
    pub(super) fn are_here(&self) -> io::Result<()> {
        match self.memory.is_here() {
            true => Ok(()),
            false => Err(not_here()),
        }
    }

    /// Whether a look finds something, or there is nothing to look at: then whoever reads or writes learns it.
    pub(super) fn looks(&mut self, look: impl FnOnce(&mut Self) -> bool) -> bool {
        !self.memory.is_here() || look(self)
    }

    /// Whether there is room to write now, or no use in waiting for a larger ring.
    pub(super) fn has_room(&mut self) -> bool {
        self.out.is_ready() || self.large_out.in_vain(&self.out)
    }
}

/// An id as a ring's control block has it.
fn words(id: [u8; 16]) -> [u64; 2] {
    let word = |at| u64::from_le_bytes(std::array::from_fn(|i| id[at + i]));
    [word(0), word(8)]
}
