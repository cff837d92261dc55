//! The export table of this process: which of its memory may be read, and where it lies.
//!
//! Invariant: an export stands in the table only while it owns the memory that it names. It is taken down *before* the memory is released,
//! and its number is never used again. A reader that finds the same number before and after its copy has therefore copied the right bytes
//! (as with a sequence lock). Readers are other processes: they read whole slots with `process_vm_readv`.

use crate::device::Buffer;
use crate::error::SystemError;
use crate::process::random_token;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, fence, lock};
use crate::sys::fork::{Owner, PerProcess};

/// Exports that the table can hold at once.
pub(super) const SLOTS: u32 = 1024;

/// Size of one slot, in bytes: three words.
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
pub(super) struct ExportTable {
    owner: Owner,
    slots: Box<[Slot]>,
    free: Mutex<Vec<u32>>,
}

impl ExportTable {
    /// This process's.
    pub(super) fn here() -> Arc<Self> {
        // A forked child makes its own: no peer knows the address of the inherited one.
        static HERE: PerProcess<Arc<ExportTable>> = PerProcess::new();
        HERE.get(|| Arc::new(Self::new())).clone()
    }

    fn new() -> Self {
        Self {
            owner: Owner::here(),
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            free: Mutex::new((0..SLOTS).rev().collect()),
        }
    }

    /// Address of the slots. They stay there until the process ends.
    pub(super) fn address(&self) -> u64 {
        self.slots.as_ptr().expose_provenance() as u64
    }

    /// Adds an export; if that is not possible, says so in words.
    pub(super) fn show(self: &Arc<Self>, source: &Buffer) -> Result<Export, String> {
        let bytes = source.as_bytes().ok_or("it is no main memory")?;
        let number = random_number().map_err(|error| error.to_string())?;
        let at = lock(&self.free).pop();
        let at = at.ok_or("too many tensors are being read")?;
        let slot = &self.slots[at as usize];
        let address = bytes.as_ptr().expose_provenance() as u64;
        slot.address.store(address, Ordering::Relaxed);
        slot.len.store(bytes.len() as u64, Ordering::Relaxed);
        slot.number.store(number, Ordering::Release);
        Ok(Export {
            exports: self.clone(),
            slot: at,
            number,
            source: source.clone(),
        })
    }
}

/// A random number: nobody can guess it, and it practically never occurs twice or in other memory. It is not 0.
fn random_number() -> Result<u64, SystemError> {
    Ok(u128::from_le_bytes(random_token()?) as u64 | 1)
}

/// An export that stands in the table, with the memory that it names. Dropping it takes it down.
#[derive(Debug)]
pub(super) struct Export {
    exports: Arc<ExportTable>,
    pub(super) slot: u32,
    pub(super) number: u64,
    source: Buffer,
}

impl Export {
    pub(super) fn source(&self) -> &Buffer {
        &self.source
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        if self.exports.owner.is_other_process() {
            return;
        }
        let number = &self.exports.slots[self.slot as usize].number;
        number.store(0, Ordering::SeqCst);
        // The owner must not write to the memory before every reader can see that the export is gone.
        fence(Ordering::SeqCst);
        lock(&self.exports.free).push(self.slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fork::tests::{a_child_drops, children_can};

    fn number(exports: &ExportTable, slot: u32) -> u64 {
        exports.slots[slot as usize].number.load(Ordering::Relaxed)
    }

    #[test]
    fn an_export_stands_while_its_memory_is_held() {
        let exports = Arc::new(ExportTable::new());
        let source = Buffer::copy_from_slice(&[7; 100]);
        let export = exports.show(&source).unwrap();
        let (slot, first) = (export.slot, export.number);
        assert_eq!(number(&exports, slot), first);
        assert_eq!(Arc::strong_count(source.memory()), 2);
        drop(export);
        assert_eq!(number(&exports, slot), 0);
        assert_eq!(Arc::strong_count(source.memory()), 1);
        let again = exports.show(&source).unwrap();
        assert_eq!((again.slot, number(&exports, slot)), (slot, again.number));
        assert_ne!(again.number, first, "never twice");
    }

    #[test]
    fn a_full_export_table_takes_no_more() {
        let exports = Arc::new(ExportTable::new());
        let source = Buffer::copy_from_slice(&[7; 100]);
        let mut all: Vec<_> = (0..SLOTS).map(|_| exports.show(&source).unwrap()).collect();
        assert!(exports.show(&source).is_err());
        all.pop();
        assert!(exports.show(&source).is_ok());
    }

    #[test]
    fn a_process_has_one_export_table() {
        assert_eq!(ExportTable::here().address(), ExportTable::here().address());
        assert_eq!(SLOT, 24);
        assert!(children_can(|| drop(ExportTable::here())));
    }

    #[test]
    fn a_forked_child_forgets_an_export_whoever_has_the_lock() {
        let exports = Arc::new(ExportTable::new());
        let export = exports.show(&Buffer::copy_from_slice(&[7; 100]));
        let mut export = export.ok();
        let held = lock(&exports.free);
        assert!(a_child_drops(&mut export));
        drop(held);
        assert_ne!(number(&exports, export.unwrap().slot), 0);
    }
}
