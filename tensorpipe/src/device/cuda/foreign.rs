//! Physical memory of other libraries (`cuMemCreate`). Other processes can map it if its maker asked for descriptors, as for PyTorch's
//! expandable segments, where a tensor spans several allocations.
//!
//! Invariant: an exported allocation is known by its handle, which is kept as long as the allocation is known. No other memory gets that
//! handle meanwhile, so memory that a library maps later at the same address is never mistaken for it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, DriverError, sys};

use super::fence::Watcher;
use super::physical::{self, Handle};
use super::sharing::Shared;
use super::{Kept, probe};
use crate::sys::drop_thread::DropThread;
use crate::sys::segment::Segment;

/// The most allocations that a lent tensor may span. Chosen: each costs a descriptor at both ends; with PyTorch's large segments of 20 MiB,
/// this is 1.2 GiB.
pub(crate) const MOST: usize = 64;

/// The most known allocations of a device, of other libraries and again of this process. Chosen: each keeps a descriptor, and a process has
/// 1024 by default.
pub(super) const KNOWN: usize = 512;

/// How long an allocation stays known while nothing of it is lent. Chosen: a step of a program that sends the same memory repeatedly. For
/// so long, physical memory outlives its owner's wish to free it.
const IDLE: Duration = Duration::from_secs(1);

/// Allocations of other libraries on one device.
pub(super) struct Foreign {
    context: Kept<CudaContext>,
    frees: Arc<DropThread>,
    known: Mutex<BTreeMap<sys::CUmemGenericAllocationHandle, Known>>,
}

/// An exported allocation.
struct Known {
    /// Kept: see the module's documentation.
    _handle: Handle,
    segment: Arc<Segment>,
    used: Instant,
}

impl Foreign {
    pub(super) fn new(context: &Arc<CudaContext>, frees: &Arc<DropThread>) -> Arc<Self> {
        Arc::new(Self {
            context: Kept::new(context.clone()),
            frees: frees.clone(),
            known: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<sys::CUmemGenericAllocationHandle, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What other processes map to read these bytes, and where the bytes lie in that; `None` if they cannot map them.
    pub(super) fn share(
        self: &Arc<Self>,
        address: sys::CUdeviceptr,
        len: usize,
        watcher: &Watcher,
    ) -> Option<Shared> {
        let shared = self.shared(address, len, watcher);
        let shared = shared.inspect_err(|reason| {
            tracing::debug!(
                reason,
                "another library's memory is copied before it is lent"
            );
        });
        shared.ok()
    }

    /// If the memory cannot be exported, the reason in words. All allocations are counted before the first is exported, which costs
    /// more.
    fn shared(
        self: &Arc<Self>,
        address: sys::CUdeviceptr,
        len: usize,
        watcher: &Watcher,
    ) -> Result<Shared, String> {
        let parts = around(&self.context, address, len)?;
        let known = self.known(&parts)?;
        // Without the lock, which the watcher needs: the driver takes a while.
        let passed = parts.iter().zip(known).map(|(part, known)| match known {
            Some(known) => Ok(known),
            None => part.pass_on(),
        });
        let passed = passed.collect::<Result<Vec<_>, _>>()?;
        let start = parts.first().map_or(address, |part| part.start);
        let start = usize::try_from(address - start).map_err(|error| error.to_string())?;
        let mut passed = self.keep(parts, passed, watcher)?.into_iter();
        Ok(Shared {
            first: passed.next().ok_or("nothing is mapped there")?,
            rest: passed.collect(),
            range: start..start.saturating_add(len),
        })
    }

    /// Those of the parts that were exported before, provided that there is room for the others.
    fn known(&self, parts: &[Part]) -> Result<Vec<Option<Arc<Segment>>>, String> {
        let known = self.lock();
        let found = parts.iter().map(|part| known.get(&part.handle.number()));
        let found: Vec<_> = found
            .map(|known| known.map(|known| known.segment.clone()))
            .collect();
        let new = found.iter().filter(|known| known.is_none()).count();
        match known.len() + new > KNOWN {
            true => Err(full("of other libraries")),
            false => Ok(found),
        }
    }

    /// Makes new exports known. If another thread has exported some of them meanwhile, its export is used.
    fn keep(
        self: &Arc<Self>,
        parts: Vec<Part>,
        passed: Vec<Arc<Segment>>,
        watcher: &Watcher,
    ) -> Result<Vec<Arc<Segment>>, String> {
        // Both are dropped without the lock, as above: exports that are known already, and those after a failure.
        let (mut spare, mut all) = (Vec::new(), parts.into_iter().zip(passed));
        let mut known = self.lock();
        let was_empty = known.is_empty();
        let kept = all.by_ref().map(|(part, segment)| {
            let has_room = known.len() < KNOWN;
            let kept = match known.entry(part.handle.number()) {
                Entry::Vacant(free) if has_room => free.insert(Known {
                    _handle: part.handle,
                    segment,
                    used: Instant::now(),
                }),
                Entry::Occupied(kept) => {
                    spare.push(part.handle);
                    kept.into_mut()
                }
                Entry::Vacant(_) => {
                    spare.push(part.handle);
                    return Err(full("of other libraries"));
                }
            };
            kept.used = Instant::now();
            match kept.segment.len() == part.len {
                true => Ok(kept.segment.clone()),
                false => Err("it is mapped twice, in different lengths".to_owned()),
            }
        });
        let kept = kept.collect();
        if was_empty && !known.is_empty() {
            let this = self.clone();
            watcher.watch(move || this.forget(), Box::new(|| ()));
        }
        kept
    }

    /// Forgets allocations of which nothing was lent for a while. Returns whether none is left.
    fn forget(&self) -> bool {
        let mut known = self.lock();
        let now = Instant::now();
        let is_over = |known: &Known| {
            Arc::strong_count(&known.segment) == 1 && now.duration_since(known.used) >= IDLE
        };
        let over: Vec<_> = known.extract_if(.., |_, known| is_over(known)).collect();
        let is_empty = known.is_empty();
        drop(known);
        if !over.is_empty() {
            self.frees.drop_later(over);
        }
        is_empty
    }
}

pub(super) fn full(whose: &str) -> String {
    format!("{KNOWN} allocations {whose} are lent, the limit")
}

/// A mapped allocation.
struct Part {
    handle: Handle,
    start: sys::CUdeviceptr,
    len: usize,
}

impl Part {
    /// The allocation that is mapped around an address.
    fn around(context: &Arc<CudaContext>, address: sys::CUdeviceptr) -> Result<Self, String> {
        if physical::is_ours(address) {
            return Err(
                "it is lent to this process, which lends no loan, or of its own pool".to_owned(),
            );
        }
        let handle = Handle::around(context, address);
        let handle = handle.map_err(refused("cuMemRetainAllocationHandle"))?;
        let mapped = physical::mapping(context, address);
        let (start, len) = mapped.map_err(refused("cuMemGetAddressRange"))?;
        let part = Self { handle, start, len };
        match (start..part.end()).contains(&address) {
            true => Ok(part),
            false => Err("the driver says that something else is mapped there".to_owned()),
        }
    }

    fn end(&self) -> sys::CUdeviceptr {
        self.start.saturating_add(self.len as u64)
    }

    fn pass_on(&self) -> Result<Arc<Segment>, String> {
        let fd = self.handle.export();
        let fd = fd.map_err(refused("cuMemExportToShareableHandle"))?;
        Segment::of_device(fd, self.len).map_err(|error| error.to_string())
    }
}

/// All allocations that are mapped around these bytes, side by side.
fn around(
    context: &Arc<CudaContext>,
    address: sys::CUdeviceptr,
    len: usize,
) -> Result<Vec<Part>, String> {
    let (mut parts, mut at) = (Vec::new(), address);
    while at - address < len as u64 {
        if parts.len() == MOST {
            return Err(format!("it spans more than {MOST} allocations"));
        }
        let part = Part::around(context, at)?;
        if !parts.is_empty() && part.start != at {
            return Err("part of what is mapped there is mapped before it".to_owned());
        }
        at = part.end();
        parts.push(part);
    }
    Ok(parts)
}

fn refused(call: &'static str) -> impl Fn(DriverError) -> String {
    move |error| format!("{call}: {}", probe::words(error))
}
