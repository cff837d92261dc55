//! Tensors of other libraries by [DLPack](https://dmlc.github.io/dlpack/latest/), version 1, without a copy in either direction.

#![allow(
    unsafe_code,
    reason = "what a DLPack tensor says of its memory is its producer's promise"
)]

#[cfg(feature = "cuda")]
mod devices;

use std::ffi::c_void;

use dlpark::DlpackFlags;
use dlpark::ffi::{DLDataType, DLDevice, DLDeviceType};
use dlpark::metadata::Dynamic;
use dlpark::versioned::Dlpack;

#[cfg(feature = "cuda")]
use crate::device::cuda::ContextGuard;
use crate::device::{Buffer, BufferMut};
use crate::error::Misuse;
use crate::sys::drop_thread;
use crate::tensor::{DType, Shape, Tensor};

const TYPES: [(DType, DLDataType); 13] = [
    (DType::U8, DLDataType::U8),
    (DType::I8, DLDataType::I8),
    (DType::U16, DLDataType::U16),
    (DType::I16, DLDataType::I16),
    (DType::F16, DLDataType::F16),
    (DType::BF16, DLDataType::BF16),
    (DType::U32, DLDataType::U32),
    (DType::I32, DLDataType::I32),
    (DType::F32, DLDataType::F32),
    (DType::U64, DLDataType::U64),
    (DType::I64, DLDataType::I64),
    (DType::F64, DLDataType::F64),
    (DType::Bool, DLDataType::BOOL),
];

impl Tensor {
    /// Converts to a DLPack tensor in main memory that owns this one. It is marked as read-only, unless this is the only handle and
    /// the memory may be written. Truth values in memory that others may change, such as a peer's, are copied.
    ///
    /// ```
    /// # use tensorpipe::Tensor;
    /// let given = Tensor::from_vec(vec![1f32, 2., 3., 4.], [2, 2])?.into_dlpack()?;
    /// assert_eq!(given.validate()?.shape(), [2, 2]);
    /// // SAFETY: what it says of its memory is true, and nobody writes there.
    /// let back = unsafe { Tensor::from_dlpack(given) }?;
    /// assert_eq!(back.as_slice::<f32>()?, [1., 2., 3., 4.]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Misuse::NotOnCpu`] for memory of a GPU: see `into_dlpack_on` (feature `cuda`). [`Misuse::Other`] for truth values other than 0 and
    /// 1, as a peer may send them: other libraries' languages give those no meaning.
    pub fn into_dlpack(mut self) -> Result<Dlpack, Misuse> {
        if self.dtype == DType::Bool && !self.buffer.memory().is_private() {
            // Who else can write there must not do so after the check.
            let mut copy = BufferMut::zeroed(self.byte_len());
            if let Some(bytes) = copy.as_bytes_mut() {
                bytes.copy_from_slice(self.as_bytes()?);
            }
            super::count_copy(copy.len());
            self = Self::from_buffer(copy.freeze(), DType::Bool, self.shape)?;
        }
        if self.dtype == DType::Bool && self.as_bytes()?.iter().any(|byte| *byte > 1) {
            return Err(refused(
                "its truth values are not all 0 or 1: check them, or take its bytes".to_owned(),
            ));
        }
        let (data, is_shared) = match self.buffer.as_bytes_mut() {
            Some(bytes) => (bytes.as_mut_ptr(), false),
            None => (self.as_bytes()?.as_ptr().cast_mut(), true),
        };
        let (dtype, shape) = (self.dtype, self.shape.clone());
        // SAFETY: the bytes are where the tensor has them, which the result keeps, and nobody writes there, or who has the result.
        unsafe { packed(self, dtype, &shape, DLDevice::CPU, data.cast(), is_shared) }
    }

    /// A tensor over another library's main memory, pinned or not. The other library is notified after the last handle on it is
    /// dropped, on a thread of this crate's: its code may wait, for Python's interpreter lock for example.
    ///
    /// # Safety
    /// The DLPack tensor describes its memory correctly, and nobody writes there until it is released.
    ///
    /// # Errors
    /// For memory of a GPU, numbers that are not contiguous in the order of the shape, and element types that this crate lacks.
    pub unsafe fn from_dlpack(tensor: Dlpack) -> Result<Self, Misuse> {
        let known = Known::of(&tensor)?;
        let is_main = [
            DLDeviceType::CPU,
            DLDeviceType::CUDAHOST,
            DLDeviceType::ROCMHOST,
        ];
        if !is_main.contains(&known.device.device_type) {
            let Known { device, .. } = known;
            return Err(refused(format!(
                "it is on device {device:?}, not in main memory"
            )));
        }
        let owner = Packed {
            tensor: Some(Capsule(Some(tensor))),
            data: known.data,
            len: known.len,
        };
        Self::from_buffer(Buffer::from_owner(owner), known.dtype, known.shape)
    }
}

/// Builds a DLPack tensor that owns `owner`.
///
/// # Safety
/// So many numbers are at `data` as long as `owner` exists. Nobody writes there; if they are not `shared`, only the holder of the result
/// may.
unsafe fn packed<O: Send>(
    owner: O,
    dtype: DType,
    shape: &[u64],
    device: DLDevice,
    data: *mut c_void,
    shared: bool,
) -> Result<Dlpack, Misuse> {
    let is_empty = shape.contains(&0);
    let dims = shape.iter().map(|dim| i64::try_from(*dim));
    let dims: Vec<i64> = dims
        .collect::<Result<_, _>>()
        .map_err(|error| refused(error.to_string()))?;
    let made = Dynamic::compact(&dims[..]).initialize(Box::new(owner));
    let mut made = made.map_err(|error| refused(error.to_string()))?;
    let known = TYPES.iter().find(|(known, _)| *known == dtype);
    let (_, dtype) = known.ok_or_else(|| refused(format!("it has no {dtype}")))?;
    made.set_dtype(*dtype).set_device(device);
    made.set_data(if is_empty { std::ptr::null_mut() } else { data });
    if shared {
        let set = made.set_flags(DlpackFlags::READ_ONLY);
        set.map_err(|error| refused(error.to_string()))?;
    }
    // SAFETY: the caller's promise; shape and strides are its own.
    Ok(unsafe { made.finish() })
}

/// Whether the numbers lie one after the other. Steps along a dimension of length 1 do not matter: libraries write there what they like.
fn is_contiguous(shape: &[i64], strides: Option<&[i64]>) -> bool {
    let Some(strides) = strides.filter(|_| !shape.contains(&0)) else {
        return true;
    };
    let mut expected = Some(1i64);
    shape.iter().zip(strides).rev().all(|(dim, stride)| {
        let fits = *dim == 1 || expected == Some(*stride);
        expected = expected.and_then(|expected| expected.checked_mul(*dim));
        fits
    })
}

/// The description in a DLPack tensor.
struct Known {
    device: DLDevice,
    dtype: DType,
    shape: Shape,
    data: *const u8,
    len: usize,
}

impl Known {
    fn of(tensor: &Dlpack) -> Result<Self, Misuse> {
        let refused = |error: dlpark::tensor::Error| refused(error.to_string());
        let said = tensor.validate().map_err(refused)?;
        let is_compact = said.is_compact().map_err(refused)?;
        if !is_compact && !is_contiguous(said.shape(), said.strides()) {
            return Err(self::refused(
                "its numbers do not lie one after the other: make it contiguous first".to_owned(),
            ));
        }
        let known = TYPES.iter().find(|(_, known)| *known == said.dtype());
        let (dtype, _) =
            known.ok_or_else(|| self::refused(format!("its type is {:?}", said.dtype())))?;
        let dims = said.shape().iter().map(|dim| dim.unsigned_abs());
        let len = said.num_bytes();
        let data = match len {
            0 => std::ptr::null(),
            // SAFETY: it has bytes, and its offset is within them, as the caller of `from_dlpack` promises.
            _ => unsafe { said.offset_bytes_ptr() }.map_err(refused)?,
        };
        Ok(Self {
            device: said.device(),
            dtype: *dtype,
            shape: dims.collect(),
            data,
            len,
        })
    }
}

fn refused(reason: String) -> Misuse {
    Misuse::Other(format!("a DLPack tensor: {reason}"))
}

/// Bytes of another library. The last handle is often dropped under a pipe's lock, so the thread that frees memory lets go of them.
struct Packed {
    /// `None` once it is dropped.
    tensor: Option<Capsule>,
    data: *const u8,
    len: usize,
}

/// Dropped by another library's code, which may free pinned memory: that must end no capture of a graph.
struct Capsule(Option<Dlpack>);

impl Drop for Capsule {
    fn drop(&mut self) {
        #[cfg(feature = "cuda")]
        let _mine = ContextGuard::keep_if_open();
        self.0 = None;
    }
}

// SAFETY: a DLPack tensor is let go of on any thread.
unsafe impl Send for Capsule {}
// SAFETY: nobody writes there, and the tensor is let go of on any thread.
unsafe impl Send for Packed {}
// SAFETY: as above.
unsafe impl Sync for Packed {}

impl Drop for Packed {
    fn drop(&mut self) {
        if let Some(tensor) = self.tensor.take() {
            drop_thread::drop_later(0, tensor);
        }
    }
}

impl AsRef<[u8]> for Packed {
    fn as_ref(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: so many bytes are there until the tensor is let go of, by the promise of `from_dlpack`'s caller.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }
}

#[cfg(test)]
mod tests;
