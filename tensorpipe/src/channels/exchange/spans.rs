//! Memory of a lender's devices: the descriptors that came, and what is mapped by them, one allocation or several side by side.
//!
//! A mapping serves all tensors that lie in the same allocations. There are so many at once; those in which nothing is borrowed make room.

use std::any::Any;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

#[cfg(feature = "cuda")]
use crate::sync::lock;
use crate::sync::{Arc, Mutex};
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
    /// Until it is opened.
    pub(in crate::channels) fd: Mutex<Option<OwnedFd>>,
    /// What its channel has made of it, once.
    pub(in crate::channels) opened: Mutex<Option<Arc<dyn Any + Send + Sync>>>,
}

/// Memory of a lender's device that is mapped side by side.
#[derive(Debug)]
#[cfg_attr(
    not(feature = "cuda"),
    allow(dead_code, reason = "for devices that are built in")
)]
pub(in crate::channels) struct Span {
    pub(in crate::channels) parts: Vec<Arc<Passed>>,
    /// What its channel has made of it, once for all tensors that lie there. Whoever borrows there holds it.
    pub(in crate::channels) mapped: Mutex<Option<Arc<dyn Any + Send + Sync>>>,
}

/// A mapping, and those that had to make room for it.
#[cfg(feature = "cuda")]
pub(in crate::channels) type Found = (Arc<Span>, Vec<Arc<Span>>);

/// All of one lender's.
#[derive(Debug, Default)]
pub(super) struct Spans(BTreeMap<Vec<SegmentId>, Arc<Span>>);

impl Spans {
    /// What is mapped of these; in words why it cannot be, and whether for want of room.
    #[cfg(feature = "cuda")]
    pub(super) fn of(
        &mut self,
        ids: &[SegmentId],
        passed: &BTreeMap<SegmentId, Arc<Passed>>,
    ) -> Result<Found, (String, bool)> {
        if let Some(known) = self.0.get(ids) {
            return Ok((known.clone(), Vec::new()));
        }
        let parts = ids.iter().map(|id| passed.get(id).cloned());
        let parts = parts.collect::<Option<Vec<_>>>();
        let parts = parts.ok_or_else(|| ("its descriptor was not fetched".to_owned(), false))?;
        let unused = match self.0.len() >= SPANS {
            true => self.0.extract_if(.., |_, span| is_unused(span)).collect(),
            false => BTreeMap::new(),
        };
        if self.0.len() >= SPANS {
            let reason = format!(
                "{SPANS} mappings of the peer's devices are in use, which is as many as may be"
            );
            return Err((reason, true));
        }
        let mapped = Mutex::default();
        let span = Arc::new(Span { parts, mapped });
        self.0.insert(ids.to_vec(), span.clone());
        Ok((span, unused.into_values().collect()))
    }

    /// The lender has let go of a segment: all that it is part of.
    pub(super) fn retired(&mut self, id: SegmentId) -> Vec<Arc<Span>> {
        let spans = self.0.extract_if(.., |ids, _| ids.contains(&id));
        spans.map(|(_, span)| span).collect()
    }
}

/// Nobody maps it now, or borrows what is there: whoever wants to asks here for it first.
#[cfg(feature = "cuda")]
fn is_unused(span: &Arc<Span>) -> bool {
    let is_held = |mapped: &Arc<_>| Arc::strong_count(mapped) > 1;
    Arc::strong_count(span) == 1 && !lock(&span.mapped).as_ref().is_some_and(is_held)
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;

    fn id(number: usize) -> SegmentId {
        (number as u128).to_le_bytes()
    }

    #[test]
    fn what_nobody_borrows_makes_room_and_what_somebody_does_stays() {
        let passed = (0..=SPANS + 1).map(|number| {
            let (fd, opened) = (Mutex::default(), Mutex::default());
            (id(number), Arc::new(Passed { fd, opened }))
        });
        let passed = passed.collect();
        let mut spans = Spans::default();
        let mut borrowed = Vec::new();
        for number in 0..SPANS {
            let (span, unused) = spans.of(&[id(number)], &passed).unwrap();
            assert!(unused.is_empty());
            let mapped: Arc<dyn Any + Send + Sync> = Arc::new(number);
            *lock(&span.mapped) = Some(mapped.clone());
            borrowed.push(mapped);
        }
        let (reason, is_full) = spans.of(&[id(SPANS)], &passed).unwrap_err();
        assert!(is_full && reason.contains("in use"), "{reason}");
        // Two are given back; one of these is about to be borrowed of again.
        let (again, _) = spans.of(&[id(7)], &passed).unwrap();
        borrowed.drain(6..8);
        let (_, unused) = spans.of(&[id(SPANS)], &passed).unwrap();
        let mapped: Vec<_> = unused
            .iter()
            .map(|span| lock(&span.mapped).clone().unwrap())
            .map(|mapped| *mapped.downcast::<usize>().unwrap())
            .collect();
        assert_eq!(mapped, [6]);
        assert_eq!(spans.of(&[id(7)], &passed).unwrap().0.parts.len(), 1);
        assert!(Arc::ptr_eq(&spans.of(&[id(7)], &passed).unwrap().0, &again));
        let (reason, is_full) = spans.of(&[id(SPANS + 9)], &passed).unwrap_err();
        assert!(!is_full, "{reason}");
    }
}
