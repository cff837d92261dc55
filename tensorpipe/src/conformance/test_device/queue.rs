//! A queue of copies, and its fences.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Machine, TestMemory};
use crate::device::{Buffer, BufferMut, Device, Fence};
use crate::error::DeviceError;

/// How long each piece of work is delayed: far longer than the CPU takes to queue more.
const PAUSE: Duration = Duration::from_millis(1);

type Job = Box<dyn FnOnce(&Machine) + Send>;

/// A queue of copies: they run one after another, on the queue's own thread, each after a pause. The thread ends when the queue is dropped
/// and all of its work is done.
pub struct TestQueue {
    shared: Arc<Queue>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<Job>,
    pushed: u64,
    done: u64,
    /// Callbacks, with the number of finished pieces that each waits for.
    callbacks: Vec<(u64, Box<dyn FnOnce() + Send>)>,
    is_closed: bool,
}

impl TestQueue {
    pub(super) fn new(machine: Arc<Machine>) -> Self {
        let shared = Arc::new(Queue::default());
        let queue = shared.clone();
        std::thread::spawn(move || queue.run(&machine));
        Self { shared }
    }

    /// A fence behind everything that is queued now.
    pub fn fence(&self) -> Arc<dyn Fence> {
        let position = self.shared.lock().pushed;
        Arc::new(Position {
            queue: self.shared.clone(),
            position,
        })
    }

    /// Everything that is queued from now on runs behind `fence`, which may be of any queue.
    pub fn wait_for(&self, fence: Arc<dyn Fence>) {
        let own = fence.as_any().downcast_ref::<Position>();
        if own.is_some_and(|own| Arc::ptr_eq(&own.queue, &self.shared)) {
            return;
        }
        self.push(Box::new(move |_| {
            let gate = Arc::new(Gate::default());
            let opened = gate.clone();
            fence.when_reached(Box::new(move || opened.open()));
            gate.wait();
        }));
    }

    /// Stops, behind what is queued now, until the result is dropped.
    pub fn hold(&self) -> Hold {
        let gate = Arc::new(Gate::default());
        let hold = Hold(gate.clone());
        self.push(Box::new(move |_| gate.wait()));
        hold
    }

    /// Queues a copy of device memory into main memory of the same length, behind the source's ready fence. The main memory comes
    /// back with the result.
    ///
    /// # Errors
    /// For memory of another kind of device, or of another length.
    pub fn read(&self, source: &Buffer, mut into: BufferMut) -> Result<Copied, DeviceError> {
        check_lengths(source.device(), source.len(), into.len())?;
        let place = TestMemory::place(&**source.memory(), source.offset(), source.len())?;
        if let Some(ready) = source.ready() {
            self.wait_for(ready);
        }
        let slot = Arc::new(Mutex::new(None));
        let filled = slot.clone();
        self.push(Box::new(move |machine| {
            if let (Some(from), Some(to)) = (machine.lock().bytes(place), into.as_bytes_mut()) {
                to.copy_from_slice(from);
            }
            *filled.lock().unwrap_or_else(PoisonError::into_inner) = Some(into);
        }));
        let fence = self.fence();
        source.use_until(&fence);
        Ok(Copied { fence, slot })
    }

    /// Queues a copy of main memory into device memory of the same length, behind the unfinished work there. The result is ready when
    /// the copy is done.
    ///
    /// # Errors
    /// For memory of another kind of device, or of another length.
    pub fn write(&self, source: Buffer, mut into: BufferMut) -> Result<Buffer, DeviceError> {
        let (device, len) = (into.device(), into.len());
        check_lengths(device, source.len(), len)?;
        let refused = |reason| DeviceError::new(device, "copy", reason);
        let memory = into.memory_mut().ok_or_else(|| refused("it is shared"))?;
        let place = TestMemory::place(memory, 0, len)?;
        let unfinished = into.unfinished();
        unfinished
            .into_iter()
            .for_each(|fence| self.wait_for(fence));
        let from = source.clone();
        self.push(Box::new(move |machine| {
            if let (Some(to), Some(from)) = (machine.lock().bytes(place), from.as_bytes()) {
                to.copy_from_slice(from);
            }
        }));
        let fence = self.fence();
        source.use_until(&fence);
        into.freeze_at(fence)
            .map_err(|_| refused("it keeps no fences"))
    }

    fn push(&self, job: Job) {
        let mut state = self.shared.lock();
        state.jobs.push_back(job);
        state.pushed += 1;
        self.shared.changed.notify_all();
    }
}

/// Refuses here what would panic on the queue's thread.
fn check_lengths(device: Device, from: usize, to: usize) -> Result<(), DeviceError> {
    if from == to {
        return Ok(());
    }
    let reason = format!("{from} bytes into {to}");
    Err(DeviceError::new(device, "copy", reason))
}

impl std::fmt::Debug for TestQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.shared.lock();
        write!(f, "TestQueue({} of {} done)", state.done, state.pushed)
    }
}

impl Drop for TestQueue {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_all();
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, machine: &Machine) {
        while let Some(job) = self.next() {
            std::thread::sleep(PAUSE);
            job(machine);
            let mut state = self.lock();
            state.done += 1;
            let done = state.done;
            let reached = state.callbacks.extract_if(.., |(at, _)| *at <= done);
            let reached: Vec<_> = reached.collect();
            drop(state);
            reached.into_iter().for_each(|(_, act)| act());
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if state.is_closed {
                return None;
            }
            let woken = self.changed.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Reached when so many pieces of a queue's work are done.
struct Position {
    queue: Arc<Queue>,
    position: u64,
}

impl Fence for Position {
    fn reached(&self) -> Option<Result<(), DeviceError>> {
        (self.queue.lock().done >= self.position).then_some(Ok(()))
    }

    fn when_reached(&self, act: Box<dyn FnOnce() + Send>) {
        let mut state = self.queue.lock();
        if state.done < self.position {
            state.callbacks.push((self.position, act));
        } else {
            drop(state);
            act();
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A copy under way into main memory.
pub struct Copied {
    fence: Arc<dyn Fence>,
    slot: Arc<Mutex<Option<BufferMut>>>,
}

impl Copied {
    /// Reached when the copy is done.
    pub fn fence(&self) -> &Arc<dyn Fence> {
        &self.fence
    }

    /// The memory, once it is filled.
    pub fn take(&self) -> Option<BufferMut> {
        let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        slot.take()
    }

    /// Waits for the bytes on this thread.
    pub fn wait(self) -> Vec<u8> {
        let gate = Arc::new(Gate::default());
        let opened = gate.clone();
        self.fence.when_reached(Box::new(move || opened.open()));
        gate.wait();
        let bytes = self.take().map(BufferMut::freeze);
        let bytes = bytes.as_ref().and_then(Buffer::as_bytes);
        bytes.unwrap_or_default().to_vec()
    }
}

impl std::fmt::Debug for Copied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Copied({:?})", self.fence.reached())
    }
}

/// Keeps a queue from going on until it is dropped.
pub struct Hold(Arc<Gate>);

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hold").finish_non_exhaustive()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.open();
    }
}

#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.is_open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.opened.notify_all();
    }

    fn wait(&self) {
        let is_open = self.is_open.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.opened.wait_while(is_open, |is_open| !*is_open);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}
