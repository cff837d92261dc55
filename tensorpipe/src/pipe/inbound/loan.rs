//! A reader's memory on loan to its pipe. Wherever the pipe drops it, it goes back to the reader, so that a read that fails gives it back.
//!
//! Invariant: a memory is held by its [`Lent`] or by its [`Home`], never by both. So once it is home again, nobody writes to it any more.

use std::any::Any;
use std::task::{Context, Poll, Waker};

use crate::device::{Buffer, BufferMut, Device, Memory, MemoryKind, QueuedWork, Registrable};
use crate::message::{Allocation, Message, Place};
use crate::pipe::driver::wake;
use crate::sync::{Arc, Mutex, lock};
use crate::tensor::Tensor;

/// What a reader has given to its pipe, and what its allocation was.
#[derive(Default)]
pub(super) struct LentAllocation {
    payloads: Vec<Kept>,
    tensors: Vec<Kept>,
}

enum Kept {
    Home(Home),
    /// Without memory of the reader's.
    Place(Place),
}

impl LentAllocation {
    /// Takes the memory out of `allocation`, and puts a [`Lent`] in its place.
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
    return_slot: Arc<Mutex<ReturnSlot>>,
    runtime: tokio::runtime::Handle,
}

/// Where lent memory comes back to.
struct Home {
    return_slot: Arc<Mutex<ReturnSlot>>,
    /// The address of the [`Lent`]: compared, never followed.
    lent: usize,
    len: usize,
}

#[derive(Default)]
struct ReturnSlot {
    memory: Option<Arc<dyn Memory>>,
    waiting: Option<Waker>,
}

fn lend(own: BufferMut, runtime: tokio::runtime::Handle) -> (BufferMut, Home) {
    let (memory, len) = own.into_memory();
    let return_slot = Arc::new(Mutex::new(ReturnSlot::default()));
    let lent: Arc<dyn Memory> = Arc::new(Lent {
        memory: Some(memory),
        return_slot: return_slot.clone(),
        runtime,
    });
    let home = Home {
        return_slot,
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
        let mut return_slot = lock(&self.return_slot);
        if return_slot.memory.is_none() {
            return_slot.waiting = Some(waker.clone());
        }
        return_slot.memory.is_some()
    }

    fn take(self) -> Option<BufferMut> {
        let memory = lock(&self.return_slot).memory.take()?;
        // As it was lent: the only handle.
        BufferMut::from_memory(memory, self.len).ok()
    }

    /// The reader's own memory, if `read` is all of the lent one. A buffer that a channel put elsewhere, or that somebody still holds,
    /// stays as it is.
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

impl Drop for Lent {
    fn drop(&mut self) {
        let waiting = {
            let mut return_slot = lock(&self.return_slot);
            return_slot.memory = self.memory.take();
            return_slot.waiting.take()
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

/// Answers every question as the memory that it holds.
#[deny(clippy::missing_trait_methods, reason = "a default would hide it")]
impl Memory for Lent {
    fn device(&self) -> Device {
        let memory = self.memory.as_deref();
        memory.map_or(Device::CPU, Memory::device)
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
    fn allocate_like(&self, len: usize) -> Option<BufferMut> {
        self.memory.as_ref()?.allocate_like(len)
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
            None => &mut self.return_slot,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::runtime::Handle;

    use super::*;
    use crate::message::{MessageTensor, Payload};
    use crate::pipe::tests::soon;
    use crate::sys::registrations::Registrations;
    use crate::tensor::DType;

    /// Memory that has something of its own to say to every question.
    #[derive(Default)]
    struct Own {
        bytes: Vec<u8>,
        is_private: bool,
        work: QueuedWork,
        registrations: Registrations,
    }

    impl Memory for Own {
        fn kind(&self) -> MemoryKind {
            MemoryKind::Pool
        }
        fn is_private(&self) -> bool {
            self.is_private
        }
        fn len(&self) -> usize {
            self.bytes.len()
        }
        fn allocate_like(&self, len: usize) -> Option<BufferMut> {
            Some(BufferMut::zeroed(len))
        }
        fn work(&self) -> Option<&QueuedWork> {
            Some(&self.work)
        }
        fn registrable(&self) -> Option<Registrable<'_>> {
            Some(Registrable::whole(&self.registrations, self.len()))
        }
        fn as_bytes(&self) -> Option<&[u8]> {
            Some(&self.bytes)
        }
        fn as_bytes_mut(&mut self) -> Option<&mut [u8]> {
            Some(&mut self.bytes)
        }
        fn as_any(&self) -> &dyn Any {
            self
        }
        fn as_any_mut(&mut self) -> &mut dyn Any {
            self
        }
    }

    /// Eight bytes, and the address of their memory.
    fn own() -> (BufferMut, usize) {
        let bytes = (0..8).collect();
        let memory: Arc<dyn Memory> = Arc::new(Own {
            bytes,
            is_private: true,
            ..Own::default()
        });
        let at = address(&memory);
        (BufferMut::from_memory(memory, 8).ok().unwrap(), at)
    }

    #[tokio::test]
    async fn what_is_lent_answers_as_the_memory_itself() {
        let (lent, _home) = lend(own().0, Handle::current());
        let memory = lent.memory();
        assert_eq!((memory.len(), memory.is_empty()), (8, false));
        assert!(memory.is_private() && memory.kind() == MemoryKind::Pool);
        assert_eq!(memory.as_bytes(), Some(&[0, 1, 2, 3, 4, 5, 6, 7][..]));
        assert_eq!(
            memory.allocate_like(3).map(|another| another.len()),
            Some(3)
        );
        assert_eq!(memory.registrable().map(|found| found.len), Some(8));
        let own = memory.as_any().downcast_ref::<Own>().unwrap();
        assert!(
            memory
                .work()
                .is_some_and(|work| std::ptr::eq(work, &own.work))
        );
        let shared = BufferMut::from_memory(Arc::new(Own::default()), 0);
        let (lent, _home) = lend(shared.ok().unwrap(), Handle::current());
        let memory = lent.memory();
        assert!(memory.is_empty() && !memory.is_private());
    }

    #[tokio::test]
    async fn a_message_that_was_read_holds_the_readers_own_memory() {
        let ((payload, first), (tensor, second)) = (own(), own());
        let mut allocation = Allocation {
            payloads: vec![Place::Into(payload), Place::Pool],
            tensors: vec![Place::Into(tensor)],
        };
        let loans = LentAllocation::of(&mut allocation, &Handle::current());
        let mut read = allocation.payloads.into_iter().chain(allocation.tensors);
        let mut read = || match read.next() {
            Some(Place::Into(lent)) => lent.freeze(),
            _ => Buffer::from_vec(vec![9u8]),
        };
        let (payloads, tensor) = ([read(), read()], read());
        let tensor = Tensor::from_buffer(tensor, DType::U8, [2, 4]).unwrap();
        let mut message = Message::new("read");
        message.payloads.extend(payloads.map(Payload::from));
        message.tensors.push(MessageTensor::from(tensor));
        loans.settle(&mut message);
        assert_eq!(address(message.payloads[0].data.memory()), first);
        assert_eq!(message.payloads[1].data.as_bytes(), Some(&[9][..]));
        let tensor = &message.tensors[0].tensor;
        assert_eq!(tensor.shape()[..], [2, 4]);
        assert_eq!(address(tensor.buffer().memory()), second);
    }

    /// It is somewhere else, somebody reads it, or it is a part of it.
    #[tokio::test]
    async fn what_is_not_all_of_the_readers_memory_stays_as_it_is() {
        let elsewhere = Buffer::from_vec(vec![8u8; 8]);
        let (_lent, home) = lend(own().0, Handle::current());
        assert_eq!(home.claim(elsewhere).as_bytes(), Some(&[8; 8][..]));
        let (lent, home) = lend(own().0, Handle::current());
        let read = lent.freeze();
        let looks = read.clone();
        assert_eq!(home.claim(read).as_bytes(), looks.as_bytes());
        for part in [0..7, 1..8] {
            let (lent, home) = lend(own().0, Handle::current());
            let read = lent.freeze().slice(part);
            assert_eq!(home.claim(read).len(), 7);
        }
    }

    #[tokio::test]
    async fn a_read_that_failed_has_its_memory_back_when_nobody_else_has_it() {
        let (memory, at) = own();
        let mut allocation = Allocation {
            payloads: vec![Place::Into(memory), Place::Skip],
            tensors: vec![Place::On(Device::CPU)],
        };
        let mut loans = LentAllocation::of(&mut allocation, &Handle::current());
        let first = poll_fn(|cx| Poll::Ready(loans.poll_home(cx).is_ready()));
        assert!(!first.await, "it is lent");
        let back = tokio::spawn(async move { poll_fn(|cx| loans.poll_home(cx)).await });
        tokio::task::yield_now().await;
        drop(allocation);
        let mut back = soon(back).await.unwrap();
        assert!(matches!(back.payloads[1], Place::Skip));
        assert!(matches!(back.tensors[0], Place::On(Device::CPU)));
        match back.payloads.remove(0) {
            Place::Into(memory) => assert_eq!(address(&memory.into_memory().0), at),
            other => panic!("{other:?}"),
        }
    }
}
