//! Positions in streams: CUDA events.
//!
//! The driver calls nobody back who may then call the driver, so callbacks run on a thread of their own. It polls their events as
//! long as there are any, and sleeps else.

use std::any::Any;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cudarc::driver::{CudaEvent, DriverError};

use super::{ContextGuard, failed};
use crate::device::{Device, Fence};
use crate::error::DeviceError;
use crate::sys::fork::Owner;
use crate::sys::workers;

/// Between two looks at events that are not reached, at first. Chosen: a small copy takes so long.
const SHORTEST: Duration = Duration::from_micros(10);

/// And at most, where nothing is reached for long: each look is a call of a microsecond. Chosen.
const LONGEST: Duration = Duration::from_millis(1);

/// The same where only other processes are waited for, which may keep what they have for long. Chosen.
const SLOWEST: Duration = Duration::from_millis(20);

/// Between two looks whether the thread is still wanted. Chosen.
const ALONE: Duration = Duration::from_secs(1);

/// Behind what was queued on a stream before it.
pub(super) struct CudaFence {
    owner: Owner,
    device: Device,
    /// There until it is dropped.
    event: ManuallyDrop<Arc<CudaEvent>>,
    watch: Arc<Watch>,
}

impl CudaFence {
    pub(super) fn new(device: Device, event: CudaEvent, watcher: &Watcher) -> Self {
        Self {
            owner: Owner::here(),
            device,
            event: ManuallyDrop::new(Arc::new(event)),
            watch: watcher.0.clone(),
        }
    }

    pub(super) fn event(&self) -> &CudaEvent {
        &self.event
    }
}

impl Fence for CudaFence {
    fn reached(&self) -> Option<Result<(), DeviceError>> {
        // CUDA does not outlive a fork: what a child has inherited it must not ask.
        if self.owner.is_other_process() {
            return None;
        }
        let reached = reached(&self.event)?;
        Some(reached.map_err(|error| failed(self.device, "cuEventQuery", error)))
    }

    fn when_reached(&self, act: Box<dyn FnOnce() + Send>) {
        if self.owner.is_other_process() {
            return std::mem::forget(act);
        }
        if self.reached().is_some() {
            return act();
        }
        let event = Arc::clone(&self.event);
        self.watch.add(Waiting {
            is_reached: Box::new(move || reached(&event).is_some()),
            act,
            is_slow: false,
        });
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[allow(
    unsafe_code,
    reason = "the event is dropped while this thread's context is kept"
)]
impl Drop for CudaFence {
    fn drop(&mut self) {
        // As above.
        if self.owner.is_other_process() {
            return;
        }
        let _mine = ContextGuard::keep();
        // SAFETY: nobody uses it from now on.
        unsafe { ManuallyDrop::drop(&mut self.event) };
    }
}

/// Whether an event is reached, and how the work before it ended. Only the end of its context is an end of that work. A refusal to
/// answer (another thread captures a graph) is none: memory in use must not be taken for free.
fn reached(event: &CudaEvent) -> Option<Result<(), DriverError>> {
    match event.try_is_complete() {
        Ok(is_complete) => is_complete.then_some(Ok(())),
        Err(error) => matches!(
            error.0 as u32,
            4 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 810
        )
        .then_some(Err(error)),
    }
}

/// Has a thread look at events. It ends when nobody can add any and the last one is reached.
pub(super) struct Watcher(Arc<Watch>);

#[derive(Default)]
struct Watch {
    added: Mutex<Vec<Waiting>>,
    changed: Condvar,
}

/// Whoever waits for an event, or for another process.
struct Waiting {
    is_reached: Box<dyn Fn() -> bool + Send>,
    act: Box<dyn FnOnce() + Send>,
    /// It may be long.
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
    /// Runs `act` some time after `is_reached` says so.
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

    /// Until more is added, at most, where only others are waited for.
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
            // Without the lock: each look is a call of the driver's.
            let is_reached = |waits: &mut Waiting| (waits.is_reached)();
            let mut ended = waiting.extract_if(.., is_reached).peekable();
            if ended.peek().is_some() {
                pause = SHORTEST;
                ended.for_each(|waits| {
                    // The others must hear of theirs.
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
