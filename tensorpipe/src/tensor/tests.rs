//! A tensor's guarantees about shapes, views, sharing and memory.

use super::*;
use crate::device::Pool;
use bytes::Bytes;

#[test]
fn shape_and_length_must_agree() {
    assert!(Tensor::from_vec(vec![0f32; 6], [2, 3]).is_ok());
    let error = Tensor::from_vec(vec![0f32; 5], [2, 3]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a f32 tensor of shape [2, 3] takes 24 bytes, got 20"
    );
    assert!(Tensor::zeros(DType::F64, [u64::MAX, 2]).is_err());
    assert_eq!(
        Tensor::from_vec(vec![7u8], ()).unwrap().shape(),
        &[] as &[u64]
    );
    assert_eq!(Tensor::zeros(DType::F64, [0, u64::MAX]).unwrap().len(), 0);
}

#[test]
fn a_view_checks_type_and_alignment() {
    let t = Tensor::from_vec(vec![1i32, 2], [2]).unwrap();
    assert_eq!(
        t.as_slice::<f32>(),
        Err(Misuse::DType {
            wanted: DType::F32,
            found: DType::I32
        })
    );
    let aligned = Buffer::copy_from_slice(&[0; 9]);
    let shifted = Tensor::from_buffer(aligned.slice(1..9), DType::F32, [2]).unwrap();
    let error = shifted.as_slice::<f32>().unwrap_err();
    assert!(error.to_string().contains("to_aligned()"), "{error}");
    assert_eq!(
        shifted.to_aligned().unwrap().as_slice::<f32>().unwrap(),
        &[0.0, 0.0]
    );
    let bools =
        Tensor::from_buffer(Bytes::from_static(&[0, 1, 7]).into(), DType::Bool, [3]).unwrap();
    assert_eq!(bools.as_slice::<u8>().unwrap(), &[0, 1, 7]);
}

#[test]
fn writing_to_a_shared_tensor_copies_it() {
    let mut t = Tensor::from_vec(vec![1f32, 2.], [2]).unwrap();
    let before = t.as_slice::<f32>().unwrap().as_ptr();
    t.make_mut::<f32>().unwrap()[0] = 5.0;
    assert_eq!(t.as_slice::<f32>().unwrap().as_ptr(), before);
    let other = t.clone();
    t.make_mut::<f32>().unwrap()[0] = 9.0;
    assert_eq!(other.as_slice::<f32>().unwrap(), &[5.0, 2.0]);
    assert_eq!(t.as_slice::<f32>().unwrap(), &[9.0, 2.0]);
    assert_eq!(other.into_vec::<f32>().unwrap(), [5.0, 2.0]);
}

#[test]
fn rows_share_the_memory() {
    let t = Tensor::from_vec((0..6u8).collect(), [3, 2]).unwrap();
    let part = t.rows(1..3).unwrap();
    assert_eq!(
        (part.shape(), part.as_bytes().unwrap()),
        (&[2, 2][..], &[2, 3, 4, 5][..])
    );
    assert_eq!(
        part.as_bytes().unwrap().as_ptr(),
        t.as_bytes().unwrap()[2..].as_ptr()
    );
    assert_eq!(t.rows(3..3).unwrap().shape(), [0, 2]);
    let error = t.rows(1..4).unwrap_err();
    assert_eq!(
        error.to_string(),
        "rows 1..4 of a tensor that has 3; stay within its first dimension"
    );
    #[expect(clippy::reversed_empty_ranges, reason = "the mistake under test")]
    let reversed = t.rows(2..1);
    assert!(reversed.is_err());
    for none in [0..0, 0..1] {
        assert!(Tensor::scalar(1f32).rows(none).is_err());
    }
    let wide = Tensor::zeros(DType::F64, [u64::MAX, 0]).unwrap();
    assert_eq!(wide.rows(7..u64::MAX).unwrap().shape(), [u64::MAX - 7, 0]);
}

#[test]
fn an_item_needs_one_element_and_no_alignment() {
    let odd = Buffer::copy_from_slice(&[0, 1, 0, 0, 0]).slice(1..5);
    let t = Tensor::from_buffer(odd, DType::U32, [1, 1]).unwrap();
    assert_eq!(t.item::<u32>(), Ok(1));
    assert!(matches!(t.item::<f32>(), Err(Misuse::DType { .. })));
    let two = Tensor::from(vec![1u32, 2]);
    let words =
        "`item` needs a tensor of exactly one element, this one of shape [2] has 2; use `as_slice`";
    assert_eq!(two.item::<u32>().unwrap_err().to_string(), words);
    assert!(Tensor::from(Vec::<u32>::new()).item::<u32>().is_err());
}

/// As an empty tensor of another library does, or of a file.
#[test]
fn no_elements_may_lie_anywhere() {
    let bytes = Buffer::copy_from_slice(&[0; 2]);
    let odd = |at| Tensor::from_buffer(bytes.slice(at..at), DType::F64, [3, 0]).unwrap();
    for at in 0..3 {
        assert_eq!(odd(at).as_slice::<f64>(), Ok(&[][..]));
        assert_eq!(odd(at).into_vec::<f64>(), Ok(Vec::new()));
    }
    // It is the only handle, so it would not be copied.
    let mut alone = Tensor::from_buffer(bytes.slice(1..1), DType::F64, [0]).unwrap();
    drop(bytes);
    assert_eq!(alone.make_mut::<f64>(), Ok(&mut [][..]));
}

#[test]
fn memory_that_is_not_there_is_an_error() {
    let error = Tensor::zeros(DType::U8, [1u64 << 60]).unwrap_err();
    assert!(error.to_string().contains("make it in parts"), "{error}");
}

/// Whatever type owns the bytes, and however they are aligned, a tensor uses them in place.
#[test]
fn storage_of_any_owner_is_borrowed_where_it_is() {
    struct Foreign(Vec<u8>);

    impl AsRef<[u8]> for Foreign {
        fn as_ref(&self) -> &[u8] {
            &self.0[3..]
        }
    }

    impl Drop for Foreign {
        fn drop(&mut self) {
            FREED.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }

    static FREED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    let freed = || FREED.load(std::sync::atomic::Ordering::SeqCst);
    let owner = Foreign((0..11).collect());
    let at = owner.as_ref().as_ptr();
    let tensor = Tensor::from_buffer(Buffer::from_owner(owner), DType::U8, [8]).unwrap();
    assert_eq!(tensor.as_bytes().unwrap().as_ptr(), at);
    let clone = tensor.rows(2..4).unwrap();
    drop(tensor);
    assert!(!freed());
    assert_eq!(clone.as_slice::<u8>().unwrap(), &[5, 6]);
    drop(clone);
    assert!(freed(), "its owner is kept no longer than its bytes");
    let bytes = Bytes::from(vec![1u8, 2, 3]);
    let at = bytes.as_ptr();
    assert_eq!(Tensor::from_bytes(bytes).as_bytes().unwrap().as_ptr(), at);
    let vec = vec![1f64, 2.0];
    let at = vec.as_ptr();
    let tensor = Tensor::from_vec(vec, [2]).unwrap();
    assert_eq!(tensor.as_slice::<f64>().unwrap().as_ptr(), at);
    let ours = Tensor::zeros(DType::U8, [1]).unwrap();
    assert!(ours.as_bytes().unwrap().as_ptr().addr().is_multiple_of(64));
}

#[test]
fn a_shape_is_given_in_any_whole_numbers() {
    let shape = [2u64, 3];
    let slice = &[2u32, 3];
    let (rows, columns) = ([0u8; 6].len() / 3, 3);
    let (dims, owned) = (vec![2usize, 3], Shape::from(shape));
    for tensor in [
        Tensor::zeros(DType::F32, [2, 3]),
        Tensor::zeros(DType::F32, [rows, columns]),
        Tensor::zeros(DType::F32, slice),
        Tensor::zeros(DType::F32, vec![2i64, 3]),
        Tensor::zeros(DType::F32, &dims),
        Tensor::zeros(DType::F32, &shape[..]),
        Tensor::zeros(DType::F32, Shape::from(shape)),
        Tensor::zeros(DType::F32, &owned),
        Tensor::from_vec(vec![0f32; 6], [rows, columns]),
        Tensor::from_slice(&[0f32; 6], [2, 3]),
        Tensor::from(vec![0f32; 6]).reshape([rows, columns]),
        Pool::default().tensor(DType::F32, [rows, columns]),
        Pool::default().zeros(DType::F32, vec![rows, columns]),
    ] {
        assert_eq!(tensor.unwrap().shape(), shape);
    }
    assert!(Tensor::zeros(DType::F32, ()).unwrap().shape().is_empty());
}

#[test]
fn what_is_no_shape_is_said_in_words() {
    let negative = Tensor::zeros(DType::F32, [2, -3]).unwrap_err().to_string();
    assert!(
        negative.starts_with("dimension 1 of the shape is -3:"),
        "{negative}"
    );
    let large = Tensor::zeros(DType::F32, [1u64 << 40, 1 << 30]).unwrap_err();
    let words =
        "a f32 tensor of shape [1099511627776, 1073741824] has more bytes than fit in 64 bits";
    assert!(large.to_string().starts_with(words), "{large}");
    let deep = Tensor::from_vec(vec![1f32], [1; MAX_DIMS + 1]).unwrap_err();
    assert!(deep.to_string().contains("33 dimensions"), "{deep}");
}
