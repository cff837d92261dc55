//! Memory of a lender's devices: the descriptors that were passed, and the mappings made of them. A mapping covers one allocation, or
//! several side by side.
//!
//! One mapping serves all tensors in the same allocations. The number of mappings is bounded; mappings from which nothing is borrowed are
//! evicted to make room.
//!
//! The thread that frees memory of the device drops what is not needed any more, since a driver takes long to unmap. Neither the broker nor a thread that handles
//! device events may wait for that.

use std::any::Any;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

#[cfg(feature = "cuda")]
use crate::sync::lock;
use crate::sync::{Arc, Mutex};
use crate::sys::drop_thread::{self, DropThread};
use crate::sys::segment::SegmentId;

/// Mappings of one lender's memory at once. Chosen: twice its segments.
#[cfg(feature = "cuda")]
const SPANS: usize = 2 * super::lender::SEGMENTS;

/// A descriptor of memory of a lender's device.
#[derive(Debug)]
#[cfg_attr(
    not(feature = "cuda"),
    allow(dead_code, reason = "for devices that are built in")
)]
pub(in crate::channels) struct Passed {
    /// Taken when the channel opens it.
    pub(in crate::channels) fd: Mutex<Option<OwnedFd>>,
    /// What the channel made of the descriptor, once.
    pub(in crate::channels) opened: Mutex<Option<Arc<dyn Any + Send + Sync>>>,
    /// The thread that frees memory of the device that it was opened for.
    pub(in crate::channels) frees: OnceLock<Arc<DropThread>>,
}

/// Memory of a lender's device that is mapped side by side.
#[derive(Debug)]
#[cfg_attr(
    not(feature = "cuda"),
    allow(dead_code, reason = "for devices that are built in")
)]
pub(in crate::channels) struct Span {
    pub(in crate::channels) parts: Vec<Arc<Passed>>,
    /// The mapping that the channel made, once, for all tensors that lie there. Borrowed memory holds a handle on it.
    pub(in crate::channels) mapped: Mutex<Option<Arc<dyn Any + Send + Sync>>>,
    /// As of [`Passed`].
    pub(in crate::channels) frees: OnceLock<Arc<DropThread>>,
}

/// A mapping, and those that were evicted to make room for it.
#[cfg(feature = "cuda")]
pub(in crate::channels) type Found = (Arc<Span>, Vec<Arc<Span>>);

/// All device memory of one lender.
#[derive(Debug, Default)]
pub(super) struct Spans {
    /// What is mapped, in front of what it is mapped by.
    mapped: BTreeMap<Vec<SegmentId>, Arc<Span>>,
    passed: BTreeMap<SegmentId, Arc<Passed>>,
}

impl Spans {
    /// How many descriptors have come.
    pub(super) fn passed(&self) -> usize {
        self.passed.len()
    }

    /// Whether the descriptor of this segment has come.
    pub(super) fn has(&self, id: SegmentId) -> bool {
        self.passed.contains_key(&id)
    }

    /// The descriptor of this segment has come.
    pub(super) fn add_descriptor(&mut self, id: SegmentId, fd: OwnedFd) {
        let passed = Passed {
            fd: Mutex::new(Some(fd)),
            opened: Mutex::default(),
            frees: OnceLock::new(),
        };
        self.passed.insert(id, Arc::new(passed));
    }

    /// The span of these segments. If there is none, the reason in words, and whether the reason is a lack of room.
    #[cfg(feature = "cuda")]
    pub(super) fn of(&mut self, ids: &[SegmentId]) -> Result<Found, (String, bool)> {
        if let Some(known) = self.mapped.get(ids) {
            return Ok((known.clone(), Vec::new()));
        }
        let parts = ids.iter().map(|id| self.passed.get(id).cloned());
        let parts = parts.collect::<Option<Vec<_>>>();
        let parts = parts.ok_or_else(|| ("its descriptor was not fetched".to_owned(), false))?;
        let unused = match self.mapped.len() >= SPANS {
            true => (self.mapped)
                .extract_if(.., |_, span| is_unused(span))
                .collect(),
            false => BTreeMap::new(),
        };
        if self.mapped.len() >= SPANS {
            let reason = format!(
                "{SPANS} mappings of the peer's devices are in use, which is as many as may be"
            );
            return Err((reason, true));
        }
        let (mapped, frees) = (Mutex::default(), OnceLock::new());
        let span = Arc::new(Span {
            parts,
            mapped,
            frees,
        });
        self.mapped.insert(ids.to_vec(), span.clone());
        Ok((span, unused.into_values().collect()))
    }

    /// The lender has released a segment: drops it and every span that contains it.
    pub(super) fn retired(&mut self, id: SegmentId) {
        let mapped = self.mapped.extract_if(.., |ids, _| ids.contains(&id));
        let mapped = mapped.map(|(_, span)| span).collect();
        let_go(mapped, self.passed.remove(&id).into_iter().collect());
    }
}

impl Drop for Spans {
    fn drop(&mut self) {
        let (mapped, passed) = (&mut self.mapped, &mut self.passed);
        let (mapped, passed) = (std::mem::take(mapped), std::mem::take(passed));
        let_go(
            mapped.into_values().collect(),
            passed.into_values().collect(),
        );
    }
}

/// See the module's documentation.
fn let_go(mapped: Vec<Arc<Span>>, passed: Vec<Arc<Passed>>) {
    for span in mapped {
        drop_on(span.frees.get().cloned(), span);
    }
    for one in passed {
        drop_on(one.frees.get().cloned(), one);
    }
}

/// The thread of the whole process drops what no device was opened for: it may wait for any device.
fn drop_on(frees: Option<Arc<DropThread>>, what: impl Send + 'static) {
    match frees {
        Some(frees) => frees.drop_later(what),
        None => drop_thread::drop_later(0, what),
    }
}

/// Nobody maps the span now or borrows from it. A new borrower must first ask here, under the lock.
#[cfg(feature = "cuda")]
fn is_unused(span: &Arc<Span>) -> bool {
    let is_held = |mapped: &Arc<_>| Arc::strong_count(mapped) > 1;
    Arc::strong_count(span) == 1 && !lock(&span.mapped).as_ref().is_some_and(is_held)
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use std::sync::mpsc;
    use std::thread::ThreadId;
    use std::time::Duration;

    use super::*;

    fn id(number: usize) -> SegmentId {
        (number as u128).to_le_bytes()
    }

    fn passed() -> Arc<Passed> {
        let (fd, opened) = (Mutex::default(), Mutex::default());
        let frees = OnceLock::new();
        Arc::new(Passed { fd, opened, frees })
    }

    /// Tells which thread drops it.
    struct Tells(mpsc::Sender<ThreadId>);

    impl Drop for Tells {
        fn drop(&mut self) {
            let _ = self.0.send(std::thread::current().id());
        }
    }

    #[test]
    fn what_a_driver_takes_long_for_is_no_work_of_whoever_lets_go() {
        let (tell, told) = mpsc::channel();
        let here = std::thread::current().id();
        let is_elsewhere = || told.recv_timeout(Duration::from_secs(10)).unwrap() != here;
        let mut spans = Spans::default();
        for number in 0..2 {
            let passed = passed();
            *lock(&passed.opened) = Some(Arc::new(Tells(tell.clone())));
            spans.passed.insert(id(number), passed);
            let (span, _) = spans.of(&[id(number)]).unwrap();
            *lock(&span.mapped) = Some(Arc::new(Tells(tell.clone())));
        }
        spans.retired(id(0));
        assert!(is_elsewhere() && is_elsewhere());
        assert!(told.try_recv().is_err(), "the other one is not let go of");
        drop(spans);
        assert!(is_elsewhere() && is_elsewhere());
    }

    #[test]
    fn what_nobody_borrows_makes_room_and_what_somebody_does_stays() {
        let mut spans = Spans::default();
        for number in 0..=SPANS + 1 {
            spans.passed.insert(id(number), passed());
        }
        let mut borrowed = Vec::new();
        for number in 0..SPANS {
            let (span, unused) = spans.of(&[id(number)]).unwrap();
            assert!(unused.is_empty());
            let mapped: Arc<dyn Any + Send + Sync> = Arc::new(number);
            *lock(&span.mapped) = Some(mapped.clone());
            borrowed.push(mapped);
        }
        let (reason, is_full) = spans.of(&[id(SPANS)]).unwrap_err();
        assert!(is_full && reason.contains("in use"), "{reason}");
        // Two are given back; one of these is about to be borrowed from again.
        let (again, _) = spans.of(&[id(7)]).unwrap();
        borrowed.drain(6..8);
        let (_, unused) = spans.of(&[id(SPANS)]).unwrap();
        let mapped: Vec<_> = unused
            .iter()
            .map(|span| lock(&span.mapped).clone().unwrap())
            .map(|mapped| *mapped.downcast::<usize>().unwrap())
            .collect();
        assert_eq!(mapped, [6]);
        assert_eq!(spans.of(&[id(7)]).unwrap().0.parts.len(), 1);
        assert!(Arc::ptr_eq(&spans.of(&[id(7)]).unwrap().0, &again));
        let (reason, is_full) = spans.of(&[id(SPANS + 9)]).unwrap_err();
        assert!(!is_full, "{reason}");
    }
}
