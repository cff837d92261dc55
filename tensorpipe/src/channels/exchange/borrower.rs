//! A process that this one lends to.
//!
//! Invariant: while a borrower can have something, somebody holds its [`Borrower`]. That is a lane of a pipe to it, or the broker, who has
//! a connection of its, or watches whether it ends. That cannot be where its connection was lost to an error in the moment in which it took
//! something, or where there is no broker any more. Then nobody hears of its end: what it has is back when it gives it back, or never.

use std::any::Any;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use super::copies::Copies;
use super::offer::Offer;
use super::{Command, Exchange, LendError};
use crate::device::{Buffer, BufferMut, LendableBlock, Memory};
use crate::error::SystemError;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering, Weak, lock};
#[cfg(feature = "cuda")]
use crate::sys::ledger::Loan;
use crate::sys::ledger::{LOANS, Ledger, Open, Pinned};
use crate::sys::peer;
use crate::sys::segment::{Segment, SegmentId, SegmentObserver};

/// See the module's documentation.
#[derive(Debug)]
pub(in crate::channels) struct Borrower {
    exchange: Weak<Exchange>,
    /// Its pidfd.
    process: Arc<OwnedFd>,
    /// Made when it comes.
    ledger: OnceLock<Arc<Ledger>>,
    /// It was said that it has as many loans as it can have.
    has_warned: AtomicBool,
    /// Segments of which something was lent to it: it may have these and no others.
    segments: Mutex<BTreeMap<SegmentId, Told>>,
    /// For ordinary memory.
    copies: Copies,
}

/// A segment that a borrower was told of.
#[derive(Debug)]
struct Told {
    segment: Weak<Segment>,
    /// It has asked for it, and may have it mapped.
    fetched: bool,
}

impl Borrower {
    pub(super) fn new(exchange: &Arc<Exchange>, process: Arc<OwnedFd>) -> Self {
        Self {
            exchange: Arc::downgrade(exchange),
            process,
            ledger: OnceLock::new(),
            has_warned: AtomicBool::new(false),
            segments: Mutex::default(),
            copies: Copies::new(),
        }
    }

    /// Whether `len` bytes of ordinary memory can be copied for it: it may keep as much as it can have.
    pub(in crate::channels) fn has_room(&self, len: usize) -> bool {
        let has_slot = self.ledger().is_none_or(|ledger| ledger.has_room());
        has_slot && self.copies.has_room(len)
    }

    /// Memory for a copy, to be lent to it. It may take a while: a new segment is made where none is free.
    pub(in crate::channels) fn take(&self, len: usize) -> Option<BufferMut> {
        let (memory, first) = self.copies.take(len)?;
        self.taken(memory, first)
    }

    /// The same, if some is free.
    pub(in crate::channels) fn take_free(&self, len: usize) -> Option<BufferMut> {
        let (memory, first) = self.copies.take_free(len)?;
        self.taken(memory, first)
    }

    fn taken(&self, memory: BufferMut, first: bool) -> Option<BufferMut> {
        if let (true, Some(exchange)) = (first, self.exchange.upgrade()) {
            exchange.ask(Command::Tidy);
        }
        Some(memory)
    }

    /// Frees unused copies, if none was made for a while. Returns whether to look again.
    pub(super) fn tidy(&self) -> bool {
        self.copies.tidy()
    }

    /// Offers memory to it; why not, in words. Nothing of it is needed any more to [recall](Self::recall) the offer.
    pub(in crate::channels) fn lend(
        self: &Arc<Self>,
        source: &Buffer,
    ) -> Result<(Offer, Open), LendError> {
        let block = source.memory().as_any().downcast_ref::<LendableBlock>();
        let place = block.and_then(|block| Some((block, block.place()?)));
        let (block, (segment, start)) =
            place.ok_or_else(|| LendError::now("it lies in ordinary memory"))?;
        let ledger = self.made_ledger()?;
        self.tell(segment);
        let part = source.offset()..source.offset() + source.len();
        let told = block.lend(ledger, part);
        let (entry, open) = told.ok_or_else(|| self.is_full())?;
        let offer = Offer {
            segment: segment.id(),
            offset: start + source.offset() as u64,
            len: source.len() as u64,
            entry,
        };
        Ok((offer, open))
    }

    /// Offers a range of a device's memory to it, which is not used again before the loan is back; why not, in words. It may span
    /// segments behind this one, which whoever has the loan keeps.
    #[cfg(feature = "cuda")]
    pub(in crate::channels) fn lend_range(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        behind: &[Arc<Segment>],
        range: std::ops::Range<usize>,
    ) -> Result<(Offer, Loan), LendError> {
        let ledger = self.made_ledger()?;
        self.tell(segment);
        behind.iter().for_each(|segment| self.tell(segment));
        let (offset, len) = (range.start as u64, range.len() as u64);
        let loan = ledger.offer(segment, range);
        let loan = loan.ok_or_else(|| self.is_full())?;
        let offer = Offer {
            segment: segment.id(),
            offset,
            len,
            entry: loan.entry(),
        };
        Ok((offer, loan))
    }

    /// Withdraws an offer that it has not taken, to read here what it was about.
    pub(in crate::channels) fn recall(&self, offer: &Offer, open: Open) -> Option<Buffer> {
        let pinned = self.ledger()?.recall(open, offer.range()?)?;
        Some(Buffer::new(Arc::new(Returned::new(pinned)?)))
    }

    /// What it sends back of what it was lent, to be read here; `None` if it has not got that.
    pub(in crate::channels) fn sends_back(&self, offer: &Offer) -> Option<Returned> {
        let pinned = self
            .ledger()?
            .pin(offer.entry, offer.segment, offer.range()?);
        Returned::new(pinned?)
    }

    fn is_full(&self) -> LendError {
        let reason =
            format!("the peer's process has {LOANS} loans, which is as many as it can have");
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!("{reason}: tensors are copied until some are given back");
        }
        LendError::now(reason)
    }

    /// The ledger, if anything was ever lent.
    pub(in crate::channels) fn ledger(&self) -> Option<&Arc<Ledger>> {
        self.ledger.get()
    }

    /// To be passed to it.
    pub(super) fn made_ledger(&self) -> Result<&Arc<Ledger>, SystemError> {
        if let Some(ledger) = self.ledger.get() {
            return Ok(ledger);
        }
        let ledger = Ledger::new()?;
        Ok(self.ledger.get_or_init(|| ledger))
    }

    /// It may have this segment from now on.
    fn tell(self: &Arc<Self>, segment: &Arc<Segment>) {
        let id = segment.id();
        let told = Told {
            segment: Arc::downgrade(segment),
            fetched: false,
        };
        {
            let mut segments = lock(&self.segments);
            if segments.contains_key(&id) {
                return;
            }
            segments.insert(id, told);
        }
        let borrower = Arc::downgrade(self);
        segment.add_observer(borrower);
    }

    /// The segment that it asks for, if it was told of it.
    pub(super) fn fetch(&self, id: SegmentId) -> Option<Arc<Segment>> {
        let mut segments = lock(&self.segments);
        let told = segments.get_mut(&id)?;
        told.fetched = true;
        told.segment.upgrade()
    }

    pub(super) fn has_ended(&self) -> bool {
        peer::has_ended(&self.process)
    }

    /// Whether it has something that is not back.
    pub(super) fn has_loans(&self) -> bool {
        self.ledger().is_some_and(|ledger| ledger.is_out())
    }

    /// Its process has ended.
    pub(super) fn ended(&self) {
        if let Some(ledger) = self.ledger() {
            ledger.close();
        }
        self.copies.free();
    }
}

impl SegmentObserver for Borrower {
    fn gone(self: Arc<Self>, segment: SegmentId) {
        let told = lock(&self.segments).remove(&segment);
        if let (Some(Told { fetched: true, .. }), Some(exchange)) = (told, self.exchange.upgrade())
        {
            exchange.ask(Command::Retire {
                borrower: self,
                segment,
            });
        }
    }
}

/// Memory of this process's that was lent and is sent back. Its pool does not use it again while this is there.
#[derive(Debug)]
pub(in crate::channels) struct Returned(Pinned);

impl Returned {
    /// A peer may name memory of a device, which is not to be read so.
    fn new(pinned: Pinned) -> Option<Self> {
        pinned.bytes()?;
        Some(Self(pinned))
    }

    /// Whether its borrower has it no more.
    pub(in crate::channels) fn is_over(&self) -> bool {
        self.0.is_returned()
    }
}

impl Memory for Returned {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn as_bytes(&self) -> Option<&[u8]> {
        self.0.bytes()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::device::{Pool, PoolOptions};
    use crate::sys::ledger::Debts;

    /// One that nobody watches.
    fn borrower() -> Arc<Borrower> {
        let (socket, _) = UnixStream::pair().unwrap();
        let process = Arc::new(peer::pidfd(&socket).unwrap());
        Arc::new(Borrower::new(&Exchange::here(), process))
    }

    #[test]
    fn a_slice_is_lent_without_what_lies_beside_it() {
        let pool = Pool::new(PoolOptions::default());
        let rows = pool.try_take_lendable(100_000).unwrap().freeze();
        let row = rows.slice(20_000..30_000);
        let borrower = borrower();
        let (offer, _) = borrower.lend(&row).unwrap();
        let debts = Debts::map(borrower.ledger().unwrap().fd()).unwrap();
        assert!(debts.take(offer.entry));
        let back = |by: i64, len| {
            let offset = offer.offset.checked_add_signed(by).unwrap();
            borrower.sends_back(&Offer {
                offset,
                len,
                ..offer
            })
        };
        assert!(back(0, 10_000).is_some() && back(5000, 5000).is_some());
        for (by, len) in [(-1, 100), (0, 10_001), (10_000, 1), (-20_000, 100_000)] {
            assert!(back(by, len).is_none(), "{by}, {len}");
        }
    }

    #[test]
    fn what_nobody_watches_is_not_used_again_before_it_is_back() {
        let pool = Pool::new(PoolOptions::default());
        let mut buffer = pool.try_take_lendable(100_000).unwrap().freeze();
        let borrower = borrower();
        let (offer, _) = borrower.lend(&buffer).unwrap();
        let debts = Debts::map(borrower.ledger().unwrap().fd()).unwrap();
        assert!(debts.take(offer.entry));
        // Its connection was lost, and its last pipe is closed; it still reads.
        drop(borrower);
        assert!(buffer.as_bytes_mut().is_none(), "another process has it");
        debts.give_back(offer.entry);
        assert!(buffer.as_bytes_mut().is_some());
    }

    /// A server's pool lends one segment to processes that come and go for as long as it runs.
    #[test]
    fn a_segment_forgets_borrowers_that_are_gone() {
        let pool = Pool::new(PoolOptions::default());
        let buffer = pool.try_take_lendable(100_000).unwrap().freeze();
        let block = buffer.memory().as_any().downcast_ref::<LendableBlock>();
        let (segment, _) = block.unwrap().place().unwrap();
        for _ in 0..300 {
            let borrower = borrower();
            let (offer, _) = borrower.lend(&buffer).unwrap();
            assert!(borrower.ledger().unwrap().withdraw(offer.entry));
        }
        assert!(
            segment.told() < 10,
            "{} are told of its end",
            segment.told()
        );
    }
}
