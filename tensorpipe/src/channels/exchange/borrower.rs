//! A process that this one lends to.
//!
//! Invariant: while a borrower can have something, somebody holds its [`Borrower`]: a lane of a pipe to it, or the clerk, who
//! has a connection of its, or watches whether it ends. Where that cannot be (its connection was lost to an error in the moment
//! in which it took something, or there is no clerk any more), nobody hears of its end: what it has is back when it gives it
//! back, or never.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::OnceLock;

use super::offer::Offer;
use super::{Command, Exchange, Unlent};
use crate::device::{Buffer, LendableBlock, Memory};
use crate::error::SystemError;
use crate::sync::{Arc, Mutex, Weak, lock};
use crate::sys::ledger::{Ledger, Open, Pinned};
use crate::sys::peer::Identity;
use crate::sys::segment::{Outlives, Segment, SegmentId};

/// See the module's documentation.
#[derive(Debug)]
pub(in crate::channels) struct Borrower {
    exchange: Weak<Exchange>,
    /// The process that it is, as the kernel says: the first that came in its name.
    process: OnceLock<Identity>,
    /// Made for the first loan.
    ledger: OnceLock<Arc<Ledger>>,
    /// Segments of which something was lent to it: it may have these and no others.
    segments: Mutex<BTreeMap<SegmentId, Told>>,
}

/// A segment that a borrower was told of.
#[derive(Debug)]
struct Told {
    segment: Weak<Segment>,
    /// It has asked for it, and may have it mapped.
    fetched: bool,
}

impl Borrower {
    pub(super) fn new(exchange: &Arc<Exchange>) -> Self {
        Self {
            exchange: Arc::downgrade(exchange),
            process: OnceLock::new(),
            ledger: OnceLock::new(),
            segments: Mutex::default(),
        }
    }

    /// Offers memory to it; why not, in words. Nothing of it is needed any more to [recall](Self::recall) the offer.
    pub(in crate::channels) fn lend(
        self: &Arc<Self>,
        source: &Buffer,
    ) -> Result<(Offer, Open), Unlent> {
        let block = source.memory().as_any().downcast_ref::<LendableBlock>();
        let place = block.and_then(|block| Some((block, block.place()?)));
        let (block, (segment, start)) =
            place.ok_or_else(|| Unlent::now("it lies in ordinary memory"))?;
        let exchange = self.exchange.upgrade();
        let exchange = exchange.ok_or_else(|| Unlent::now("the exchange is gone"))?;
        exchange.open()?;
        let ledger = self.made_ledger()?;
        self.tell(segment);
        let told = block.lend(ledger);
        let (entry, open) =
            told.ok_or_else(|| Unlent::now("the peer has too many loans already"))?;
        let offer = Offer {
            segment: segment.id(),
            offset: start + source.offset() as u64,
            len: source.len() as u64,
            entry,
        };
        Ok((offer, open))
    }

    /// Withdraws an offer that it has not taken, to read here what it was about.
    pub(in crate::channels) fn recall(&self, offer: &Offer, open: Open) -> Option<Buffer> {
        let pinned = self.ledger()?.recall(open, offer.range()?)?;
        Some(Buffer::new(Arc::new(Returned(pinned))))
    }

    /// What it sends back of what it was lent, to be read here; `None` if it has not got that.
    pub(in crate::channels) fn sends_back(&self, offer: &Offer) -> Option<Returned> {
        (self.ledger()?.pin(offer.entry, offer.range()?)).map(Returned)
    }

    /// The ledger, if anything was ever lent.
    pub(in crate::channels) fn ledger(&self) -> Option<&Arc<Ledger>> {
        self.ledger.get()
    }

    fn made_ledger(&self) -> Result<&Arc<Ledger>, SystemError> {
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
        segment.when_gone(borrower);
    }

    /// The segment that it asks for, if it was told of it.
    pub(super) fn fetch(&self, id: SegmentId) -> Option<Arc<Segment>> {
        let mut segments = lock(&self.segments);
        let told = segments.get_mut(&id)?;
        told.fetched = true;
        told.segment.upgrade()
    }

    /// Whether it is this process: no other gets anything in its name, or ends in its place.
    pub(super) fn is(&self, process: Identity) -> bool {
        *self.process.get_or_init(|| process) == process
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
    }
}

impl Outlives for Borrower {
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
        Some(self.0.bytes())
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
    use super::*;
    use crate::device::{Pool, PoolOptions};
    use crate::sys::ledger::Debts;

    #[test]
    fn what_nobody_watches_is_not_used_again_before_it_is_back() {
        let pool = Pool::new(PoolOptions::default());
        let mut buffer = pool.try_take_lendable(100_000).unwrap().freeze();
        let borrower = Exchange::here().borrower([9; 16]);
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
        for number in 0..300_u128 {
            let borrower = Exchange::here().borrower(number.to_le_bytes());
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
