//! A ring's memory: each byte notices when both ends use it at once.

use std::sync::atomic::AtomicU8;

use loom::cell::UnsafeCell;
use loom::sync::Arc;

use super::ends::{Consumer, Control, Place, Producer};
use crate::death;
use crate::sync::Ordering;

/// One end's view.
#[derive(Clone)]
pub(super) struct Memory(Arc<Shared>);

struct Shared {
    control: Control,
    bytes: Vec<Byte>,
}

#[derive(Default)]
struct Byte {
    /// Who is here, as loom sees it.
    access: UnsafeCell<()>,
    /// No step of a model.
    value: AtomicU8,
}

/// A ring in memory of its own.
pub(super) fn ring(capacity: usize) -> (Producer<Memory>, Consumer<Memory>) {
    let bytes = std::iter::repeat_with(Byte::default).take(capacity);
    let memory = Memory(Arc::new(Shared {
        control: Control::default(),
        bytes: bytes.collect(),
    }));
    (Producer::new(memory.clone()), Consumer::new(memory))
}

impl Place for Memory {
    /// Writes of more are published in pieces.
    const STRIDE: usize = 2;

    fn control(&self) -> &Control {
        &self.0.control
    }

    fn capacity(&self) -> usize {
        self.0.bytes.len()
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        for (byte, value) in self.0.bytes[at..][..bytes.len()].iter().zip(bytes) {
            death::step();
            byte.access
                .with_mut(|_| byte.value.store(*value, Ordering::Relaxed));
        }
    }

    fn take(&self, at: usize, bytes: &mut [u8]) {
        for (byte, value) in self.0.bytes[at..][..bytes.len()].iter().zip(bytes) {
            death::step();
            byte.access
                .with(|_| *value = byte.value.load(Ordering::Relaxed));
        }
    }
}
