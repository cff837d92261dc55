//! Who may write to memory, and what comes back of it.

use super::*;
use crate::device::ALIGNMENT;

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
