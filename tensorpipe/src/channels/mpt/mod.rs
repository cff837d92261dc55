//! One large tensor over several connections of the pipe's transport at once ("multi-plexed transport").
//!
//! Used only if both ends ask for it with [`ContextBuilder::prefer_channel`](crate::ContextBuilder::prefer_channel). Tensors below its
//! threshold go over the next channel, if there is one.
//!
//! ```text
//!   writer                       the pipe's connection                        reader
//!     │ ◀──────────────── GO: memory is there (and tokens to join with) ──────── │ recv
//!     │                                                                          │
//!     │ ═════ connection 0 ═══ [op, offset, len] chunk ═════════════════════════▶│
//!     │ ═════ connection 1 ═══ [op, offset, len] chunk ═════════════════════════▶│ straight to its place
//!     │ ◀═════ each of them ══ so many chunks taken ════════════════════════════ │
//!     │                                                                          │
//!     │ ◀──────────────────────────── DONE ───────────────────────────────────── │
//! ```
//!
//! - The connections are opened when the first tensor is sent, not before. The end that accepted the pipe gives out tokens; the other end
//!   joins with them at the pipe's address ([`ConnectionSource`]). That fails if the listener has stopped or a middlebox refuses more
//!   connections, and it may take longer than 15 s. Then the waiting tensors travel on the pipe's own connection, one round trip slower
//!   than by `basic`. Later tensors use the next channel.
//! - No split beforehand: the connection that has room takes the next chunk of 512 KiB. So a slow one carries less.
//! - A task of its own drives each connection. A chunk is written from the sender's memory and read into the receiver's;
//!   in between there is what the two systems buffer, nothing else.
//! - A lost connection does not end the pipe: the others carry its unconfirmed chunks. A chunk is late compared with earlier ones on its
//!   connection, or else on another. A late chunk is sent on another connection as well, and the reader drops duplicates. So a loss costs
//!   some 20 ms; if chunks take long, up to three times as long as the first took.
//! - The pipe ends with [`Error::Lost`] if the last connection ends in the middle of a tensor, or confirms nothing for 60 s.
//! - Even with credit, a tensor waits for the reader's GO: its chunks could overtake its descriptor, which travels on another connection.

mod arriving;
mod connection;
mod frame;
mod lane;
mod line;
mod sending;
mod stripes;

use std::sync::Arc;

use super::{
    Channel, ChannelFault, ConnectionSource, Expected, JoinToken, Lane, LaneHandle, LaneIo, Link,
};
use super::{Degraded, OpId, Threshold, Want, costs};
use crate::device::{Buffer, Device, DeviceOffer};
use crate::error::{Error, Misuse};
use crate::sync::{AtomicU64, Ordering};
use crate::transports::Connection;

/// Connections by default.
const CONNECTIONS: u8 = 4;

/// The most connections. More would not help, and a peer cannot ask for them.
const CONNECTIONS_MAX: u8 = 16;

/// The name of the protocol on the further connections.
const DESCRIPTOR: &[u8] = b"1";

/// Channel `mpt`: a large tensor travels over several connections of the pipe's transport at once.
///
/// It pays on links where one connection cannot use the full bandwidth: links that are throttled per connection, or long and lossy. Over
/// loopback it wins nothing (four connections take 1.4 times as long as one). So it is in no default list, and both ends have to ask for
/// it. Smaller tensors go over the next channel, and lendable ones over `lease`, if the context has that. The connections are opened when
/// the first large tensor is sent. If the listener has stopped, or they do not open within 15 s, the pipe goes on without them. If one is
/// lost, the others carry its chunks, also those that are still being opened; if all are lost in the middle of a tensor, the pipe ends.
///
/// ```
/// # use tensorpipe::{Context, channels::MptChannel};
/// # fn example() -> Result<Context, Box<dyn std::error::Error>> {
/// let channel = MptChannel::new().connections(8)?;
/// let context = Context::builder().prefer_channel(channel).build()?;
/// # Ok(context)
/// # }
/// ```
#[derive(Debug)]
pub struct MptChannel {
    connections: u8,
    /// Chunks sent, by connection.
    sent: Arc<Vec<AtomicU64>>,
}

impl Default for MptChannel {
    fn default() -> Self {
        Self::new()
    }
}

impl MptChannel {
    /// Four connections for each pipe that sends tensors from 4 MiB.
    pub fn new() -> Self {
        Self {
            connections: CONNECTIONS,
            sent: Arc::new((0..CONNECTIONS_MAX).map(|_| AtomicU64::new(0)).collect()),
        }
    }

    /// Uses so many connections for each pipe. If the two ends differ, the smaller number counts.
    ///
    /// # Errors
    /// [`Misuse::Other`] unless it is from 1 to 16.
    pub fn connections(mut self, connections: u8) -> Result<Self, Misuse> {
        if !(1..=CONNECTIONS_MAX).contains(&connections) {
            return Err(Misuse::Other(format!(
                "channel mpt with {connections} connections; take 1 to {CONNECTIONS_MAX}"
            )));
        }
        self.connections = connections;
        Ok(self)
    }

    /// Chunks that this context has sent on each of the connections, over all pipes.
    pub fn chunks_sent(&self) -> Vec<u64> {
        let all = self.sent.iter().take(usize::from(self.connections));
        all.map(|sent| sent.load(Ordering::Relaxed)).collect()
    }
}

impl Channel for MptChannel {
    fn name(&self) -> &'static str {
        NAME
    }

    fn devices(&self) -> Vec<(Device, Vec<u8>)> {
        vec![(Device::CPU, DESCRIPTOR.to_vec())]
    }

    fn reaches(&self, ours: DeviceOffer<'_>, theirs: DeviceOffer<'_>) -> Result<(), String> {
        if ours.descriptor == theirs.descriptor {
            Ok(())
        } else {
            Err("the peer speaks another version of it".to_owned())
        }
    }

    fn thresholds(&self, _: &[(Device, Vec<u8>)]) -> Vec<Threshold> {
        costs::MPT.to_vec()
    }

    fn open(&self, link: Link) -> Result<Box<dyn Lane>, Error> {
        Ok(Box::new(lane::MptLane::new(
            link,
            self.connections,
            self.sent.clone(),
        )))
    }
}

const NAME: &str = "mpt";

#[cfg(test)]
mod tests;
