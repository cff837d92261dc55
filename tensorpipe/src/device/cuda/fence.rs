//! Positions in streams: CUDA events.
//!
//! The driver's own callbacks may not call the driver, so callbacks run on a separate thread. It polls the events as long as there are any,
//! and sleeps otherwise.

use std::any::Any;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use cudarc::driver::{CudaEvent, DriverError};

use super::captures::Relaxed;
use super::{Kept, failed};
use crate::device::{BufferMut, Device, Fence};
use crate::error::DeviceError;
use crate::sys::fork::Owner;
use crate::sys::workers;

/// The first pause between two polls of unreached events. Chosen: a small copy takes so long.
const SHORTEST: Duration = Duration::from_micros(10);

/// The longest pause, if nothing is reached for long: each poll is a call of a microsecond. Chosen.
const LONGEST: Duration = Duration::from_millis(1);

/// The longest pause if the thread waits only for other processes, which may keep what they have for long. Chosen.
const SLOWEST: Duration = Duration::from_millis(20);

/// How often the thread checks whether it is still needed. Chosen.
const ALONE: Duration = Duration::from_secs(1);

/// A position behind what was queued on a stream before.
pub(super) struct CudaFence {
    owner: Owner,
    device: Device,
    event: Kept<Asked>,
    watch: Arc<Watch>,
}

/// Stands for work of which nobody can tell when it ends, since the driver has refused an event behind it: what it uses is never reused.
struct Lost(DeviceError);

impl Fence for Lost {
    fn reached(&self) -> Option<Result<(), DeviceError>> {
        Some(Err(self.0.clone()))
    }

    fn when_reached(&self, act: Box<dyn FnOnce() + Send>) {
        act();
    }

    fn is_lost(&self) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The memory may be in use for ever, for this reason. Whoever has lent it gets it back all the same, and can do nothing with it but drop it.
pub(super) fn lose(mut memory: BufferMut, error: &DeviceError) {
    tracing::warn!(%error, "memory of a device is lost");
    let work = memory
        .memory_mut()
        .map(|memory| memory.work().map(|work| work.use_until(lost(error))));
    if work.flatten().is_none() {
        std::mem::forget(memory);
    }
}

/// A fence behind work that nobody can tell the end of.
pub(super) fn lost(error: &DeviceError) -> Arc<dyn Fence> {
    Arc::new(Lost(error.clone()))
}

/// An event, and how it has ended: a fence that is reached stays reached.
struct Asked {
    event: CudaEvent,
    ended: OnceLock<Result<(), DriverError>>,
}

impl CudaFence {
    pub(super) fn new(device: Device, event: CudaEvent, watcher: &Watcher) -> Self {
        Self {
            owner: Owner::here(),
            device,
            event: Kept::new(Arc::new(Asked {
                event,
                ended: OnceLock::new(),
            })),
            watch: watcher.0.clone(),
        }
    }

    pub(super) fn event(&self) -> &CudaEvent {
        &self.event.event
    }
}

impl Fence for CudaFence {
    fn reached(&self) -> Option<Result<(), DeviceError>> {
        // CUDA does not survive a fork: a child must not ask about what it inherited.
        if self.owner.is_other_process() {
            return None;
        }
        let reached = self.event.reached()?;
        Some(reached.map_err(|error| failed(self.device, "cuEventQuery", error)))
    }

    fn when_reached(&self, act: Box<dyn FnOnce() + Send>) {
        if self.owner.is_other_process() {
            return std::mem::forget(act);
        }
        if self.reached().is_some() {
            return act();
        }
        let event = Kept::new(self.event.clone());
        self.watch.add(Waiting {
            is_reached: Box::new(move || event.reached().is_some()),
            act,
            is_slow: false,
        });
    }

    fn is_lost(&self) -> bool {
        let ended = self.event.ended.get();
        ended.is_some_and(|ended| ended.is_err_and(|error| !is_end(error)))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for CudaFence {
    fn drop(&mut self) {
        // As above.
        if self.owner.is_other_process() {
            std::mem::forget(self.event.clone());
        }
    }
}

impl Asked {
    /// Whether the event is reached, and how the work before it ended. While a graph is captured, a driver may refuse to answer: then it
    /// is asked again. Every other error ends the wait, since it would come again each time.
    fn reached(&self) -> Option<Result<(), DriverError>> {
        if self.ended.get().is_none() {
            let _relaxed = Relaxed::here();
            let ended = match self.event.try_is_complete() {
                Ok(false) => return None,
                Ok(true) => Ok(()),
                Err(error) if matches!(error.0 as u32, 900..=906 | 908) => return None,
                Err(error) => Err(error),
            };
            // Another thread's answer may be there already.
            _ = self.ended.set(ended);
        }
        self.ended.get().copied()
    }
}

/// Whether an error kills the context, and with it all work that is queued. After other errors, the work may still use its memory.
fn is_end(error: DriverError) -> bool {
    matches!(
        error.0 as u32,
        4 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 810
    )
}

/// Owns a thread that polls events. The thread ends when nobody can add any and the last one is reached. Cloning clones a handle.
#[derive(Clone)]
pub(super) struct Watcher(Arc<Watch>);

#[derive(Default)]
struct Watch {
    added: Mutex<Vec<Waiting>>,
    changed: Condvar,
}

/// A callback that waits for an event, or for another process.
struct Waiting {
    is_reached: Box<dyn Fn() -> bool + Send>,
    act: Box<dyn FnOnce() + Send>,
    /// The wait may be long.
    is_slow: bool,
}

impl Watcher {
    /// # Errors
    /// When the system has no thread for it.
    pub(super) fn start() -> io::Result<Self> {
        let watch = Arc::new(Watch::default());
        let watches = watch.clone();
        let thread = std::thread::Builder::new().name("tp-cuda".to_owned());
        thread.spawn(move || watches.run())?;
        Ok(Self(watch))
    }
}

impl Watcher {
    /// Runs `act` some time after `is_reached` returns true.
    pub(super) fn watch(
        &self,
        is_reached: impl Fn() -> bool + Send + 'static,
        act: Box<dyn FnOnce() + Send>,
    ) {
        self.0.add(Waiting {
            is_reached: Box::new(is_reached),
            act,
            is_slow: true,
        });
    }
}

impl Watch {
    fn lock(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.added.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, waits: Waiting) {
        self.lock().push(waits);
        self.changed.notify_one();
    }

    /// Sleeps for `pause`; if only other processes are waited for, wakes early when something is added.
    fn sleep(&self, pause: Duration, are_slow: bool) {
        if !are_slow {
            return std::thread::sleep(pause);
        }
        let added = self.lock();
        if added.is_empty() {
            drop(self.changed.wait_timeout(added, pause));
        }
    }

    fn run(self: &Arc<Self>) {
        // Once for the thread, which calls the driver all the time.
        let _relaxed = Relaxed::here();
        let (mut waiting, mut pause) = (Vec::new(), SHORTEST);
        loop {
            {
                let mut added = self.lock();
                if waiting.is_empty() && added.is_empty() {
                    let woken = self.changed.wait_timeout(added, ALONE);
                    added = woken.unwrap_or_else(PoisonError::into_inner).0;
                    if added.is_empty() && Arc::strong_count(self) == 1 {
                        return;
                    }
                    pause = SHORTEST;
                }
                if !added.is_empty() {
                    pause = SHORTEST;
                }
                waiting.append(&mut added);
            }
            // Without the lock: each poll is a driver call.
            let is_reached = |waits: &mut Waiting| (waits.is_reached)();
            let mut ended = waiting.extract_if(.., is_reached).peekable();
            if ended.peek().is_some() {
                pause = SHORTEST;
                ended.for_each(|waits| {
                    // A panic must not keep the other callbacks from running.
                    if workers::panics(waits.act) {
                        tracing::error!("a callback at an event has panicked");
                    }
                });
            } else {
                drop(ended);
                let are_slow = waiting.iter().all(|waits| waits.is_slow);
                self.sleep(pause, are_slow);
                let longest = if are_slow { SLOWEST } else { LONGEST };
                pause = (pause * 2).min(longest);
            }
        }
    }
}
