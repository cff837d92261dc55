//! What carries a lane's operations: the other side of [`LaneIo`](super::LaneIo).
//!
//! Lanes know operations by their [`OpId`] alone, and their host by this trait. A transfer that belongs to no message, as a read or
//! write of a registered region, needs nothing but an id of its own and a host that knows it. `tests.rs` has such a host.

use rustc_hash::FxHashMap;

use super::{LaneResult, Room, Work};
use crate::device::{Allocators, Buffer, BufferMut, Destination, Device};
use crate::error::Error;
use crate::pipe::budget::{Announced, Announcements, Reservation, out_of_memory};
use crate::pipe::stats::LaneStats;
use crate::proto::{OpId, PipeState};
use crate::route::{Diverted, Requirement};
use crate::sync::Arc;

/// See the module's documentation.
pub(in crate::pipe) trait LaneHost {
    /// Sends bytes to the peer's lane about `op`.
    fn control(&mut self, op: OpId, body: &[u8]);

    /// Sends main memory for `op` on the connection that the lanes share.
    fn stream(&mut self, op: OpId, source: Buffer);

    /// Lets what the peer streams for `op` fill `dest`.
    fn expect(&mut self, op: OpId, dest: Destination);

    /// Addresses for `len` bytes of main memory; no memory is taken yet.
    fn reserve(&mut self, op: OpId, len: u64) -> Result<Destination, Error>;

    /// Memory that the budget counts from now on, if it is main memory. The pipe is locked: memory that a device does not have warm is not
    /// made yet.
    fn room(&mut self, op: OpId, device: Device, len: u64) -> Result<Room, Error>;

    /// Operations that went on.
    fn results(&mut self) -> &mut Vec<LaneResult>;

    /// Work for the thread that drives.
    fn work(&mut self) -> &mut Vec<(OpId, Box<dyn Work>)>;

    /// What lanes count.
    fn stats(&mut self) -> &mut LaneStats;

    /// Where work that takes long runs.
    fn runtime(&self) -> &tokio::runtime::Handle;

    /// Whether somebody waits until the outgoing operation that this is about is sent, as far as is known.
    fn is_awaited(&self) -> bool;

    /// The channels that an outgoing operation has to take, if `over` is none of them.
    fn forbids(&mut self, op: OpId, over: &str) -> Option<String>;

    /// Counts bytes of an outgoing operation that go as channel `over` would send them.
    fn diverts(&mut self, op: OpId, over: &str, bytes: u64, why: &str);

    /// The place for the main memory of a piece, until the piece takes it.
    #[cfg_attr(
        not(feature = "cuda"),
        expect(dead_code, reason = "no lane has others inside")
    )]
    fn piece_place(&mut self) -> &mut Option<(OpId, Destination)>;
}

/// What the writer of a message requires of its parts.
#[derive(Debug)]
pub(in crate::pipe) struct SendOptions {
    /// Each tensor goes over one of these channels, or not at all.
    pub(in crate::pipe) required: Option<Arc<Vec<String>>>,
    /// Counts the parts that go another way.
    pub(in crate::pipe) diverted: Option<Diverted>,
}

/// A pipe, for parts of its messages.
pub(in crate::pipe) struct PipeHost<'a> {
    pub(in crate::pipe) state: &'a mut PipeState<Buffer, Destination>,
    pub(in crate::pipe) results: &'a mut Vec<LaneResult>,
    pub(in crate::pipe) work: &'a mut Vec<(OpId, Box<dyn Work>)>,
    pub(in crate::pipe) stats: &'a mut LaneStats,
    pub(in crate::pipe) allocators: &'a Allocators,
    pub(in crate::pipe) announcements: Option<&'a Announcements>,
    /// Budget of the addresses and, if resident, of the memory that was allocated: until the operation's message, or the piece, is
    /// complete.
    pub(in crate::pipe) announced: &'a mut Vec<(OpId, Announced, Option<Reservation>)>,
    pub(in crate::pipe) runtime: &'a tokio::runtime::Handle,
    /// What the context requires for the device pairs of the lane.
    pub(in crate::pipe) required: &'a [Requirement],
    /// Counts what the lane sends as other channels would.
    pub(in crate::pipe) diverted: &'a Diverted,
    /// Send options, by message.
    pub(in crate::pipe) by_message: &'a FxHashMap<u64, SendOptions>,
    /// Somebody waits until the message is written.
    pub(in crate::pipe) awaited: bool,
    /// The place for the main memory of a piece, until the piece takes it.
    pub(in crate::pipe) piece_place: Option<(OpId, Destination)>,
}

impl PipeHost<'_> {
    fn allocate_main(&mut self, op: OpId, len: u64) -> Result<BufferMut, Error> {
        let mut dest = self.reserve(op, len)?;
        let pool = self.allocators.main();
        if let (Some(announcements), Some((.., taken))) =
            (self.announcements, self.announced.last_mut())
        {
            let cost = dest.cost(0..dest.len(), pool);
            let cost = cost.map_err(|error| out_of_memory(len, error.to_string()))?;
            let taken = taken.get_or_insert_with(|| announcements.reservation());
            taken
                .grow(cost)
                .map_err(|reason| out_of_memory(len, reason))?;
        }
        dest.open(pool)
            .map_err(|error| out_of_memory(len, error.to_string()))?;
        dest.into_memory()
            .ok_or_else(|| out_of_memory(len, "it was not taken".to_owned()))
    }
}

impl LaneHost for PipeHost<'_> {
    fn control(&mut self, op: OpId, body: &[u8]) {
        self.state.channel(op, body);
    }

    fn stream(&mut self, op: OpId, source: Buffer) {
        let len = source.len() as u64;
        self.state.stream(op, source, len);
    }

    fn expect(&mut self, op: OpId, dest: Destination) {
        let len = dest.len() as u64;
        self.state.expect(op, dest, len);
    }

    fn reserve(&mut self, op: OpId, len: u64) -> Result<Destination, Error> {
        let is_this =
            |(piece, dest): &mut (OpId, Destination)| *piece == op && dest.len() as u64 == len;
        let place = self.piece_place.take_if(is_this).map(|(_, dest)| dest);
        // Memory within a place that is announced already takes no more addresses.
        let bytes = if place.is_some() { 0 } else { len };
        let announced = self.announcements.map(|all| all.take(bytes)).transpose();
        let announced = announced.map_err(|reason| out_of_memory(len, reason))?;
        let dest = usize::try_from(len).map_err(|error| out_of_memory(len, error.to_string()))?;
        self.announced
            .extend(announced.map(|announced| (op, announced, None)));
        Ok(place.unwrap_or_else(|| Destination::pooled(dest)))
    }

    fn room(&mut self, op: OpId, device: Device, len: u64) -> Result<Room, Error> {
        if device.is_cpu() {
            return self.allocate_main(op, len).map(Room::Warm);
        }
        let bytes = usize::try_from(len).map_err(|error| out_of_memory(len, error.to_string()))?;
        Ok(Room::of(self.allocators.on(device)?, bytes))
    }

    fn results(&mut self) -> &mut Vec<LaneResult> {
        self.results
    }

    fn work(&mut self) -> &mut Vec<(OpId, Box<dyn Work>)> {
        self.work
    }

    fn stats(&mut self) -> &mut LaneStats {
        self.stats
    }

    fn runtime(&self) -> &tokio::runtime::Handle {
        self.runtime
    }

    fn is_awaited(&self) -> bool {
        self.awaited
    }

    fn forbids(&mut self, op: OpId, over: &str) -> Option<String> {
        // A piece is main memory already, and may go any way.
        if op.number().is_some() {
            return None;
        }
        let by_context = self.required.iter().find(|one| !one.allows(over));
        let by_context = by_context.map(Requirement::to_string);
        by_context.or_else(|| {
            let by_message = self.by_message.get(&op.message)?;
            let by_message = by_message.required.as_ref()?;
            let by_message = self.state.is_tensor(op).then_some(by_message)?;
            let allows = by_message.iter().any(|channel| channel == over);
            (!allows).then(|| by_message.join(" or "))
        })
    }

    fn diverts(&mut self, op: OpId, over: &str, bytes: u64, why: &str) {
        self.stats.diverted += bytes;
        self.diverted.count(over, bytes, why);
        let send_options = self.by_message.get(&op.message);
        if let Some(of_message) =
            send_options.and_then(|send_options| send_options.diverted.as_ref())
        {
            of_message.count(over, bytes, why);
        }
    }

    fn piece_place(&mut self) -> &mut Option<(OpId, Destination)> {
        &mut self.piece_place
    }
}
