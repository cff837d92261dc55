//! Physical memory of other libraries (`cuMemCreate`), which other processes may map if its maker asked for descriptors: PyTorch's
//! expandable segments, say, where a tensor spans several allocations.
//!
//! Invariant: an allocation that was passed on is known by its handle, which is kept as long as it is known. No other memory gets that handle
//! meanwhile, so what a library maps later at the same address is never taken for it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, DriverError, sys};

use super::fence::Watcher;
use super::physical::{self, Handle};
use super::probe;
use super::sharing::Shared;
use crate::sys::segment::Segment;

/// So many allocations a tensor spans at most to be lent as it is. Chosen: each costs a descriptor at both ends; of PyTorch's large
/// segments, of 20 MiB, they are 1.2 GiB.
pub(crate) const MOST: usize = 64;

/// So many are known at once. Chosen: each keeps a descriptor, of which processes have 1024 by default.
const KNOWN: usize = 512;

/// How long an allocation is known of which nothing is lent. Chosen: a step of a program that sends the same memory again and again. So
/// long physical memory outlives its owner's wish to free it.
const IDLE: Duration = Duration::from_secs(1);

/// Allocations of other libraries on one device.
pub(super) struct Foreign {
    context: Arc<CudaContext>,
    known: Mutex<BTreeMap<sys::CUmemGenericAllocationHandle, Known>>,
}

/// One that was passed on.
struct Known {
    /// Kept: see the module's documentation.
    _handle: Handle,
    segment: Arc<Segment>,
    used: Instant,
}

impl Foreign {
    pub(super) fn new(context: &Arc<CudaContext>) -> Arc<Self> {
        Arc::new(Self {
            context: context.clone(),
            known: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<sys::CUmemGenericAllocationHandle, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What other processes map to read so many bytes at an address, which are there; `None` where they cannot.
    pub(super) fn share(
        self: &Arc<Self>,
        address: sys::CUdeviceptr,
        len: usize,
        watcher: &Watcher,
    ) -> Option<Shared> {
        let (first, start, mut at) = self.part(address, watcher)?;
        let start = usize::try_from(address - start).ok()?;
        let (range, mut rest) = (start..start.checked_add(len)?, Vec::new());
        while at - address < len as u64 {
            let (segment, start, end) = self.part(at, watcher)?;
            // A part of what is mapped before.
            if start != at || rest.len() + 2 > MOST {
                return None;
            }
            rest.push(segment);
            at = end;
        }
        Some(Shared { first, rest, range })
    }

    /// What is mapped around an address, from where to where.
    fn part(
        self: &Arc<Self>,
        address: sys::CUdeviceptr,
        watcher: &Watcher,
    ) -> Option<(Arc<Segment>, sys::CUdeviceptr, sys::CUdeviceptr)> {
        let found = self.allocation(address, watcher);
        let found = found.inspect_err(|reason| {
            tracing::debug!(
                reason,
                "another library's memory is copied before it is lent"
            );
        });
        let (segment, start) = found.ok()?;
        let end = start.checked_add(segment.len() as u64)?;
        (start <= address && address < end).then_some((segment, start, end))
    }

    /// What is mapped around an address, and where it begins; why it cannot be passed on, in words.
    fn allocation(
        self: &Arc<Self>,
        address: sys::CUdeviceptr,
        watcher: &Watcher,
    ) -> Result<(Arc<Segment>, sys::CUdeviceptr), String> {
        if physical::is_ours(address) {
            return Err(
                "it is lent to this process, which lends no loan, or of its own pool".to_owned(),
            );
        }
        let refused = |call: &'static str| {
            move |error: DriverError| format!("{call}: {}", probe::words(error))
        };
        let handle = Handle::around(&self.context, address);
        let handle = handle.map_err(refused("cuMemRetainAllocationHandle"))?;
        let (start, len) =
            physical::mapping(&self.context, address).map_err(refused("cuMemGetAddressRange"))?;
        let mut known = self.lock();
        if let Some(known) = known.get_mut(&handle.number()) {
            known.used = Instant::now();
            return match known.segment.len() == len {
                true => Ok((known.segment.clone(), start)),
                false => Err("it is mapped twice, in different lengths".to_owned()),
            };
        }
        if known.len() >= KNOWN {
            return Err(format!(
                "{KNOWN} allocations of other libraries are lent, the limit"
            ));
        }
        let fd = handle.export();
        let fd = fd.map_err(refused("cuMemExportToShareableHandle"))?;
        let segment = Segment::of_device(fd, len).map_err(|error| error.to_string())?;
        if known.is_empty() {
            let this = self.clone();
            watcher.watch(move || this.forget(), Box::new(|| ()));
        }
        let new = Known {
            segment: segment.clone(),
            used: Instant::now(),
            _handle: handle,
        };
        known.insert(new._handle.number(), new);
        Ok((segment, start))
    }

    /// Lets go of what nobody has lent for a while. Whether nothing is left.
    fn forget(&self) -> bool {
        let mut known = self.lock();
        let now = Instant::now();
        let is_over = |known: &Known| {
            Arc::strong_count(&known.segment) == 1 && now.duration_since(known.used) >= IDLE
        };
        let over: Vec<_> = known.extract_if(.., |_, known| is_over(known)).collect();
        let is_empty = known.is_empty();
        // Without the lock: the driver takes a while.
        drop(known);
        drop(over);
        is_empty
    }
}
