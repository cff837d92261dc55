//! Positions in streams: CUDA events.
//!
//! The driver calls nobody back who may then call the driver, so callbacks run on a thread that looks at their events, as
//! long as there are any, and sleeps else.

use std::any::Any;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cudarc::driver::CudaEvent;

use super::failed;
use crate::device::{Device, Fence};
use crate::error::DeviceError;

/// Between two looks at events that are not reached, at first. Chosen: a small copy takes so long.
const SHORTEST: Duration = Duration::from_micros(10);

/// And at most, where nothing is reached for long: each look is a call of a microsecond. Chosen.
const LONGEST: Duration = Duration::from_millis(1);

/// Between two looks whether the thread is still wanted. Chosen.
const ALONE: Duration = Duration::from_secs(1);

/// Behind what was queued on a stream before it.
pub(super) struct CudaFence {
    device: Device,
    event: Arc<CudaEvent>,
    watch: Arc<Watch>,
}

impl CudaFence {
    pub(super) fn new(device: Device, event: CudaEvent, watcher: &Watcher) -> Self {
        Self {
            device,
            event: Arc::new(event),
            watch: watcher.0.clone(),
        }
    }

    pub(super) fn event(&self) -> &CudaEvent {
        &self.event
    }
}

impl Fence for CudaFence {
    fn reached(&self) -> Option<Result<(), DeviceError>> {
        match self.event.try_is_complete() {
            Ok(is_reached) => is_reached.then_some(Ok(())),
            Err(error) => Some(Err(failed(self.device, "cuEventQuery", error))),
        }
    }

    fn when_reached(&self, act: Box<dyn FnOnce() + Send>) {
        if self.reached().is_some() {
            return act();
        }
        self.watch.add(self.event.clone(), act);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Has a thread look at events. It ends when nobody can add any and the last one is reached.
pub(super) struct Watcher(Arc<Watch>);

#[derive(Default)]
struct Watch {
    added: Mutex<Vec<Waiting>>,
    changed: Condvar,
}

/// Whoever waits for an event.
struct Waiting {
    event: Arc<CudaEvent>,
    act: Box<dyn FnOnce() + Send>,
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

impl Watch {
    fn lock(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.added.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, event: Arc<CudaEvent>, act: Box<dyn FnOnce() + Send>) {
        self.lock().push(Waiting { event, act });
        self.changed.notify_one();
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
                waiting.append(&mut added);
            }
            // Without the lock: each look is a call of the driver's. An error, too, is an end of it.
            let is_reached = |waits: &mut Waiting| waits.event.try_is_complete() != Ok(false);
            let mut reached = waiting.extract_if(.., is_reached).peekable();
            if reached.peek().is_some() {
                pause = SHORTEST;
                reached.for_each(|waits| (waits.act)());
            } else {
                drop(reached);
                std::thread::sleep(pause);
                pause = (pause * 2).min(LONGEST);
            }
        }
    }
}
