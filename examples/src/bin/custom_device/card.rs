//! The device: memory, its allocator, fences, and queues that copy.

use std::any::Any;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use tensorpipe::{
    Buffer, BufferMut, Device, DeviceError, DeviceKind,
    device::{Allocator, Fence, Memory, QueuedWork},
};

/// The largest memory that a card has.
const LARGEST: usize = 1 << 30;

pub(crate) const fn card(index: u32) -> Device {
    Device::new(DeviceKind::new("card"), index)
}

/// Bytes of a card, until they are freed. Only a queue's thread reads or writes them.
type Cell = Arc<Mutex<Option<Vec<u8>>>>;

struct CardMemory {
    device: Device,
    cell: Cell,
    len: usize,
    work: QueuedWork,
}

impl Memory for CardMemory {
    fn device(&self) -> Device {
        self.device
    }

    fn len(&self) -> usize {
        self.len
    }

    fn as_bytes(&self) -> Option<&[u8]> {
        None
    }

    fn work(&self) -> Option<&QueuedWork> {
        Some(&self.work)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

impl Drop for CardMemory {
    fn drop(&mut self) {
        *lock(&self.cell) = None;
    }
}

/// Two cards.
pub(crate) struct Cards;

impl Allocator for Cards {
    fn devices(&self) -> Vec<Device> {
        vec![card(0), card(1)]
    }

    fn allocate(&self, device: Device, len: usize) -> Result<Box<dyn Memory>, DeviceError> {
        if !self.devices().contains(&device) || len > LARGEST {
            return Err(DeviceError::new(device, "allocate", "no such memory"));
        }
        Ok(Box::new(CardMemory {
            device,
            cell: Arc::new(Mutex::new(Some(vec![0; len]))),
            len,
            work: QueuedWork::default(),
        }))
    }
}

type Done = Result<(), DeviceError>;

/// A position in a queue.
#[derive(Default)]
struct Event(Mutex<EventState>);

#[derive(Default)]
struct EventState {
    /// How the work before it ended.
    reached: Option<Done>,
    callbacks: Vec<Box<dyn FnOnce() + Send>>,
}

impl Event {
    fn reach(&self, done: Done) {
        let mut state = lock(&self.0);
        state.reached = Some(done);
        let callbacks = std::mem::take(&mut state.callbacks);
        // A callback may look at this event.
        drop(state);
        callbacks.into_iter().for_each(|act| act());
    }
}

impl Fence for Event {
    fn reached(&self) -> Option<Done> {
        lock(&self.0).reached.clone()
    }

    fn when_reached(&self, act: Box<dyn FnOnce() + Send>) {
        let mut state = lock(&self.0);
        if state.reached.is_none() {
            return state.callbacks.push(act);
        }
        drop(state);
        act();
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Blocks until the fence is reached: only for a thread that may block, such as a queue's.
pub(crate) fn wait(fence: &Arc<dyn Fence>) -> Done {
    let (reached, is_reached) = mpsc::channel::<()>();
    fence.when_reached(Box::new(move || drop(reached)));
    let _ = is_reached.recv();
    fence.reached().unwrap_or(Ok(()))
}

struct Work {
    after: Vec<Arc<dyn Fence>>,
    act: Box<dyn FnOnce() -> Done + Send>,
    event: Arc<Event>,
}

/// Does one copy after the other, on a thread that stands for a card's copy engine. The thread ends when the queue is dropped
/// and all copies are done.
pub(crate) struct Queue(mpsc::Sender<Work>);

impl Queue {
    pub(crate) fn new() -> Self {
        let (queue, queued) = mpsc::channel::<Work>();
        std::thread::spawn(move || {
            for Work { after, act, event } in queued {
                let ready = after.iter().try_for_each(wait);
                event.reach(ready.and_then(|()| act()));
            }
        });
        Self(queue)
    }

    fn submit(
        &self,
        after: Vec<Arc<dyn Fence>>,
        act: impl FnOnce() -> Done + Send + 'static,
    ) -> Arc<dyn Fence> {
        let (act, event) = (Box::new(act), Arc::<Event>::default());
        let reached = event.clone();
        if self.0.send(Work { after, act, event }).is_err() {
            reached.reach(Err(refused("the queue has ended")));
        }
        reached
    }

    /// Stops the queue until the result is dropped.
    pub(crate) fn hold(&self) -> mpsc::Sender<()> {
        let (hold, held) = mpsc::channel();
        self.submit(Vec::new(), move || {
            let _ = held.recv();
            Ok(())
        });
        hold
    }

    /// Queues a copy to a card. The buffer may be passed on at once: it keeps the fence at which it is ready.
    pub(crate) fn to_card(
        &self,
        source: &Buffer,
        mut dest: BufferMut,
    ) -> Result<Buffer, DeviceError> {
        let memory = dest.memory_mut().map(Memory::as_any_mut);
        let memory: Option<&mut CardMemory> = memory.and_then(|memory| memory.downcast_mut());
        let to = memory.ok_or_else(|| refused("not a card's"))?.cell.clone();
        let from = Source::of(source)?;
        // Behind what fills the source, and behind what still uses the destination.
        let after = source.ready().into_iter().chain(dest.unfinished());
        let fence = self.submit(after.collect(), move || {
            let bytes = from.read()?;
            let mut to = lock(&to);
            let to = to.as_mut().ok_or_else(|| refused("freed"))?;
            to[..bytes.len()].copy_from_slice(&bytes);
            Ok(())
        });
        source.use_until(&fence);
        dest.freeze_at(fence).map_err(|_| refused("not a card's"))
    }

    /// Queues a copy to main memory, which keeps no fence: the caller waits for the fence of the [`Landing`].
    pub(crate) fn to_main(
        &self,
        source: &Buffer,
        mut dest: BufferMut,
    ) -> Result<Landing, DeviceError> {
        let from = Source::of(source)?;
        let landed = Arc::new(Mutex::new(None));
        let bytes = landed.clone();
        let fence = self.submit(source.ready().into_iter().collect(), move || {
            let to = dest.as_bytes_mut();
            to.ok_or_else(|| refused("not main memory"))?
                .copy_from_slice(&from.read()?);
            *lock(&bytes) = Some(dest.freeze());
            Ok(())
        });
        source.use_until(&fence);
        Ok(Landing { fence, landed })
    }
}

/// A copy to main memory.
pub(crate) struct Landing {
    pub(crate) fence: Arc<dyn Fence>,
    landed: Arc<Mutex<Option<Buffer>>>,
}

impl Landing {
    /// The bytes, when the fence is reached.
    pub(crate) fn take(&self) -> Result<Buffer, DeviceError> {
        self.fence.reached().unwrap_or(Ok(()))?;
        lock(&self.landed).take().ok_or_else(|| refused("not yet"))
    }
}

/// What a queue reads. Memory of a card stays until all work on it is finished, main memory as long as a handle to it exists.
enum Source {
    Card(Cell, Range<usize>),
    Main(Buffer),
}

impl Source {
    fn of(buffer: &Buffer) -> Result<Self, DeviceError> {
        if buffer.as_bytes().is_some() {
            return Ok(Self::Main(buffer.clone()));
        }
        let memory: Option<&CardMemory> = buffer.memory().as_any().downcast_ref();
        let cell = memory.ok_or_else(|| refused("not a card's"))?.cell.clone();
        let start = buffer.offset();
        Ok(Self::Card(cell, start..start + buffer.len()))
    }

    fn read(&self) -> Result<Vec<u8>, DeviceError> {
        match self {
            Self::Main(buffer) => Ok(buffer.as_bytes().unwrap_or_default().to_vec()),
            Self::Card(cell, range) => match &*lock(cell) {
                Some(bytes) => Ok(bytes[range.clone()].to_vec()),
                None => Err(refused("freed")),
            },
        }
    }
}

fn refused(reason: &'static str) -> DeviceError {
    DeviceError::new(card(0), "copy", reason)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
