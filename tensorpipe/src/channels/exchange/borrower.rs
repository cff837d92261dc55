//! A process that this one lends to.
//!
//! Invariant: while a borrower can hold memory, some owner keeps its [`Borrower`]: a lane of a pipe to it, or the broker, which has a
//! connection from it or watches its pidfd. There are two exceptions: the connection failed in the moment in which the process took
//! something, or the broker does not run any more. Then nobody notices that the process ends, and its loans come back only if it gives them
//! back.
//!
//! A process keeps its connection open as long as it holds a loan. So when it closes the last one and has loans, its program is gone: it
//! has ended, or executes another one. Only the pidfd says so after a connection that the broker closed, or while a forked child of the
//! process runs, which has inherited the connection.

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
    /// Made when the process connects.
    ledger: OnceLock<Arc<Ledger>>,
    /// It has logged once that the borrower has as many loans as it can have.
    has_warned: AtomicBool,
    /// Segments of which something was lent to the borrower: it may fetch these and no others.
    segments: Mutex<BTreeMap<SegmentId, Told>>,
    /// Copies of ordinary memory.
    copies: Copies,
    /// The broker has closed a connection of its own accord: see [`cut_off`](Self::cut_off).
    was_cut_off: AtomicBool,
    /// See [`ended`](Self::ended).
    has_ended: AtomicBool,
}

/// A segment that a borrower was told of.
#[derive(Debug)]
struct Told {
    segment: Weak<Segment>,
    /// The borrower has asked for the segment, and may have it mapped.
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
            was_cut_off: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        }
    }

    /// Whether `len` bytes of ordinary memory can be copied for the borrower: a loan and room in its share are free.
    pub(in crate::channels) fn has_room(&self, len: usize) -> bool {
        let has_slot = self.ledger().is_none_or(|ledger| ledger.has_room());
        has_slot && self.copies.has_room(len)
    }

    /// Memory for a copy that is to be lent to it. May take a while: if none is free, a new segment is made.
    pub(in crate::channels) fn take(&self, len: usize) -> Option<BufferMut> {
        let (memory, first) = self.copies.take(len)?;
        self.taken(memory, first)
    }

    /// Like [`take`](Self::take), but only from memory that is free already.
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

    /// Frees unused copies if none was made for a while. Returns whether to call this again later.
    pub(super) fn tidy(&self) -> bool {
        self.copies.tidy()
    }

    /// Offers memory to the borrower, or says in words why not. To [recall](Self::recall) the offer, the caller need not keep
    /// `source`.
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

    /// Offers a range of a device's memory to the borrower, or says in words why not. The range is not used again before the loan is
    /// back. It may extend into the segments in `behind`, which the holder of the loan keeps.
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

    /// Withdraws an offer that the borrower has not taken, and returns the memory to be read here.
    pub(in crate::channels) fn recall(&self, offer: &Offer, open: Open) -> Option<Buffer> {
        let pinned = self.ledger()?.recall(open, offer.range()?)?;
        Some(Buffer::new(Arc::new(Returned::new(pinned)?)))
    }

    /// The memory that the borrower sends back, to be read here; `None` if the borrower does not have it.
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

    /// The ledger to pass to the borrower, made if there is none yet.
    pub(super) fn made_ledger(&self) -> Result<&Arc<Ledger>, SystemError> {
        if let Some(ledger) = self.ledger.get() {
            return Ok(ledger);
        }
        let ledger = Ledger::new()?;
        Ok(self.ledger.get_or_init(|| ledger))
    }

    /// Lets the borrower fetch this segment from now on.
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

    /// The segment that the borrower asks for, if it was told of it.
    pub(super) fn fetch(&self, id: SegmentId) -> Option<Arc<Segment>> {
        let mut segments = lock(&self.segments);
        let told = segments.get_mut(&id)?;
        told.fetched = true;
        told.segment.upgrade()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed) || peer::has_ended(&self.process)
    }

    /// Whether the borrower has loans that are not back.
    pub(super) fn has_loans(&self) -> bool {
        self.ledger().is_some_and(|ledger| ledger.is_out())
    }

    /// The broker closes a connection of the process. What that takes by its account does not depend on later connections: from now
    /// on only the end of the process tells that its loans are back.
    pub(super) fn cut_off(&self) {
        self.was_cut_off.store(true, Ordering::Relaxed);
    }

    pub(super) fn was_cut_off(&self) -> bool {
        self.was_cut_off.load(Ordering::Relaxed)
    }

    /// Its process has ended, or executes another program.
    pub(super) fn ended(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
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

/// Memory of this process that was lent and is being sent back. Its pool does not reuse it while this value lives.
#[derive(Debug)]
pub(in crate::channels) struct Returned(Pinned);

impl Returned {
    /// `None` for a device's memory, which a peer may name but the CPU must not read here.
    fn new(pinned: Pinned) -> Option<Self> {
        pinned.bytes()?;
        Some(Self(pinned))
    }

    /// Whether the borrower has let go of it.
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
impl Borrower {
    pub(super) fn copies(&self) -> &Copies {
        &self.copies
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::device::{Pool, PoolOptions};
    use crate::sys::ledger::Debts;

    /// A borrower that nobody watches.
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
        // The borrower's connection was lost and its last pipe is closed, but it still reads.
        drop(borrower);
        assert!(buffer.as_bytes_mut().is_none(), "another process has it");
        debts.give_back(offer.entry);
        assert!(buffer.as_bytes_mut().is_some());
    }

    /// A server's pool lends from one segment to processes that come and go as long as the server runs.
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
