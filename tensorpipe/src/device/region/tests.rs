//! Who may write to memory, and what comes back of it.

use std::any::Any;

use super::*;
use crate::device::{ALIGNMENT, DeviceKind};

#[test]
fn fresh_memory_is_aligned_zeroed_and_exclusive() {
    for len in [0, 1, 63, 4096, 1 << 20] {
        let mut buffer = BufferMut::zeroed(len);
        let bytes = buffer.as_bytes_mut().unwrap();
        assert_eq!(bytes.len(), len);
        assert!(bytes.iter().all(|b| *b == 0));
        if len > 0 {
            assert_eq!(bytes.as_ptr() as usize % ALIGNMENT, 0);
        }
        let frozen = buffer.freeze();
        assert_eq!(frozen.len(), len);
    }
}

#[test]
fn a_vector_comes_back_only_to_its_last_holder() {
    let vec = vec![1u32, 2, 3];
    let at = vec.as_ptr();
    let buffer = Buffer::from_vec(vec);
    let second = buffer.clone();
    let buffer = buffer.try_into_vec::<u32>().unwrap_err();
    drop(second);
    let buffer = buffer.try_into_vec::<f32>().unwrap_err();
    let vec = buffer.try_into_vec::<u32>().unwrap();
    assert_eq!((vec.as_ptr(), vec.as_slice()), (at, &[1, 2, 3][..]));
}

#[test]
fn shared_memory_is_not_writable() {
    let mut one = Buffer::copy_from_slice(b"abc");
    assert!(one.as_bytes_mut().is_some());
    let two = one.clone();
    assert!(one.as_bytes_mut().is_none());
    drop(two);
    assert!(one.slice(1..2).as_bytes_mut().is_none());
    assert_eq!(one.slice(1..3).as_bytes().unwrap(), b"bc");
}

/// Memory that the CPU reads and does not write, of which there is more.
struct ReadOnly(Vec<u8>);

impl Memory for ReadOnly {
    fn device(&self) -> Device {
        Device::new(DeviceKind::CUDA, 0)
    }
    fn len(&self) -> usize {
        self.0.len()
    }
    fn as_bytes(&self) -> Option<&[u8]> {
        Some(&self.0)
    }
    fn allocate_like(&self, len: usize) -> Option<BufferMut> {
        BufferMut::from_memory(Arc::new(Self(vec![0; len])), len).ok()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

#[test]
fn what_cannot_be_written_keeps_its_bytes() {
    let mut buffer = Buffer::new(Arc::new(ReadOnly(vec![1, 2, 3])));
    assert!(buffer.make_mut().is_none());
    assert_eq!(buffer.as_bytes(), Some(&[1, 2, 3][..]));
}
