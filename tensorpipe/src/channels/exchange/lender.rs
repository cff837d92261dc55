//! A process that lends to this one, and what it has lent.

use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::broker::ANSWER_TIMEOUT;
use super::offer::Offer;
#[cfg(feature = "cuda")]
use super::spans::Found;
use super::spans::Spans;
use super::{Command, Exchange, LendError, Wanted};
use crate::device::{BufferMut, Memory, MemoryKind, Pool};
use crate::process::Token;
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, lock};
use crate::sys::ledger::{Debts, Entry};
use crate::sys::registrations::Registrable;
use crate::sys::segment::{Foreign, SegmentId};
use crate::sys::unix_fds::PacketSocket;

/// Segments of one lender that are mapped here at once: enough for eight contexts whose pools have the most segments a pool can have.
pub(super) const SEGMENTS: usize = 4096;

/// How long a fetch may take. A running broker answers sooner.
pub(in crate::channels) const FETCH_TIMEOUT: Duration =
    ANSWER_TIMEOUT.saturating_add(Duration::from_secs(1));

/// A process that lends to this one. Lanes and borrowed memory hold it; while they do, the connection to its exchange stays open and its
/// segments stay mapped.
#[derive(Debug)]
pub(in crate::channels) struct Lender {
    /// Distinguishes this value from an earlier one for the same process.
    id: u64,
    /// The name of its exchange.
    name: String,
    /// Its pid, which the kernel reports for the exchange's socket; 0 until the exchange was met, or if the process has no pid in
    /// this namespace.
    pid: AtomicU32,
    exchange: Arc<Exchange>,
    has: Mutex<Has>,
    /// It has logged once that no more segments can be mapped.
    has_warned: AtomicBool,
}

/// No more segments can be mapped.
struct Full {
    reason: String,
    remedy: &'static str,
}

/// What came from the lender's exchange.
#[derive(Debug, Default)]
struct Has {
    /// The lender failed to answer or to pass something usable: nothing is asked of it until then.
    unreliable_until: Option<Instant>,
    account: Option<Arc<Account>>,
    segments: BTreeMap<SegmentId, Arc<Mapped>>,
    /// Memory of the lender's devices.
    spans: Spans,
}

/// The ledger, and the connection over which it came. That closes when this process has nothing of the lender's any more, or executes
/// another program: then the lender takes everything for given back.
#[derive(Debug)]
struct Account {
    debts: Debts,
    _connection: Arc<PacketSocket>,
}

/// A mapped segment of a lender. The exchange counts its bytes: if this process reads a page that the lender has not filled, the kernel
/// allocates it on this process's account.
#[derive(Debug)]
struct Mapped {
    memory: Foreign,
    exchange: Arc<Exchange>,
}

impl Mapped {
    /// Counts the segment; if no more may be mapped, says so in words.
    fn new(memory: Foreign, exchange: &Arc<Exchange>) -> Result<Self, String> {
        let len = memory.len() as u64;
        exchange.count_mapped(len)?;
        let exchange = exchange.clone();
        Ok(Self { memory, exchange })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.exchange.uncount_mapped(self.memory.len() as u64);
    }
}

/// Memory of a lender's device, lent to this process. Dropping it gives it back.
#[cfg(feature = "cuda")]
#[derive(Debug)]
pub(in crate::channels) struct Debt {
    account: Arc<Account>,
    entry: Entry,
    /// Keeps the connection by which the lender sees that this process is alive.
    _lender: Arc<Lender>,
}

#[cfg(feature = "cuda")]
impl Drop for Debt {
    fn drop(&mut self) {
        self.account.debts.give_back(self.entry);
    }
}

/// The result of taking an offer.
#[derive(Debug)]
pub(in crate::channels) enum TakeResult {
    Taken(Borrowed),
    /// Its segment or its ledger is not mapped here.
    Unknown,
    /// It was withdrawn, or is one of another ledger: the lender takes this process for another one than before.
    NotOffered,
    /// It lies outside its segment.
    Outside,
}

impl Lender {
    pub(super) fn new(name: &str, exchange: &Arc<Exchange>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            name: name.to_owned(),
            pid: AtomicU32::new(0),
            exchange: exchange.clone(),
            has: Mutex::default(),
            has_warned: AtomicBool::new(false),
        }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Its exchange was reached and belongs to the process with this pid.
    pub(super) fn set_pid(&self, pid: i32) {
        self.pid
            .store(pid.try_into().unwrap_or(0), Ordering::Relaxed);
    }

    /// Takes an offer that came over this lane, without a system call. An application that writes to the memory gets a copy from
    /// `pool`.
    pub(in crate::channels) fn take(
        self: &Arc<Self>,
        offer: &Offer,
        lane: u64,
        pool: &Pool,
    ) -> TakeResult {
        let (segment, account) = {
            let has = lock(&self.has);
            match (has.segments.get(&offer.segment), &has.account) {
                (Some(segment), Some(account)) => (segment.clone(), account.clone()),
                _ => return TakeResult::Unknown,
            }
        };
        let end = offer.offset.checked_add(offer.len);
        let Some(end) = end.filter(|end| *end <= segment.memory.len() as u64) else {
            return TakeResult::Outside;
        };
        if !account.debts.take(offer.entry) {
            return TakeResult::NotOffered;
        }
        TakeResult::Taken(Borrowed {
            range: offer.offset as usize..end as usize,
            segment,
            account,
            entry: offer.entry,
            id: offer.segment,
            lender: self.clone(),
            lane,
            holder: AtomicU32::new(HERE),
            contested: AtomicBool::new(false),
            pool: pool.clone(),
        })
    }

    /// The span of a device's memory in these segments, whose descriptors were all fetched. The result includes evicted mappings:
    /// dropping them unmaps them, for which the driver takes long.
    #[cfg(feature = "cuda")]
    pub(in crate::channels) fn span(&self, ids: &[SegmentId]) -> Result<Found, LendError> {
        let found = {
            let mut has = lock(&self.has);
            if has.account.is_none() {
                return Err(LendError::now("the peer's exchange is not there any more"));
            }
            has.spans.of(ids)
        };
        found.map_err(|(reason, is_full)| match is_full {
            true => self.full(Full {
                reason,
                remedy: "longer allocations there",
            }),
            false => LendError::now(reason),
        })
    }

    /// Takes an offer of a device's memory. `None` if the connection to the lender's exchange is lost, or as
    /// [`NotOffered`](TakeResult::NotOffered).
    #[cfg(feature = "cuda")]
    pub(in crate::channels) fn owe(self: &Arc<Self>, offer: &Offer) -> Option<Debt> {
        let account = lock(&self.has).account.clone()?;
        let entry = offer.entry;
        account.debts.take(entry).then(|| Debt {
            account,
            entry,
            _lender: self.clone(),
        })
    }

    /// Brings an invitation to the lender's exchange, and gets a segment if one is named. Bounded by [`FETCH_TIMEOUT`].
    pub(in crate::channels) async fn fetch(
        self: &Arc<Self>,
        invitation: Token,
        segment: Option<Wanted>,
    ) -> Result<(), LendError> {
        if segment.is_some() {
            let room = lock(&self.has).room();
            room.map_err(|full| self.full(full))?;
        }
        self.exchange.open()?;
        let (tell, told) = tokio::sync::oneshot::channel();
        self.exchange.ask(Command::Fetch {
            lender: self.clone(),
            invitation,
            segment,
            tell,
        });
        let gone = || Err(LendError::now("the exchange of this process is gone"));
        match tokio::time::timeout(FETCH_TIMEOUT, told).await {
            Ok(Ok(told)) => told,
            Ok(Err(_)) => gone(),
            Err(_) => {
                self.failed();
                gone()
            }
        }
    }

    pub(super) fn welcomed(&self, debts: Debts, connection: &Arc<PacketSocket>) {
        let account = Account {
            debts,
            _connection: connection.clone(),
        };
        lock(&self.has).account = Some(Arc::new(account));
    }

    pub(super) fn mapped(&self, id: SegmentId, memory: Foreign) -> Result<(), LendError> {
        let mapped = Mapped::new(memory, &self.exchange).map(Arc::new);
        let added = {
            let mut has = lock(&self.has);
            match (has.room(), &mapped) {
                (Err(full), _) => Err(full),
                (Ok(()), Ok(mapped)) => {
                    has.segments.insert(id, mapped.clone());
                    Ok(())
                }
                (Ok(()), Err(reason)) => {
                    has.unreliable_until = Some(Instant::now() + ANSWER_TIMEOUT);
                    Err(Full {
                        reason: reason.clone(),
                        remedy: "a higher `Limits::receive_budget`",
                    })
                }
            }
        };
        added.map_err(|full| self.full(full))
    }

    /// The lender passed a descriptor of a device's memory.
    pub(super) fn add_descriptor(&self, id: SegmentId, fd: OwnedFd) -> Result<(), LendError> {
        let added = {
            let mut has = lock(&self.has);
            has.room().map(|()| has.spans.add_descriptor(id, fd))
        };
        added.map_err(|full| self.full(full))
    }

    /// Whether this segment was fetched.
    pub(in crate::channels) fn has(&self, wanted: Wanted) -> bool {
        let has = lock(&self.has);
        let known = match wanted {
            Wanted::Main(id) => has.segments.contains_key(&id),
            Wanted::Device(id) => has.spans.has(id),
        };
        has.account.is_some() && known
    }

    /// The lender has released a segment.
    pub(super) fn retired(&self, id: SegmentId) {
        let mut has = lock(&self.has);
        has.spans.retired(id);
        let gone = has.segments.remove(&id);
        drop(has);
        drop(gone);
    }

    /// The connection to its exchange is lost: nothing new can be borrowed by what was mapped before.
    pub(super) fn lost(&self) {
        let has = std::mem::take(&mut *lock(&self.has));
        drop(has);
        self.failed();
    }

    /// The lender did not answer, or passed something that cannot be mapped. For a while, tensors then come as bytes at once instead
    /// of waiting for the lender each time.
    pub(super) fn failed(&self) {
        lock(&self.has).unreliable_until = Some(Instant::now() + ANSWER_TIMEOUT);
    }

    fn full(&self, Full { reason, remedy }: Full) -> LendError {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!("{reason}: tensors in others are copied; {remedy} would help");
        }
        LendError::now(reason)
    }

    pub(in crate::channels) fn is_unreliable(&self) -> bool {
        let until = lock(&self.has).unreliable_until;
        until.is_some_and(|until| Instant::now() < until)
    }
}

impl Has {
    /// Checks that one more segment may be mapped. If not, the lender is not to blame, and what is mapped can still be borrowed from.
    fn room(&self) -> Result<(), Full> {
        if self.segments.len() + self.spans.passed() < SEGMENTS {
            return Ok(());
        }
        let reason =
            format!("{SEGMENTS} segments of the peer's are mapped, which is as many as may be");
        let remedy = "fewer contexts there, or larger tensors";
        Err(Full { reason, remedy })
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        self.exchange.ask(Command::Leave(self.id));
    }
}

/// Memory of another process, lent to this one. Dropping it gives it back.
#[derive(Debug)]
pub(in crate::channels) struct Borrowed {
    range: Range<usize>,
    segment: Arc<Mapped>,
    account: Arc<Account>,
    entry: Entry,
    id: SegmentId,
    /// Keeps the connection by which the lender sees that this process is alive.
    lender: Arc<Lender>,
    /// The lane over which the offer came.
    lane: u64,
    /// Who has the memory, as far as this process knows: one of the constants below.
    holder: AtomicU32,
    /// A message that sends the memory back was withdrawn, but may arrive all the same.
    contested: AtomicBool,
    /// Source of a copy when the application wants to write.
    pool: Pool,
}

const HERE: u32 = 0;
/// On its way back to the lender.
const NOBODY: u32 = 1;
const LENDER: u32 = 2;

impl Borrowed {
    /// Whether the memory can go back over this lane: it came over it, or the kernel says that the process at the lane's other end is
    /// the lender.
    pub(in crate::channels) fn goes_over(&self, lane: u64, peer: Option<u32>) -> bool {
        self.lane == lane || peer == Some(self.lender.pid.load(Ordering::Relaxed))
    }

    /// Marks the memory as on its way back to its lender. Nobody else has a handle on it.
    pub(in crate::channels) fn send_back(&self) {
        self.account.debts.send_back(self.entry);
        self.holder.store(NOBODY, Ordering::Relaxed);
    }

    /// A message that sends the memory back is withdrawn. From now on no such message ends the loan: the withdrawn one could still
    /// arrive and be taken for the next one, whose bytes the lender may then ask for.
    pub(in crate::channels) fn contest(&self) {
        self.contested.store(true, Ordering::Relaxed);
    }

    /// Whether [`contest`](Self::contest) was called. The last holder of the memory always sees that: the withdrawn message was a
    /// holder, too.
    pub(in crate::channels) fn is_contested(&self) -> bool {
        self.contested.load(Ordering::Relaxed)
    }

    /// The bytes are needed here after all. `false` if the lender already has the memory.
    pub(in crate::channels) fn stays(&self) -> bool {
        match self.holder.load(Ordering::Relaxed) {
            HERE => true,
            NOBODY if self.account.debts.keep(self.entry) => {
                self.holder.store(HERE, Ordering::Relaxed);
                true
            }
            _ => false,
        }
    }

    /// The lender says that it has the memory. `false`: the ledger contradicts it.
    pub(in crate::channels) fn arrived(&self) -> bool {
        if self.holder.load(Ordering::Relaxed) == NOBODY
            && self.account.debts.is_returned(self.entry)
        {
            return false;
        }
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let _ = (self.holder).compare_exchange(NOBODY, LENDER, set, fetch);
        true
    }

    /// A part of the memory, in the lender's terms.
    pub(in crate::channels) fn as_offer(&self, offset: usize, len: usize) -> Offer {
        Offer {
            segment: self.id,
            offset: (self.range.start + offset) as u64,
            len: len as u64,
            entry: self.entry,
        }
    }
}

impl Memory for Borrowed {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Borrowed
    }
    fn len(&self) -> usize {
        self.range.len()
    }
    fn allocate_like(&self, len: usize) -> Option<BufferMut> {
        self.pool.try_take(len).ok()
    }
    fn as_bytes(&self) -> Option<&[u8]> {
        Some(self.segment.memory.bytes(self.range.clone()))
    }
    /// The whole segment: everything borrowed from it shares one registration.
    fn registrable(&self) -> Option<Registrable<'_>> {
        Some(Registrable {
            registrations: self.segment.memory.registrations(),
            offset: self.range.start,
            len: self.segment.memory.len(),
        })
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        match self.holder.load(Ordering::Relaxed) {
            HERE => self.account.debts.give_back(self.entry),
            NOBODY => self.account.debts.give_up(self.entry),
            // The ledger's word may already belong to another loan.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{LendableBlock, Pool, PoolOptions};
    use crate::sys::fork::tests::a_child_drops;

    #[tokio::test]
    async fn more_segments_than_are_mapped_here_are_no_fault_of_their_lender() {
        let exchange = Exchange::here();
        exchange.raise_map_limit(1 << 50);
        let lender = exchange.lender("an exchange that is not there");
        let pool = Pool::new(PoolOptions::default());
        let buffer = pool.try_take_lendable(100_000).unwrap().freeze();
        let block = buffer.memory().as_any().downcast_ref::<LendableBlock>();
        let (segment, _) = block.unwrap().place().unwrap();
        let map = |id: u128| {
            let mapped = Foreign::map(segment.fd()).unwrap();
            lender.mapped(id.to_le_bytes(), mapped)
        };
        let many = SEGMENTS as u128;
        (0..many).for_each(|id| map(id).unwrap());
        let unlent = map(many).unwrap_err();
        assert!(unlent.reason.contains("segments") && !unlent.lasting);
        // The lender is not even asked.
        let unlent = lender
            .fetch([0; 16], Some(Wanted::Main([0xff; 16])))
            .await
            .unwrap_err();
        assert!(unlent.reason.contains("segments") && !unlent.lasting);
        assert!(!lender.is_unreliable());
        lender.retired([0; 16]);
        map(many).unwrap();
    }

    #[test]
    fn a_forked_child_lets_go_of_a_lender_whoever_has_the_lock() {
        let exchange = Exchange::here();
        exchange.open().unwrap();
        let mut lender = Some(exchange.lender("an exchange that is not there"));
        let held = lock(&exchange.commands);
        assert!(a_child_drops(&mut lender));
        drop(held);
    }
}
