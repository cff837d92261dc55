//! Main memory within one process: the handle is handed over, nothing is copied.
//!
//! The writer leaves the buffer in a process-wide table under a random key and sends the key; the reader takes it out.
//! If the writer kept no handle of its own, the reader then owns the memory alone and may write to it. A reader that
//! brought memory of its own gets one copy, on a thread for blocking work.
//!
//! The key is random, one for each hand-over: whoever is not in this process, whatever it says, has no table to look it up
//! in, and cannot guess another one.

use std::collections::HashMap;

use super::{Channel, ChannelFault, Lane, LaneHandle, LaneIo, Link, OpId, Threshold, Want, costs};
use crate::device::{Buffer, BufferMut, Device, MemoryKind};
use crate::error::Error;
use crate::process::{Token, process_id, random_token};
use crate::sync::{Mutex, lock};
use crate::sys::fork::PerProcess;

type Table = Mutex<HashMap<Token, Buffer>>;

fn table() -> &'static Table {
    static TABLE: PerProcess<Table> = PerProcess::new();
    TABLE.get(Table::default)
}

/// Channel `xth` ("cross-thread").
#[derive(Debug, Default)]
pub struct XthChannel(());

impl XthChannel {
    /// Works everywhere.
    pub fn new() -> Self {
        Self(())
    }
}

impl Channel for XthChannel {
    fn name(&self) -> &'static str {
        "xth"
    }

    fn devices(&self) -> Vec<(Device, Vec<u8>)> {
        vec![(Device::CPU, process_id().to_vec())]
    }

    fn in_process(&self) -> bool {
        true
    }

    fn reaches(&self, ours: (Device, &[u8]), theirs: (Device, &[u8])) -> Result<(), String> {
        if ours.1 == theirs.1 {
            Ok(())
        } else {
            Err("the peer is another process".to_owned())
        }
    }

    fn thresholds(&self, _: &[(Device, Vec<u8>)]) -> Vec<Threshold> {
        costs::XTH.to_vec()
    }

    fn moves_bytes(&self, _: MemoryKind) -> bool {
        false
    }

    fn open(&self, link: Link) -> Result<Box<dyn Lane>, Error> {
        Ok(Box::new(XthLane {
            handle: link.handle,
            offered: HashMap::new(),
            wanted: HashMap::new(),
        }))
    }
}

struct XthLane {
    handle: LaneHandle,
    /// Keys of what lies in the table for the peer.
    offered: HashMap<OpId, Token>,
    wanted: HashMap<OpId, Want>,
}

impl Lane for XthLane {
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        let key = random_token();
        lock(table()).insert(key, source);
        self.offered.insert(op, key);
        io.control(op, key);
    }

    fn recv(&mut self, op: OpId, want: Want, _: &mut LaneIo<'_>) {
        self.wanted.insert(op, want);
    }

    fn control(&mut self, op: OpId, body: &[u8], io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        if op.outgoing {
            // The reader has it.
            if self.offered.remove(&op).is_some() {
                io.sent(op);
            }
            return Ok(());
        }
        let Some(want) = self.wanted.remove(&op) else {
            return Err(ChannelFault(format!(
                "a key for {op:?}, which nobody waits for"
            )));
        };
        let key = Token::try_from(body)
            .map_err(|_| ChannelFault("a key that is not 16 bytes long".to_owned()))?;
        let Some(source) = lock(table()).remove(&key) else {
            // The writer has taken it back or is gone: its RESET, or the end of the pipe, is behind this frame.
            return Ok(());
        };
        let (len, dest) = match want {
            Want::Adopt { len, .. } => (len, None),
            Want::Into(dest) => (dest.len() as u64, Some(dest)),
        };
        if source.len() as u64 != len {
            return Err(ChannelFault(format!(
                "a tensor of {} bytes instead of {len}",
                source.len()
            )));
        }
        match dest {
            None => {
                io.control(op, Vec::new());
                io.received(op, source);
            }
            Some(dest) => self.handle.copy(op, (source, dest), &[], io),
        }
        Ok(())
    }

    fn streamed(&mut self, _: OpId, _: Option<BufferMut>, _: &mut LaneIo<'_>) {}

    fn cancel(&mut self, op: OpId, _: &mut LaneIo<'_>) {
        self.wanted.remove(&op);
        if let Some(key) = self.offered.remove(&op) {
            lock(table()).remove(&key);
        }
    }
}

impl Drop for XthLane {
    fn drop(&mut self) {
        let mut table = lock(table());
        for key in self.offered.values() {
            table.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fork::tests::children_can;

    #[test]
    fn a_forked_child_has_a_table_of_its_own() {
        assert!(children_can(|| {
            lock(table()).insert([0; 16], Buffer::copy_from_slice(b"left"));
        }));
    }
}
