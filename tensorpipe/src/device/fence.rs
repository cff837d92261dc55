//! Work that devices have queued: when memory may be read or reused, without a CPU that waits.
//!
//! A [`Fence`] is a position in one device queue (a CUDA event). Device memory keeps the fences that matter in its [`QueuedWork`]. Code
//! that queues more work orders it behind them on the device. Callbacks are only for code that needs the bytes on the CPU, and for devices
//! that do not know this kind of fence.
//!
//! Invariant: memory returns to its pool or to the device only when none of its fences is unfinished. After a fence that is
//! [lost](Fence::is_lost), it never does.

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::{Buffer, BufferMut};
use crate::error::DeviceError;
use crate::sys::registrations::{Domain, Registrable};

/// A position in a queue of a device's work.
///
/// Contract:
///
/// - a fence is reached once, when all work before it has finished or failed, and stays reached;
/// - no method waits;
/// - each callback runs once, even if the queue ends or its device is lost, and with no lock of the device held.
pub trait Fence: Send + Sync + 'static {
    /// `None` before it is reached; then whether the work before it succeeded.
    fn reached(&self) -> Option<Result<(), DeviceError>>;

    /// Runs `act` once the fence is reached: on a thread that may call the device, or at once, within this call, if it is reached
    /// already.
    fn when_reached(&self, act: Box<dyn FnOnce() + Send>);

    /// Whether it was reached by an error that does not say that the work before it has ended. Memory that such work uses is leaked. By
    /// default no.
    fn is_lost(&self) -> bool {
        false
    }

    /// Whether a device can order work behind this fence. If not (another process reads the memory), a writer must wait until it is
    /// reached. By default yes.
    fn is_queued(&self) -> bool {
        true
    }

    /// For a queue of the same kind, which orders its own work behind it on the device.
    fn as_any(&self) -> &dyn Any;
}

impl dyn Fence {
    /// Waits until it is reached. Cancel safe.
    pub fn when(&self) -> impl Future<Output = ()> + Send + Sync + Unpin + use<> {
        let (tell, mut told) = oneshot::channel::<()>();
        // Dropping the closure, run or not, ends the wait.
        self.when_reached(Box::new(move || drop(tell)));
        std::future::poll_fn(move |cx| Pin::new(&mut told).poll(cx).map(drop))
    }
}

/// The work that devices have queued on one memory. The memory's owner stores it beside the memory and exposes it through
/// [`Memory::work`](super::Memory::work).
#[derive(Default)]
pub struct QueuedWork {
    queued: Mutex<Queued>,
}

#[derive(Default)]
struct Queued {
    /// The bytes are valid behind this fence.
    ready: Option<Arc<dyn Fence>>,
    /// The memory is in use until these are reached.
    users: Vec<Arc<dyn Fence>>,
}

impl QueuedWork {
    fn lock(&self) -> MutexGuard<'_, Queued> {
        self.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Work that writes the bytes is queued up to `fence`: readers order themselves behind it.
    pub fn set_ready(&self, fence: Arc<dyn Fence>) {
        let mut queued = self.lock();
        if let Some(before) = queued.ready.replace(fence) {
            queued.add_user(before);
        }
    }

    /// What must be reached before the bytes are read; `None` if they are there. A failed fence stays: its bytes never came.
    pub fn ready(&self) -> Option<Arc<dyn Fence>> {
        let mut queued = self.lock();
        if let Some(Some(Ok(()))) = queued.ready.as_ref().map(|fence| fence.reached()) {
            queued.ready = None;
        }
        queued.ready.clone()
    }

    /// The memory is reused: whether its old bytes ever came does not matter any more.
    pub(super) fn forget_ready(&self) {
        let mut queued = self.lock();
        queued.ready.take_if(|fence| !is_unfinished(fence));
    }

    /// Work that uses the memory is queued up to `fence`.
    pub fn use_until(&self, fence: Arc<dyn Fence>) {
        self.lock().add_user(fence);
    }

    /// What must be reached before the memory is overwritten, used again or freed: the work that it is
    /// [ready](QueuedWork::ready) behind, and the work that [uses](QueuedWork::use_until) it. A [lost](Fence::is_lost) fence stays there.
    pub fn unfinished(&self) -> Vec<Arc<dyn Fence>> {
        let mut queued = self.lock();
        queued.users.retain(is_unfinished);
        let ready = queued.ready.iter().filter(|fence| is_unfinished(fence));
        ready.chain(&queued.users).cloned().collect()
    }
}

impl Queued {
    fn add_user(&mut self, fence: Arc<dyn Fence>) {
        // Drops reached fences, so that memory that is read often keeps only what is under way.
        self.users.retain(is_unfinished);
        self.users.push(fence);
    }
}

/// Whether work before a fence may still use its memory.
fn is_unfinished(fence: &Arc<dyn Fence>) -> bool {
    fence.reached().is_none() || fence.is_lost()
}

impl fmt::Debug for QueuedWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queued = self.lock();
        f.debug_struct("QueuedWork")
            .field("ready", &queued.ready.is_none())
            .field("users", &queued.users.len())
            .finish()
    }
}

impl Buffer {
    /// What must be reached before its bytes are read, see [`QueuedWork::ready`]. Main memory is ready.
    pub fn ready(&self) -> Option<Arc<dyn Fence>> {
        self.memory().work()?.ready()
    }

    /// Work that reads this buffer is queued up to `fence`: its memory is not reused before, even if all handles are dropped.
    pub fn use_until(&self, fence: &Arc<dyn Fence>) {
        match self.memory().work() {
            Some(work) => work.use_until(fence.clone()),
            None => {
                let (kept, asked) = (self.clone(), fence.clone());
                fence.when_reached(Box::new(move || match asked.is_lost() {
                    true => std::mem::forget(kept),
                    false => drop(kept),
                }));
            }
        }
    }

    /// The registration of its allocation for `domain`. The first call makes it with `register`, for the whole allocation; it lives
    /// as long as the allocation. `None` if the memory cannot be registered.
    ///
    /// # Errors
    /// What `register` returns; the next call tries again.
    pub fn registered<R: Send + Sync + 'static, E>(
        &self,
        domain: Domain,
        register: impl FnOnce(Registrable<'_>) -> Result<R, E>,
    ) -> Option<Result<Registered<R>, E>> {
        let place = self.memory().registrable()?;
        let registration = place.registrations.of(domain, || register(place));
        let offset = place.offset + self.offset();
        Some(registration.map(|registration| Registered {
            registration,
            offset,
            memory: self.clone(),
        }))
    }
}

impl BufferMut {
    /// The unfinished fences that no device can order work behind, see [`Fence::is_queued`].
    pub(crate) fn held(&self) -> impl Iterator<Item = Arc<dyn Fence>> {
        let unfinished = self.unfinished().into_iter();
        unfinished.filter(|fence| !fence.is_queued())
    }

    /// What must be reached before it is written, see [`QueuedWork::unfinished`].
    pub fn unfinished(&self) -> Vec<Arc<dyn Fence>> {
        let work = self.memory().work();
        work.map(QueuedWork::unfinished).unwrap_or_default()
    }

    /// Marks the memory as filled once `fence` is reached, and shareable from now on. Main memory is returned as an error: it has to
    /// be filled first.
    ///
    /// # Errors
    /// Returns `self` if its memory keeps no [`QueuedWork`].
    pub fn freeze_at(self, fence: Arc<dyn Fence>) -> Result<Buffer, Self> {
        let Some(work) = self.memory().work() else {
            return Err(self);
        };
        work.set_ready(fence);
        Ok(self.freeze())
    }
}

/// A registration in use. It holds the memory, which therefore outlives it.
pub struct Registered<R> {
    // Declared before the memory, so that it is dropped first.
    registration: Arc<R>,
    offset: usize,
    memory: Buffer,
}

impl<R> Registered<R> {
    /// Where the memory begins within the registered range, in bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The memory.
    pub fn memory(&self) -> &Buffer {
        &self.memory
    }
}

impl<R> std::ops::Deref for Registered<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.registration
    }
}

impl<R> fmt::Debug for Registered<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered")
            .field("offset", &self.offset)
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}
