//! One large tensor over several connections of the pipe's transport at once ("multi-plexed transport").
//!
//! Used where it is asked for: [`ContextBuilder::prefer_channel`](crate::ContextBuilder::prefer_channel) at both ends. It leaves what is
//! smaller than its threshold to the next channel, if there is one.
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
//! - The connections are opened when the first tensor is sent, not before. The end that accepted the pipe gives out tokens, the other joins
//!   with them at the pipe's address ([`ConnectionSource`]). That may fail, since the listener has stopped or something between the two is full, or
//!   take longer than 15 s. Then the tensors that wait for them travel on the pipe's own connection, with a round trip more than by
//!   `basic`. Later ones travel by the next channel.
//! - No split beforehand: whichever connection has room takes the next chunk of 512 KiB. So a slow one carries less.
//! - A task of its own drives each connection. A chunk is written from the sender's memory and read into the receiver's;
//!   in between there is what the two systems buffer, nothing else.
//! - A connection that ends is done without: the others carry what was not confirmed on it. A chunk that is late, by what those before
//!   took, there or else on another, travels on another as well, and the reader drops what comes twice. So the loss of one costs
//!   some 20 ms, not the pipe; where chunks take long, up to three times what the first took.
//! - The pipe ends with [`Error::Lost`] where the last connection ends in the middle of a tensor, or confirms nothing for 60 s.
//! - With credit given ahead a tensor still waits for the reader's GO: another connection may overtake its descriptor.

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

/// How many connections by default.
const CONNECTIONS: u8 = 4;

/// More are of no use, and a peer cannot ask for them.
const CONNECTIONS_MAX: u8 = 16;

/// What is spoken on the further connections.
const DESCRIPTOR: &[u8] = b"1";

/// Channel `mpt`: a large tensor travels over several connections of the pipe's transport at once.
///
/// It pays on links where one connection does not get all that is there: paced or throttled per connection, or long and with
/// losses. Over loopback it wins nothing (four connections take 1.4 times as long as one), so it is in no default list: both ends
/// ask for it. Smaller tensors are left to the next channel, and what can be lent to `lease`, where there is one. The
/// connections are opened when the first large tensor is sent; where they cannot be, because the listener has stopped
/// or within 15 s, the pipe goes on without. Where one is lost the others carry what was on it; where all are, in the middle of a
/// tensor, the pipe ends.
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

    /// That many connections for each pipe. Where the two ends differ the smaller number counts.
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

    /// How many chunks this context has sent by each of the connections, over all pipes.
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
