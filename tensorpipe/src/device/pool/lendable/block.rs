//! A piece of a segment that this process holds, and the loans of it.
//!
//! Invariant: the bytes can be written only while no loan of them is out.

use std::any::Any;
use std::ops::Range;
use std::sync::PoisonError;

use super::{Lendables, Loans};
use crate::device::{BufferMut, Memory, MemoryKind};
use crate::sync::{Arc, Mutex, Weak, lock};
use crate::sys::ledger::{Entry, Ledger, Open};
use crate::sys::registrations::Registrable;
use crate::sys::segment::{Piece, Segment};

/// A piece in the hands of this process.
pub(crate) struct LendableBlock {
    /// `None` only while dropping.
    piece: Option<Piece>,
    /// The loans of it: the memory is written again only when all of them are back.
    loans: Mutex<Loans>,
    pool: Weak<Lendables>,
}

impl LendableBlock {
    pub(super) fn new(piece: Piece, pool: &Arc<Lendables>) -> Self {
        Self {
            piece: Some(piece),
            loans: Mutex::default(),
            pool: Arc::downgrade(pool),
        }
    }

    /// Where it lies: the segment that a reader must map, and the block's offset in it.
    pub(crate) fn place(&self) -> Option<(&Arc<Segment>, u64)> {
        let piece = self.piece.as_ref()?;
        Some((piece.segment(), piece.offset() as u64))
    }

    /// Offers a part of it, and nothing beside that part, to the borrower with this ledger; `None` if the borrower has too many loans
    /// already.
    pub(crate) fn lend(&self, ledger: &Arc<Ledger>, part: Range<usize>) -> Option<(Entry, Open)> {
        let mut loans = lock(&self.loans);
        loans.retain(|loan| !loan.is_back());
        let piece = self.piece.as_ref()?;
        let range = piece.offset() + part.start..piece.offset() + part.end;
        let Some(loan) = ledger.offer(piece.segment(), range) else {
            if let Some(pool) = self.pool.upgrade() {
                pool.could_not_lend();
            }
            return None;
        };
        let told = (loan.entry(), loan.open());
        loans.push(loan);
        Some(told)
    }
}

impl Memory for LendableBlock {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Pool
    }
    /// Borrowers can map it only for reading.
    fn is_private(&self) -> bool {
        true
    }
    fn len(&self) -> usize {
        self.piece.as_ref().map_or(0, Piece::len)
    }
    fn as_bytes(&self) -> Option<&[u8]> {
        self.piece.as_ref().map(Piece::bytes)
    }
    /// Not while it is lent: others read it.
    fn as_bytes_mut(&mut self) -> Option<&mut [u8]> {
        let loans = self.loans.get_mut().unwrap_or_else(PoisonError::into_inner);
        loans.retain(|loan| !loan.is_back());
        self.piece
            .as_mut()
            .filter(|_| loans.is_empty())
            .map(Piece::bytes_mut)
    }
    /// The whole segment: it is registered once, whatever is cut from it.
    fn registrable(&self) -> Option<Registrable<'_>> {
        let piece = self.piece.as_ref()?;
        Some(Registrable {
            registrations: piece.segment().registrations(),
            offset: piece.offset(),
            len: piece.segment().len(),
        })
    }
    fn allocate_like(&self, len: usize) -> Option<BufferMut> {
        self.pool.upgrade()?.take(len).map(|(buffer, _)| buffer)
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

impl Drop for LendableBlock {
    fn drop(&mut self) {
        let loans = self.loans.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut loans = std::mem::take(loans);
        loans.retain(|loan| !loan.is_back());
        if let (Some(piece), Some(pool)) = (self.piece.take(), self.pool.upgrade()) {
            pool.give_back(piece, loans);
        }
    }
}
