//! Memory of a reader's on loan to its pipe: it comes home from wherever it is let go of, so that a read that fails gives
//! it back.
//!
//! Invariant: a memory is in the hands of its [`Lent`] or in its [`Home`], never both; so a home that is full may be used
//! again, and nobody writes to it any more.

use std::any::Any;
use std::task::{Context, Poll, Waker};

use crate::device::{Buffer, BufferMut, Device, Memory, MemoryKind, QueuedWork, Registrable};
use crate::message::{Allocation, Message, Place};
use crate::pipe::driver::wake;
use crate::sync::{Arc, Mutex, lock};
use crate::tensor::Tensor;

/// What a reader has given to its pipe, and how its allocation looked.
#[derive(Debug, Default)]
pub(super) struct Loans {
    payloads: Vec<Kept>,
    tensors: Vec<Kept>,
}

#[derive(Debug)]
enum Kept {
    Home(Home),
    /// Without memory of the reader's.
    Place(Place),
}

impl Loans {
    /// Lends the memory of `allocation`, in which it is replaced.
    pub(super) fn of(allocation: &mut Allocation, runtime: &tokio::runtime::Handle) -> Self {
        let lend = |places: &mut Vec<Place>| {
            let kept = places.iter_mut().map(|place| match place {
                Place::Into(memory) => {
                    let own = std::mem::replace(memory, BufferMut::zeroed(0));
                    let (lent, home) = lend(own, runtime.clone());
                    *memory = lent;
                    Kept::Home(home)
                }
                Place::On(device) => Kept::Place(Place::On(*device)),
                Place::Pool => Kept::Place(Place::Pool),
                Place::Skip => Kept::Place(Place::Skip),
            });
            kept.collect()
        };
        Self {
            payloads: lend(&mut allocation.payloads),
            tensors: lend(&mut allocation.tensors),
        }
    }

    /// Ready when all memory is home: the allocation as it was given.
    pub(super) fn poll_home(&mut self, cx: &Context<'_>) -> Poll<Allocation> {
        let homes = self.payloads.iter().chain(&self.tensors);
        let mut out = homes.filter_map(|kept| match kept {
            Kept::Home(home) => Some(home),
            Kept::Place(_) => None,
        });
        if !out.all(|home| home.is_full(cx.waker())) {
            return Poll::Pending;
        }
        let place = |kept: Kept| match kept {
            Kept::Home(home) => home.take().map(Place::Into).unwrap_or_default(),
            Kept::Place(place) => place,
        };
        Poll::Ready(Allocation {
            payloads: self.payloads.drain(..).map(place).collect(),
            tensors: self.tensors.drain(..).map(place).collect(),
        })
    }

    /// Puts the reader's own memory into the message that was read into it.
    pub(super) fn settle(self, message: &mut Message) {
        for (kept, payload) in self.payloads.into_iter().zip(&mut message.payloads) {
            if let Kept::Home(home) = kept {
                let lent = std::mem::replace(&mut payload.data, BufferMut::zeroed(0).freeze());
                payload.data = home.claim(lent);
            }
        }
        for (kept, part) in self.tensors.into_iter().zip(&mut message.tensors) {
            if let Kept::Home(home) = kept {
                let (dtype, shape) = (part.tensor.dtype(), part.tensor.shape().to_vec());
                let nothing = Tensor::from(Vec::<u8>::new());
                let lent = std::mem::replace(&mut part.tensor, nothing).into_buffer();
                // Of the same length: it fits as it did before.
                if let Ok(tensor) = Tensor::from_buffer(home.claim(lent), dtype, shape) {
                    part.tensor = tensor;
                }
            }
        }
    }
}

/// The memory, until it is let go of.
struct Lent {
    /// `None` only while dropping.
    memory: Option<Arc<dyn Memory>>,
    doorstep: Arc<Mutex<Doorstep>>,
    runtime: tokio::runtime::Handle,
}

/// Where it comes back to.
struct Home {
    doorstep: Arc<Mutex<Doorstep>>,
    /// The address of the [`Lent`]: compared, never followed.
    lent: usize,
    len: usize,
}

#[derive(Default)]
struct Doorstep {
    memory: Option<Arc<dyn Memory>>,
    waiting: Option<Waker>,
}

fn lend(own: BufferMut, runtime: tokio::runtime::Handle) -> (BufferMut, Home) {
    let (memory, len) = own.into_memory();
    let doorstep = Arc::new(Mutex::new(Doorstep::default()));
    let lent: Arc<dyn Memory> = Arc::new(Lent {
        memory: Some(memory),
        doorstep: doorstep.clone(),
        runtime,
    });
    let home = Home {
        doorstep,
        lent: address(&lent),
        len,
    };
    // Just made: nobody else holds it, and it is as long as what it holds.
    let lent = BufferMut::from_memory(lent, len);
    (lent.unwrap_or_else(|_| BufferMut::zeroed(len)), home)
}

fn address(memory: &Arc<dyn Memory>) -> usize {
    Arc::as_ptr(memory).cast::<()>().addr()
}

impl Home {
    /// Whether the memory is back; else `waker` is woken when it is.
    fn is_full(&self, waker: &Waker) -> bool {
        let mut doorstep = lock(&self.doorstep);
        if doorstep.memory.is_none() {
            doorstep.waiting = Some(waker.clone());
        }
        doorstep.memory.is_some()
    }

    fn take(self) -> Option<BufferMut> {
        let memory = lock(&self.doorstep).memory.take()?;
        // As it was lent: the only handle.
        BufferMut::from_memory(memory, self.len).ok()
    }

    /// The reader's own memory for what was read into it. What a channel put elsewhere, or still looks at, stays as it is.
    fn claim(self, read: Buffer) -> Buffer {
        let whole = read.offset() == 0 && read.len() == self.len;
        let lent = address(read.memory()) == self.lent && Arc::strong_count(read.memory()) == 1;
        if !(whole && lent) {
            return read;
        }
        drop(read);
        self.take().unwrap_or_else(|| BufferMut::zeroed(0)).freeze()
    }
}

impl std::fmt::Debug for Home {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Home({} bytes)", self.len)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let waiting = {
            let mut doorstep = lock(&self.doorstep);
            doorstep.memory = self.memory.take();
            doorstep.waiting.take()
        };
        if let Some(waiting) = waiting {
            // From a task of its own: this may be under a lock of the pipe's, and a waker may do what it likes.
            let wake = WakeAtLast(waiting);
            self.runtime.spawn(async move { drop(wake) });
        }
    }
}

/// Wakes when it is dropped: even where a runtime that shuts down takes no more tasks.
struct WakeAtLast(Waker);

impl Drop for WakeAtLast {
    fn drop(&mut self) {
        wake(self.0.clone());
    }
}

/// What it holds, in every respect.
#[deny(clippy::missing_trait_methods, reason = "a default would hide it")]
impl Memory for Lent {
    fn device(&self) -> Device {
        self.memory
            .as_ref()
            .map_or(Device::CPU, |memory| memory.device())
    }
    fn kind(&self) -> MemoryKind {
        let memory = self.memory.as_ref();
        memory.map_or(MemoryKind::Heap, |memory| memory.kind())
    }
    fn is_private(&self) -> bool {
        (self.memory.as_ref()).is_some_and(|memory| memory.is_private())
    }
    fn len(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.len())
    }
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    fn another(&self, len: usize) -> Option<BufferMut> {
        self.memory.as_ref()?.another(len)
    }
    fn work(&self) -> Option<&QueuedWork> {
        self.memory.as_ref()?.work()
    }
    fn registrable(&self) -> Option<Registrable<'_>> {
        self.memory.as_ref()?.registrable()
    }
    fn as_bytes(&self) -> Option<&[u8]> {
        self.memory.as_ref()?.as_bytes()
    }
    fn as_bytes_mut(&mut self) -> Option<&mut [u8]> {
        Arc::get_mut(self.memory.as_mut()?)?.as_bytes_mut()
    }
    fn as_any(&self) -> &dyn Any {
        match &self.memory {
            Some(memory) => memory.as_any(),
            None => self,
        }
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        // The only handle, by the invariant of the `BufferMut` that it was made of.
        match self.memory.as_mut().and_then(Arc::get_mut) {
            Some(memory) => memory.as_any_mut(),
            None => &mut self.doorstep,
        }
    }
}
