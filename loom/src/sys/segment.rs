//! Lendable memory. Each segment is one piece, in which loom reports a write while others may read.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::AtomicU32;

use loom::cell::UnsafeCell;

use super::registrations::Registrations;
use crate::death;
use crate::error::SystemError;
use crate::sync::{Arc, Ordering};

pub(crate) type SegmentId = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    Small,
    #[expect(dead_code, reason = "the pool counts them")]
    Reserved,
    #[expect(dead_code, reason = "the pool counts them")]
    Huge,
}

thread_local! {
    /// loom's view of the readers and writers of each segment. Kept outside the segments, which move between threads; loom
    /// runs all threads of a model on this system thread.
    static ACCESS: RefCell<BTreeMap<SegmentId, Rc<UnsafeCell<()>>>> = const { RefCell::new(BTreeMap::new()) };
}

/// Shared memory.
#[derive(Debug)]
pub(crate) struct Segment {
    id: SegmentId,
    len: usize,
    /// How often the segment was handed out for writing, which stands for its content. Access is no step of a model.
    content: AtomicU32,
    registrations: Registrations,
}

impl Segment {
    /// Makes a segment of one piece, however long it is.
    pub(crate) fn cut(len: usize, piece: usize) -> Result<Vec<Piece>, SystemError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        ACCESS.with_borrow_mut(|all| all.insert(id, Rc::default()));
        let segment = Arc::new(Self {
            id,
            len,
            content: AtomicU32::new(0),
            registrations: Registrations::default(),
        });
        Ok(vec![Piece {
            segment,
            len: piece,
            bytes: [0],
        }])
    }

    pub(crate) fn id(&self) -> SegmentId {
        self.id
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn registrations(&self) -> &Registrations {
        &self.registrations
    }

    pub(crate) fn is_here(&self) -> bool {
        true
    }

    pub(crate) fn pages(&self) -> Pages {
        Pages::Small
    }

    /// The content now.
    fn content(&self) -> u32 {
        self.access().with(|_| self.content.load(Ordering::Relaxed))
    }

    fn access(&self) -> Rc<UnsafeCell<()>> {
        ACCESS.with_borrow(|all| all[&self.id].clone())
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // Dropped outside the borrow, because loom checks the value on drop.
        let access = ACCESS.with_borrow_mut(|all| all.remove(&self.id));
        drop(access);
    }
}

/// A piece that its holder may write to while it is not lent.
#[derive(Debug)]
pub(crate) struct Piece {
    segment: Arc<Segment>,
    len: usize,
    /// Bytes to hand out; the models look only at the segment's content.
    bytes: [u8; 1],
}

impl Piece {
    pub(crate) fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    pub(crate) fn offset(&self) -> usize {
        0
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.segment.content();
        &self.bytes
    }

    /// Writes.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let content = &self.segment.content;
        let access = self.segment.access();
        access.with_mut(|_| content.fetch_add(1, Ordering::Relaxed));
        &mut self.bytes
    }
}

/// A segment as its readers see it.
#[derive(Clone, Debug)]
pub(crate) struct Foreign {
    segment: Arc<Segment>,
    /// The content when the segment was lent.
    lent: u32,
}

impl Foreign {
    /// Made by the segment's holder when it lends the segment.
    pub(crate) fn of(segment: &Arc<Segment>) -> Self {
        Self {
            segment: segment.clone(),
            lent: segment.content(),
        }
    }

    /// Asserts that the content is still that which was lent.
    pub(crate) fn read(&self) {
        death::step();
        assert_eq!(self.segment.content(), self.lent, "lent memory was written");
    }
}
