//! Work that devices have queued: when memory may be read, and when it may be used again, without a CPU that waits.
//!
//! A [`Fence`] is a position in one device queue (a CUDA event). Memory of a device keeps the fences that matter in its
//! [`QueuedWork`]. Whoever queues more work orders it behind them on the device. Only who needs the bytes on the CPU, or a
//! device that does not know this kind of fence, is called back.
//!
//! Invariant: memory goes back to its pool, or to the device, when no fence of it is unfinished.

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
/// - it is reached once, when all work before it has finished or failed, and stays reached;
/// - no method waits;
/// - each callback runs once, also where the queue ends or its device is lost, and with no lock of the device held.
pub trait Fence: Send + Sync + 'static {
    /// `None` before it is reached; then whether the work before it succeeded.
    fn reached(&self) -> Option<Result<(), DeviceError>>;

    /// Runs `act` when it is reached: on a thread that may call the device, or at once, within this call, if it is reached
    /// already.
    fn when_reached(&self, act: Box<dyn FnOnce() + Send>);

    /// Whether a device orders work behind it. Where none does (another process reads the memory), who is to write there waits until
    /// it is reached. By default yes.
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
        // It ends by being dropped.
        self.when_reached(Box::new(move || drop(tell)));
        std::future::poll_fn(move |cx| Pin::new(&mut told).poll(cx).map(drop))
    }
}

/// What devices have queued on one memory. Its owner keeps it beside the memory and shows it by
/// [`Memory::work`](super::Memory::work).
#[derive(Default)]
pub struct QueuedWork {
    queued: Mutex<Queued>,
}

#[derive(Default)]
struct Queued {
    /// Its bytes are there behind this.
    ready: Option<Arc<dyn Fence>>,
    /// It is in use until these are reached.
    users: Vec<Arc<dyn Fence>>,
}

impl QueuedWork {
    fn lock(&self) -> MutexGuard<'_, Queued> {
        self.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Work that writes the bytes is queued up to `fence`: who reads them orders itself behind it.
    pub fn set_ready(&self, fence: Arc<dyn Fence>) {
        let mut queued = self.lock();
        if let Some(before) = queued.ready.replace(fence) {
            queued.add_user(before);
        }
    }

    /// What must be reached before the bytes are read; `None` when they are there. A fence that failed stays: the bytes never
    /// came.
    pub fn ready(&self) -> Option<Arc<dyn Fence>> {
        let mut queued = self.lock();
        if let Some(Some(Ok(()))) = queued.ready.as_ref().map(|fence| fence.reached()) {
            queued.ready = None;
        }
        queued.ready.clone()
    }

    /// The memory is used anew: what became of its last bytes is no matter any more.
    pub(super) fn forget_ready(&self) {
        let mut queued = self.lock();
        queued.ready.take_if(|fence| fence.reached().is_some());
    }

    /// Work that uses the memory is queued up to `fence`.
    pub fn use_until(&self, fence: Arc<dyn Fence>) {
        self.lock().add_user(fence);
    }

    /// What must be reached before the memory is overwritten, used again or freed: the work that it is
    /// [ready](QueuedWork::ready) behind, and the work that [uses](QueuedWork::use_until) it.
    pub fn unfinished(&self) -> Vec<Arc<dyn Fence>> {
        let mut queued = self.lock();
        queued.users.retain(|fence| fence.reached().is_none());
        let ready = queued
            .ready
            .iter()
            .filter(|fence| fence.reached().is_none());
        ready.chain(&queued.users).cloned().collect()
    }
}

impl Queued {
    fn add_user(&mut self, fence: Arc<dyn Fence>) {
        // So that memory that is read again and again remembers no more than what is under way.
        self.users.retain(|fence| fence.reached().is_none());
        self.users.push(fence);
    }
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

    /// Work that reads it is queued up to `fence`: its memory is not used again before, however soon its handles are dropped.
    pub fn use_until(&self, fence: &Arc<dyn Fence>) {
        match self.memory().work() {
            Some(work) => work.use_until(fence.clone()),
            None => {
                let kept = self.clone();
                fence.when_reached(Box::new(move || drop(kept)));
            }
        }
    }

    /// What its allocation is registered with for `domain`: made by `register` for the whole allocation the first time, and
    /// kept as long as that is there. `None` for memory that cannot be registered.
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
    /// Those of them behind which no device orders its work, see [`Fence::is_queued`].
    pub(crate) fn held(&self) -> impl Iterator<Item = Arc<dyn Fence>> {
        let unfinished = self.unfinished().into_iter();
        unfinished.filter(|fence| !fence.is_queued())
    }

    /// What must be reached before it is written, see [`QueuedWork::unfinished`].
    pub fn unfinished(&self) -> Vec<Arc<dyn Fence>> {
        let work = self.memory().work();
        work.map(QueuedWork::unfinished).unwrap_or_default()
    }

    /// Filled when `fence` is reached, and shareable from now on. Main memory comes back, which has to be filled first.
    ///
    /// # Errors
    /// Itself, where its memory keeps no [`QueuedWork`].
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
    // In front of the memory: dropped first.
    registration: Arc<R>,
    offset: usize,
    memory: Buffer,
}

impl<R> Registered<R> {
    /// Where the memory begins in what is registered, in bytes.
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
