//! Memory that is handed over within the process: it lies in a table under a random key until it is taken out.
//!
//! Each hand-over has its own random key. A peer in another process has no access to this table, whatever it claims, and cannot guess a
//! key.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::{ChannelFault, Device, Lane, LaneIo, OpId, Want};
use crate::device::Buffer;
use crate::process::{Token, process_id, random_token};
use crate::sync::{Mutex, lock};
use crate::sys::fork::PerProcess;

type Table = Mutex<HashMap<Token, Buffer>>;

fn table() -> &'static Table {
    static TABLE: PerProcess<Table> = PerProcess::new();
    TABLE.get(Table::default)
}

/// What a channel tells about devices that it hands memory over between.
pub(super) fn devices(devices: impl IntoIterator<Item = Device>) -> Vec<(Device, Vec<u8>)> {
    // Without an id there is no pipe.
    let id = process_id().unwrap_or_default();
    let here = |device| (device, id.to_vec());
    devices.into_iter().map(here).collect()
}

/// Whether two descriptors belong to one process.
pub(super) fn reaches(ours: &[u8], theirs: &[u8]) -> Result<(), String> {
    match ours == theirs {
        true => Ok(()),
        false => Err("the peer is another process".to_owned()),
    }
}

/// Removes these from the table. The buffers are dropped after the lock is released, since dropping one may lead back here.
fn forget(keys: &[Token]) {
    let mut table = lock(table());
    let taken: SmallVec<[Buffer; 1]> = keys.iter().filter_map(|key| table.remove(key)).collect();
    drop(table);
    drop(taken);
}

/// What a channel does with memory that has been handed over.
pub(super) trait Take: Send {
    /// The reader has `source`, and its application wants it in `want`. Sends the peer an empty control frame and ends `op`, or fails
    /// it.
    fn take(&mut self, op: OpId, source: Buffer, want: Want, io: &mut LaneIo<'_>);

    /// As [`Lane::resume`].
    fn resume(&mut self, op: OpId, io: &mut LaneIo<'_>) {
        let _ = (op, io);
    }

    /// As [`Lane::cancel`].
    fn cancel(&mut self, op: OpId) {
        let _ = op;
    }
}

/// One end: the writer leaves memory in the table and sends the key.
pub(super) struct HandOver<T> {
    take: T,
    /// Keys under which this end has left memory in the table.
    offered: HashMap<OpId, Token>,
    wanted: HashMap<OpId, Want>,
}

impl<T> HandOver<T> {
    pub(super) fn new(take: T) -> Self {
        Self {
            take,
            offered: HashMap::new(),
            wanted: HashMap::new(),
        }
    }
}

impl<T: Take> Lane for HandOver<T> {
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        let key = match random_token() {
            Ok(key) => key,
            Err(error) => return io.failed(op, error.into()),
        };
        lock(table()).insert(key, source);
        self.offered.insert(op, key);
        io.control(op, key);
    }

    fn recv(&mut self, op: OpId, want: Want, _: &mut LaneIo<'_>) {
        self.wanted.insert(op, want);
    }

    fn control(&mut self, op: OpId, body: &[u8], io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        if op.outgoing {
            if let Some(key) = self.offered.remove(&op) {
                // The reader says that it has taken the memory. If that is not true, the memory is removed
                // all the same.
                forget(&[key]);
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
            // The writer has taken it back or is gone: its RESET, or the end of the pipe, follows.
            return Ok(());
        };
        let len = match &want {
            Want::Adopt { len, .. } => *len,
            Want::Into(dest) => dest.len() as u64,
        };
        if source.len() as u64 != len {
            return Err(ChannelFault(format!(
                "a tensor of {} bytes instead of {len}",
                source.len()
            )));
        }
        self.take.take(op, source, want, io);
        Ok(())
    }

    fn resume(&mut self, op: OpId, io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        self.take.resume(op, io);
        Ok(())
    }

    fn cancel(&mut self, op: OpId, _: &mut LaneIo<'_>) {
        self.wanted.remove(&op);
        if let Some(key) = self.offered.remove(&op) {
            forget(&[key]);
        }
        self.take.cancel(op);
    }
}

impl<T> Drop for HandOver<T> {
    fn drop(&mut self) {
        let keys: Vec<_> = self.offered.values().copied().collect();
        forget(&keys);
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
