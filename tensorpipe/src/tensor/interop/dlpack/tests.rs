//! Tensors there and back, and what is refused.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::ThreadId;
use std::time::Duration;

use dlpark::ffi::DLDataTypeCode;

use super::*;
use crate::device::Pool;
use crate::tensor::interop::counting;

/// Another library's numbers; tells the thread that releases them.
struct Theirs(Vec<f32>, Sender<ThreadId>);

impl Drop for Theirs {
    fn drop(&mut self) {
        let _ = self.1.send(std::thread::current().id());
    }
}

fn theirs(device: DLDevice, shape: [i64; 2], strides: [i64; 2]) -> (Dlpack, Receiver<ThreadId>) {
    let (releases, gone) = channel();
    let mut numbers = Theirs((0..6).map(|n| n as f32).collect(), releases);
    let data = numbers.0.as_mut_ptr();
    let made = Dynamic::new(shape, strides).initialize(Box::new(numbers));
    let mut made = made.unwrap();
    made.set_dtype(DLDataType::F32).set_device(device);
    made.set_data(data.cast());
    // SAFETY: as many numbers are there as the shapes below have, as long as the tensor is.
    (unsafe { made.finish() }, gone)
}

fn taken(tensor: Dlpack) -> Result<Tensor, Misuse> {
    // SAFETY: what is made above is true.
    unsafe { Tensor::from_dlpack(tensor) }
}

#[test]
fn each_type_goes_there_and_back_where_it_lies() {
    let (_turn, before) = counting();
    for dtype in DType::ALL {
        let tensor = Tensor::zeros(dtype, [3, 5]).unwrap();
        let at = tensor.as_bytes().unwrap().as_ptr();
        let given = tensor.into_dlpack().unwrap();
        let said = given.validate_export().unwrap();
        assert_eq!(
            (said.shape(), said.strides()),
            (&[3, 5][..], Some(&[5, 1][..]))
        );
        assert_eq!(said.num_bytes(), 15 * dtype.size());
        let back = taken(given).unwrap();
        assert_eq!((back.dtype(), back.shape()), (dtype, &[3, 5][..]));
        assert_eq!(back.as_bytes().unwrap().as_ptr(), at, "nothing is copied");
    }
    assert_eq!(super::super::copied_bytes(), before);
}

#[test]
fn it_may_be_written_where_nobody_else_has_it() {
    let is_read_only = |tensor: Tensor| {
        let given = tensor.into_dlpack().unwrap();
        given.flags().contains(DlpackFlags::READ_ONLY)
    };
    let alone = Pool::default().zeros(DType::F32, [4]).unwrap();
    let shared = alone.clone();
    assert!(is_read_only(alone));
    assert!(!is_read_only(shared), "its other handle is gone");
    let fixed = Tensor::from_buffer(Buffer::from_owner(&[0u8; 4][..]), DType::F32, [1]);
    assert!(is_read_only(fixed.unwrap()));
}

#[test]
fn the_other_library_hears_when_the_last_handle_is_gone() {
    let (given, gone) = theirs(DLDevice::CPU, [2, 3], [3, 1]);
    let tensor = taken(given).unwrap();
    assert_eq!(tensor.as_slice::<f32>().unwrap(), [0., 1., 2., 3., 4., 5.]);
    let mut rows = tensor.rows(1..2).unwrap();
    drop(tensor);
    // A write makes a copy: the memory belongs to the other library.
    rows.make_mut::<f32>().unwrap()[0] = 9.0;
    let by = gone.recv_timeout(Duration::from_secs(20));
    let here = std::thread::current().id();
    assert_ne!(by.expect("nobody releases it"), here, "its code may wait");
    assert_eq!(rows.as_slice::<f32>().unwrap(), [9., 4., 5.]);
}

#[test]
fn an_empty_one_has_no_elements() {
    let (given, _gone) = theirs(DLDevice::CPU, [0, 3], [3, 1]);
    let tensor = taken(given).unwrap();
    assert_eq!(tensor.as_slice::<f32>(), Ok(&[][..]));
    assert_eq!(tensor.into_vec::<f32>(), Ok(Vec::new()));
}

/// PyTorch writes 1 as the step along any dimension of length 1.
#[test]
fn steps_along_a_single_row_or_column_do_not_matter() {
    for (shape, strides) in [([1, 6], [1, 1]), ([6, 1], [1, 9]), ([1, 6], [6, 1])] {
        let (given, _gone) = theirs(DLDevice::CPU, shape, strides);
        let tensor = taken(given).unwrap();
        assert_eq!(tensor.as_slice::<f32>().unwrap(), [0., 1., 2., 3., 4., 5.]);
    }
    let (given, _gone) = theirs(DLDevice::CPU, [1, 3], [1, 2]);
    taken(given).unwrap_err();
}

#[test]
fn truth_values_that_are_none_are_not_given_away() {
    let given = |bytes: [u8; 2]| {
        let buffer = Buffer::from_vec(bytes.to_vec());
        let tensor = Tensor::from_buffer(buffer, DType::Bool, [2]).unwrap();
        tensor.into_dlpack().map(drop)
    };
    given([0, 1]).unwrap();
    assert!(given([0, 2]).unwrap_err().to_string().contains("0 or 1"));
}

/// Its lender, say, could write there after they were checked.
#[test]
fn truth_values_that_somebody_else_may_change_are_copied() {
    let (_turn, _) = counting();
    let is_copied = |dtype| {
        let tensor = Tensor::from_buffer(Buffer::from_owner([1u8; 2]), dtype, [2]).unwrap();
        let at = tensor.as_bytes().unwrap().as_ptr();
        let back = taken(tensor.into_dlpack().unwrap()).unwrap();
        assert_eq!(back.as_bytes().unwrap(), [1, 1]);
        back.as_bytes().unwrap().as_ptr() != at
    };
    assert!(is_copied(DType::Bool) && !is_copied(DType::U8));
}

#[test]
fn what_there_is_none_of_here_is_an_error_and_is_given_back() {
    let cases = [
        (DLDevice::CPU, [3, 2], [1, 3], "make it contiguous"),
        (DLDevice::CPU, [-1, 2], [2, 1], "negative"),
        (DLDevice::cuda(1), [2, 3], [3, 1], "not in main memory"),
    ];
    for (device, shape, strides, words) in cases {
        let (given, gone) = theirs(device, shape, strides);
        let error = taken(given).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert!(gone.try_recv().is_ok());
    }
    let (mut given, _gone) = theirs(DLDevice::CPU, [2, 3], [3, 1]);
    // SAFETY: it is this test's.
    unsafe { (*given.as_ptr()).dl_tensor.dtype = DLDataType::scalar(DLDataTypeCode::COMPLEX, 64) };
    assert!(
        taken(given)
            .unwrap_err()
            .to_string()
            .contains("its type is")
    );
    (given, _) = theirs(DLDevice::CPU, [0, 3], [3, 1]);
    // SAFETY: as above; there are no bytes.
    unsafe { (*given.as_ptr()).dl_tensor.data = std::ptr::null_mut() };
    let empty = taken(given).unwrap();
    assert_eq!(
        (empty.shape(), empty.as_bytes().unwrap()),
        (&[0, 3][..], &[][..])
    );
    let empty = empty.into_dlpack().unwrap();
    assert!(empty.validate().unwrap().data_ptr().is_null());
}
