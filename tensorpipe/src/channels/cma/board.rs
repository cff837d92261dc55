//! The board of this process: which of its memory may be read, and where it lies.
//!
//! Invariant: a notice stands on the board only while the memory that it names is owned by it. It is taken down *before* the
//! memory is let go of, and its number never stands there again; so a reader that finds the number before and after it has
//! copied has copied what was meant (as with a sequence lock). Readers are other processes: they look with
//! `process_vm_readv`, at whole slots.

use crate::device::Buffer;
use crate::process::random_token;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, fence, lock};
use crate::sys::fork::{Owner, PerProcess};

/// Notices that can stand on it at once.
pub(super) const SLOTS: u32 = 1024;

/// Of one slot, in bytes: three words.
pub(super) const SLOT: usize = size_of::<Slot>();

/// What a slot says: number (0 for none), address, length in bytes.
#[derive(Debug, Default)]
#[repr(C)]
struct Slot {
    number: AtomicU64,
    address: AtomicU64,
    len: AtomicU64,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Board {
    owner: Owner,
    slots: Box<[Slot]>,
    free: Mutex<Vec<u32>>,
}

impl Board {
    /// This process's.
    pub(super) fn here() -> Arc<Self> {
        // A forked child's own: nobody is told of the other.
        static HERE: PerProcess<Arc<Board>> = PerProcess::new();
        HERE.get(|| Arc::new(Self::new())).clone()
    }

    fn new() -> Self {
        Self {
            owner: Owner::here(),
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            free: Mutex::new((0..SLOTS).rev().collect()),
        }
    }

    /// Where the slots are. They stay there until the process ends.
    pub(super) fn address(&self) -> u64 {
        self.slots.as_ptr().expose_provenance() as u64
    }

    /// Puts up a notice; `None` where the board is full, or the CPU cannot read the memory.
    pub(super) fn show(self: &Arc<Self>, source: &Buffer) -> Option<Notice> {
        let bytes = source.as_bytes()?;
        let at = lock(&self.free).pop()?;
        let slot = &self.slots[at as usize];
        let number = random_number();
        let address = bytes.as_ptr().expose_provenance() as u64;
        slot.address.store(address, Ordering::Relaxed);
        slot.len.store(bytes.len() as u64, Ordering::Relaxed);
        slot.number.store(number, Ordering::Release);
        Some(Notice {
            board: self.clone(),
            slot: at,
            number,
            source: source.clone(),
        })
    }
}

/// Nobody can guess it, no other memory holds it, and it does not come again: as good as never. It is not 0.
fn random_number() -> u64 {
    u128::from_le_bytes(random_token()) as u64 | 1
}

/// A notice that stands on the board, with the memory that it names. Dropping it takes it down.
#[derive(Debug)]
pub(super) struct Notice {
    board: Arc<Board>,
    pub(super) slot: u32,
    pub(super) number: u64,
    source: Buffer,
}

impl Notice {
    pub(super) fn source(&self) -> &Buffer {
        &self.source
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        if self.board.owner.is_elsewhere() {
            return;
        }
        let number = &self.board.slots[self.slot as usize].number;
        number.store(0, Ordering::SeqCst);
        // Nothing is written to the memory before everybody can see that the notice is gone.
        fence(Ordering::SeqCst);
        lock(&self.board.free).push(self.slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fork::tests::{a_child_drops, children_can};

    fn number(board: &Board, slot: u32) -> u64 {
        board.slots[slot as usize].number.load(Ordering::Relaxed)
    }

    #[test]
    fn a_notice_stands_while_its_memory_is_held() {
        let board = Arc::new(Board::new());
        let source = Buffer::copy_from_slice(&[7; 100]);
        let notice = board.show(&source).unwrap();
        let (slot, first) = (notice.slot, notice.number);
        assert_eq!(number(&board, slot), first);
        assert_eq!(Arc::strong_count(source.memory()), 2);
        drop(notice);
        assert_eq!(number(&board, slot), 0);
        assert_eq!(Arc::strong_count(source.memory()), 1);
        let again = board.show(&source).unwrap();
        assert_eq!((again.slot, number(&board, slot)), (slot, again.number));
        assert_ne!(again.number, first, "never twice");
    }

    #[test]
    fn a_full_board_takes_no_more() {
        let board = Arc::new(Board::new());
        let source = Buffer::copy_from_slice(&[7; 100]);
        let mut all: Vec<_> = (0..SLOTS).map(|_| board.show(&source).unwrap()).collect();
        assert!(board.show(&source).is_none());
        all.pop();
        assert!(board.show(&source).is_some());
    }

    #[test]
    fn a_process_has_one_board() {
        assert_eq!(Board::here().address(), Board::here().address());
        assert_eq!(SLOT, 24);
        assert!(children_can(|| drop(Board::here())));
    }

    #[test]
    fn a_forked_child_forgets_a_notice_whoever_has_the_lock() {
        let board = Arc::new(Board::new());
        let mut notice = board.show(&Buffer::copy_from_slice(&[7; 100]));
        let held = lock(&board.free);
        assert!(a_child_drops(&mut notice));
        drop(held);
        assert_ne!(number(&board, notice.unwrap().slot), 0);
    }
}
