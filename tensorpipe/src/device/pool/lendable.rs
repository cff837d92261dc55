//! Memory that can be lent to another process of this machine without a copy.
//!
//! It lies in sealed segments. Each segment is cut into pieces of one size. A sealed segment can only be freed whole, so segments are
//! small: 2 MiB with pieces of up to 1 MiB, or a single piece. A piece is reused when its handles are gone and its loans are back.
//! Borrowers do not notify: the pool checks when it needs memory, and `stats` when it is called.
//!
//! Invariant: a piece is in one `LendableBlock`, in one free list or in the lent list; `mapped_bytes <= limit`; a piece that is free, or
//! is just being handed out, has no loan.

// By their paths, since `tensorpipe-loom` includes this file by its own.
#[path = "lendable/block.rs"]
mod block;

pub(crate) use block::LendableBlock;

use std::collections::{BTreeMap, VecDeque};

use smallvec::SmallVec;

use super::{BufferMut, Class};
use crate::sync::{Arc, Mutex, lock};
use crate::sys::fork::Origin;
use crate::sys::ledger::Loan;
use crate::sys::segment::{Pages, Piece, Segment, SegmentId};

/// Size of segments with several pieces; longer segments are multiples of it: a huge page.
const SLAB: usize = 2 << 20;

/// Longer pieces are multiples of it.
const PAGE: usize = 4096;

/// Each segment takes a file descriptor.
const SEGMENTS: u64 = 512;

/// How many lent pieces are checked when one is needed. If borrowers keep `n`, some `n / (LOOKS - 1)` that are back go unnoticed: each
/// time, one more is lent and `LOOKS` are checked. Chosen.
const LOOKS: usize = 8;

/// What the lendable part of a [`Pool`](super::Pool) did so far and holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LendableStats {
    /// Blocks handed out.
    pub taken: u64,
    /// Of these, how many were warm.
    pub recycled: u64,
    /// How often there was none, because the bound was reached or the system refused. Ordinary memory was handed out instead, which
    /// is copied when it is sent.
    pub fallbacks: u64,
    /// Of these, how many because the system refused; the log says why, the first time.
    pub refused: u64,
    /// Segments: each is a mapping and a file descriptor.
    pub segments: u64,
    /// Bytes of all segments.
    pub mapped_bytes: u64,
    /// Of these, on huge pages that were set aside (`vm.nr_hugepages`).
    pub reserved_bytes: u64,
    /// Of these, on huge pages that the kernel assembled.
    pub huge_bytes: u64,
    /// Bytes in use by this process, in whole blocks.
    pub outstanding_bytes: u64,
    /// Bytes that this process has dropped but other processes have not given back.
    pub lent_bytes: u64,
    /// How often a tensor was copied instead of lent because its reader's process had reached its limit of loans from this process
    /// ([`LeaseChannel`](crate::channels::LeaseChannel) says how many).
    pub ledger_full: u64,
}

pub(super) struct Lendables {
    /// Bytes of all segments, at most.
    limit: u64,
    /// Bytes of unused segments that are kept.
    retain: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// A forked child does not own any of this: its parent does.
    origin: Option<Origin>,
    /// By size of piece.
    shelves: BTreeMap<usize, Shelf>,
    idle_bytes: u64,
    /// Orders segments by when they became idle.
    clock: u64,
    /// `clock` at the last [`Lendables::trim_stale`].
    mark: u64,
    stats: LendableStats,
}

/// Pieces of one size.
#[derive(Default)]
struct Shelf {
    slabs: Vec<Slab>,
    /// Dropped by this process, but not given back by borrowers.
    lent: VecDeque<(Piece, Loans)>,
}

/// One segment's unused pieces.
struct Slab {
    segment: SegmentId,
    total: usize,
    free: Vec<Piece>,
    /// When the last piece came back.
    idle_since: u64,
}

impl Shelf {
    /// The segment to take the next piece from: preferably one in use that has free pieces, and among those the one filled last,
    /// which is warmest.
    fn next(&self) -> Option<usize> {
        let free = |is_idle| {
            let mut slabs = self.slabs.iter();
            slabs.rposition(|slab| !slab.free.is_empty() && slab.is_idle() == is_idle)
        };
        free(false).or_else(|| free(true))
    }
}

impl Slab {
    fn is_idle(&self) -> bool {
        self.free.len() == self.total
    }
}

type Loans = SmallVec<[Loan; 2]>;

impl Lendables {
    pub(super) fn new(limit: u64, retain: u64) -> Arc<Self> {
        Arc::new(Self {
            limit,
            retain,
            state: Mutex::default(),
        })
    }

    /// `len` bytes, and whether they may hold old content; `None` if there are none.
    pub(super) fn take(self: &Arc<Self>, len: usize) -> Option<(BufferMut, bool)> {
        if len == 0 || self.limit == 0 {
            return None;
        }
        let Some((piece, warm)) = self.piece(len) else {
            lock(&self.state).stats.fallbacks += 1;
            return None;
        };
        let block = LendableBlock::new(piece, self);
        BufferMut::from_memory(Arc::new(block), len)
            .ok()
            .map(|buffer| (buffer, warm))
    }

    /// As [`take`](Self::take), but only from memory that is free.
    pub(super) fn take_free(self: &Arc<Self>, len: usize) -> Option<BufferMut> {
        let (size, _) = layout(len).filter(|_| len > 0)?;
        let origin = Origin::here().ok()?;
        let piece = {
            let mut state = lock(&self.state);
            if state.origin != Some(origin) {
                return None;
            }
            state.reuse(size)?
        };
        BufferMut::from_memory(Arc::new(LendableBlock::new(piece, self)), len).ok()
    }

    fn piece(&self, len: usize) -> Option<(Piece, bool)> {
        let (size, segment_len) = layout(len)?;
        let origin = Origin::here().ok()?;
        let evicted = {
            let mut state = lock(&self.state);
            if state.origin.is_some_and(|owner| owner != origin) {
                // A forked child must not touch anything of the parent's, not even to drop it.
                std::mem::forget(std::mem::take(&mut *state));
            }
            state.origin = Some(origin);
            if let Some(piece) = state.reuse(size) {
                return Some((piece, true));
            }
            state.make_room(segment_len as u64, self.limit)?
        };
        drop(evicted);
        let cut = Segment::cut(segment_len, size);
        let mut state = lock(&self.state);
        let piece = match cut {
            Ok(pieces) => state.add(size, pieces),
            Err(error) => {
                state.stats.refused += 1;
                if state.stats.refused == 1 {
                    tracing::warn!(%error, "no lendable memory: ordinary memory is handed out, which is copied when it is sent");
                }
                None
            }
        };
        if piece.is_none() {
            state.stats.segments -= 1;
            state.stats.mapped_bytes -= segment_len as u64;
        }
        Some((piece?, false))
    }

    /// Whether there is room for `len` bytes, used and unused memory together.
    pub(super) fn has_room(&self, len: usize) -> bool {
        let Some((size, segment_len)) = layout(len) else {
            return false;
        };
        let mut state = lock(&self.state);
        let room = |state: &State| {
            let in_use = state.stats.mapped_bytes - state.idle_bytes;
            in_use + segment_len as u64 <= self.limit || state.next(size).is_some()
        };
        room(&state) || {
            state.sweep_all();
            room(&state)
        }
    }

    pub(super) fn stats(&self) -> LendableStats {
        let mut state = lock(&self.state);
        state.sweep_all();
        state.stats
    }

    pub(super) fn trim(&self, keep_bytes: u64) {
        let evicted = {
            let mut state = lock(&self.state);
            state.sweep_all();
            state.evict(keep_bytes)
        };
        // Unmapping takes long: not under the lock.
        drop(evicted);
    }

    /// Frees segments that were unused since the last call.
    pub(super) fn trim_stale(&self) {
        let evicted = {
            let mut state = lock(&self.state);
            state.sweep_all();
            state.evict_stale()
        };
        drop(evicted);
    }

    fn could_not_lend(&self) {
        lock(&self.state).stats.ledger_full += 1;
    }

    fn give_back(&self, piece: Piece, loans: Loans) {
        if !piece.segment().is_here() {
            return;
        }
        let evicted = {
            let mut state = lock(&self.state);
            let size = piece.len();
            state.stats.outstanding_bytes -= size as u64;
            if loans.is_empty() {
                state.put(piece);
            } else {
                state.stats.lent_bytes += size as u64;
                let shelf = state.shelves.entry(size).or_default();
                shelf.lent.push_back((piece, loans));
            }
            state.evict(self.retain)
        };
        drop(evicted);
    }
}

impl State {
    fn reuse(&mut self, size: usize) -> Option<Piece> {
        // A piece that was lent last and is back is warmer than free ones. While returned pieces may wait, do not start an unused
        // segment: otherwise everything that a burst ever needed would stay in use.
        if !self.sweep_last(size) && self.next(size).is_none_or(Slab::is_idle) {
            self.sweep(size, LOOKS);
            if self.next(size).is_none() {
                self.sweep(size, usize::MAX);
            }
        }
        let shelf = self.shelves.get_mut(&size)?;
        let at = shelf.next()?;
        let slab = &mut shelf.slabs[at];
        let was_idle = slab.is_idle();
        let piece = slab.free.pop()?;
        if was_idle {
            self.idle_bytes -= piece.segment().len() as u64;
        }
        self.stats.taken += 1;
        self.stats.recycled += 1;
        self.stats.outstanding_bytes += size as u64;
        Some(piece)
    }

    fn next(&self, size: usize) -> Option<&Slab> {
        let shelf = self.shelves.get(&size)?;
        shelf.next().map(|at| &shelf.slabs[at])
    }

    /// Counts a segment that is about to be made, and removes unused ones to make room; the caller drops these. `None`: the rest is
    /// in use.
    fn make_room(&mut self, len: u64, limit: u64) -> Option<Vec<Slab>> {
        let fits = |state: &Self| {
            state.stats.mapped_bytes + len <= limit && state.stats.segments < SEGMENTS
        };
        let mut evicted = Vec::new();
        if !fits(self) {
            self.sweep_all();
            // If removing all unused segments would not make enough room, remove none.
            if self.stats.mapped_bytes - self.idle_bytes + len > limit {
                return None;
            }
        }
        while !fits(self) {
            evicted.push(self.evict_oldest()?);
        }
        self.stats.segments += 1;
        self.stats.mapped_bytes += len;
        Some(evicted)
    }

    /// Puts all pieces of a new segment but one on their shelf; returns that one.
    fn add(&mut self, size: usize, mut pieces: Vec<Piece>) -> Option<Piece> {
        let total = pieces.len();
        let piece = pieces.pop()?;
        let segment = piece.segment();
        if let Some(counted) = self.counted(segment.pages()) {
            *counted += segment.len() as u64;
        }
        let slab = Slab {
            segment: segment.id(),
            total,
            free: pieces,
            idle_since: 0,
        };
        self.shelves.entry(size).or_default().slabs.push(slab);
        self.stats.taken += 1;
        self.stats.outstanding_bytes += size as u64;
        Some(piece)
    }

    /// The statistics field for segments on such pages; segments on small pages are the remainder.
    fn counted(&mut self, pages: Pages) -> Option<&mut u64> {
        match pages {
            Pages::Reserved => Some(&mut self.stats.reserved_bytes),
            Pages::Huge => Some(&mut self.stats.huge_bytes),
            Pages::Small => None,
        }
    }

    /// Puts an unused piece on its shelf.
    fn put(&mut self, piece: Piece) {
        let (id, len) = (piece.segment().id(), piece.segment().len() as u64);
        let slabs = self
            .shelves
            .get_mut(&piece.len())
            .map(|shelf| &mut shelf.slabs);
        let Some(slab) = slabs.and_then(|slabs| slabs.iter_mut().find(|slab| slab.segment == id))
        else {
            return;
        };
        slab.free.push(piece);
        if slab.is_idle() {
            self.clock += 1;
            slab.idle_since = self.clock;
            self.idle_bytes += len;
        }
    }

    /// Checks whether the piece of this size that was lent last is back.
    fn sweep_last(&mut self, size: usize) -> bool {
        let lent = self.shelves.get_mut(&size).map(|shelf| &mut shelf.lent);
        let is_back = |(_, loans): &mut (Piece, Loans)| loans.iter().all(Loan::is_back);
        let Some((piece, _)) = lent.and_then(|lent| lent.pop_back_if(is_back)) else {
            return false;
        };
        self.stats.lent_bytes -= size as u64;
        self.put(piece);
        true
    }

    /// Checks which lent pieces of a size are back, at most `at_most`, the least recently checked first.
    fn sweep(&mut self, size: usize, at_most: usize) {
        let Some(shelf) = self.shelves.get_mut(&size) else {
            return;
        };
        let mut back = SmallVec::<[Piece; LOOKS]>::new();
        for _ in 0..shelf.lent.len().min(at_most) {
            let Some((piece, mut loans)) = shelf.lent.pop_front() else {
                break;
            };
            loans.retain(|loan| !loan.is_back());
            if loans.is_empty() {
                back.push(piece);
            } else {
                shelf.lent.push_back((piece, loans));
            }
        }
        for piece in back {
            self.stats.lent_bytes -= size as u64;
            self.put(piece);
        }
    }

    fn sweep_all(&mut self) {
        let sizes: Vec<_> = self.shelves.keys().copied().collect();
        sizes
            .into_iter()
            .for_each(|size| self.sweep(size, usize::MAX));
    }

    /// Removes unused segments beyond `keep_bytes`, the longest unused first; the caller drops them without the lock.
    fn evict(&mut self, keep_bytes: u64) -> Vec<Slab> {
        let mut evicted = Vec::new();
        while self.idle_bytes > keep_bytes {
            let Some(slab) = self.evict_oldest() else {
                break;
            };
            evicted.push(slab);
        }
        evicted
    }

    fn evict_stale(&mut self) -> Vec<Slab> {
        let mark = std::mem::replace(&mut self.mark, self.clock);
        let mut evicted = Vec::new();
        while self.oldest().is_some_and(|(.., since)| since <= mark) {
            evicted.extend(self.evict_oldest());
        }
        evicted
    }

    /// The segment that has been idle for longest: its shelf, its place there, and since when.
    fn oldest(&self) -> Option<(usize, usize, u64)> {
        let slabs = self.shelves.iter().flat_map(|(size, shelf)| {
            let slabs = shelf.slabs.iter().enumerate();
            slabs.map(move |(at, slab)| (*size, at, slab))
        });
        let idle = slabs.filter(|(_, _, slab)| slab.is_idle());
        let idle = idle.map(|(size, at, slab)| (size, at, slab.idle_since));
        idle.min_by_key(|(.., since)| *since)
    }

    fn evict_oldest(&mut self) -> Option<Slab> {
        let (size, at, _) = self.oldest()?;
        let slab = self.shelves.get_mut(&size)?.slabs.remove(at);
        let segment = slab.free.first()?.segment();
        let (len, pages) = (segment.len() as u64, segment.pages());
        self.idle_bytes -= len;
        self.stats.segments -= 1;
        self.stats.mapped_bytes -= len;
        if let Some(counted) = self.counted(pages) {
            *counted -= len;
        }
        Some(slab)
    }
}

/// Size of the piece for `len` bytes, and of its segment; `None` for what no memory can hold.
fn layout(len: usize) -> Option<(usize, usize)> {
    if len <= SLAB / 2 {
        // Pieces are as long as their number per segment allows: 768 KiB and 1 MiB are one size.
        let class = Class::of(len).size;
        let whole_pages = SLAB / (SLAB / class) / PAGE * PAGE;
        return Some((class.max(whole_pages), SLAB));
    }
    let size = Class::of(len).size.checked_next_multiple_of(SLAB)?;
    (size <= isize::MAX as usize).then_some((size, size))
}

#[cfg(test)]
#[path = "lendable/tests.rs"]
mod tests;
