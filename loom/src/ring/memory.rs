//! A ring's memory, in which loom reports a byte that both ends use at once.

use std::sync::atomic::AtomicU8;

use loom::cell::UnsafeCell;
use loom::sync::Arc;

use super::consumer::Consumer;
use super::control::{Control, RingMemory};
use super::producer::Producer;
use crate::death;
use crate::sync::Ordering;

/// One end's view.
#[derive(Clone)]
pub(super) struct Memory {
    control: Arc<Control>,
    bytes: Arc<Vec<Byte>>,
}

#[derive(Default)]
struct Byte {
    /// Tells loom which end uses this byte.
    access: UnsafeCell<()>,
    /// The byte. Access is no step of a model.
    value: AtomicU8,
}

/// A ring in memory of its own.
pub(super) fn ring(capacity: usize) -> (Producer<Memory>, Consumer<Memory>) {
    let memory = Memory::of(Arc::default(), capacity);
    (Producer::new(memory.clone()), Consumer::new(memory))
}

impl Memory {
    fn of(control: Arc<Control>, capacity: usize) -> Self {
        let bytes = std::iter::repeat_with(Byte::default).take(capacity);
        Self {
            control,
            bytes: Arc::new(bytes.collect()),
        }
    }
}

impl RingMemory for Memory {
    /// Larger writes are published in pieces.
    const STRIDE: usize = 2;
    const REWIND: usize = 3;

    fn control(&self) -> &Control {
        &self.control
    }

    fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Gives the bytes back; their values are undefined afterwards.
    fn give_back(&self) {
        for byte in &*self.bytes {
            byte.access
                .with_mut(|_| byte.value.store(0xff, Ordering::Relaxed));
        }
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        for (byte, value) in self.bytes[at..][..bytes.len()].iter().zip(bytes) {
            death::step();
            byte.access
                .with_mut(|_| byte.value.store(*value, Ordering::Relaxed));
        }
    }

    fn take(&self, at: usize, bytes: &mut [u8]) {
        for (byte, value) in self.bytes[at..][..bytes.len()].iter().zip(bytes) {
            death::step();
            byte.access
                .with(|_| *value = byte.value.load(Ordering::Relaxed));
        }
    }
}
