//! Tensors: bytes on a device with an element type and a shape.
//!
//! A [`Tensor`] is contiguous, row-major and reference counted: cloning it clones a handle. It is read-only while
//! shared; [`Tensor::make_mut`] copies only if somebody else holds it too.

mod dtype;
#[cfg(feature = "serde")]
pub(crate) mod serde;

#[cfg(feature = "serde")]
#[doc(hidden)]
pub use self::serde::lift;
pub use dtype::{DType, Element};

use std::fmt;

use smallvec::SmallVec;

use crate::device::{Buffer, BufferMut, Device};
use crate::error::Misuse;

/// Dimensions, outermost first.
pub(crate) type Shape = SmallVec<[u64; 4]>;

/// The most dimensions that a tensor can have.
pub const MAX_DIMS: usize = 32;

/// A contiguous, row-major, reference-counted tensor.
#[derive(Clone)]
pub struct Tensor {
    buffer: Buffer,
    dtype: DType,
    shape: Shape,
}

impl Tensor {
    /// Takes over a vector, without a copy. `shape` is outermost first, its product the vector's length.
    ///
    /// ```
    /// # use tensorpipe::Tensor;
    /// let t = Tensor::from_vec(vec![1f32, 2., 3., 4., 5., 6.], [2, 3])?;
    /// assert_eq!(t.as_slice::<f32>()?[3], 4.0);
    /// # Ok::<(), tensorpipe::Misuse>(())
    /// ```
    pub fn from_vec<T: Element>(vec: Vec<T>, shape: impl AsRef<[u64]>) -> Result<Self, Misuse> {
        Self::from_buffer(Buffer::from_vec(vec), T::DTYPE, shape)
    }

    /// A tensor over `buffer`, which must hold exactly the bytes that `dtype` and `shape` need.
    pub fn from_buffer(
        buffer: Buffer,
        dtype: DType,
        shape: impl AsRef<[u64]>,
    ) -> Result<Self, Misuse> {
        let shape = shape.as_ref();
        let wanted = byte_len(dtype, shape);
        if wanted != Some(buffer.len() as u64) || shape.len() > MAX_DIMS {
            return Err(Misuse::Shape {
                dtype,
                shape: shape.to_vec(),
                wanted: wanted.unwrap_or(u64::MAX),
                found: buffer.len() as u64,
            });
        }
        Ok(Self {
            buffer,
            dtype,
            shape: Shape::from_slice(shape),
        })
    }

    /// A one-dimensional `u8` tensor over any bytes.
    pub fn from_bytes(bytes: impl Into<Buffer>) -> Self {
        let buffer = bytes.into();
        let shape = SmallVec::from_slice(&[buffer.len() as u64]);
        Self {
            buffer,
            dtype: DType::U8,
            shape,
        }
    }

    /// All zeros, in fresh 64-byte aligned main memory.
    pub fn zeros(dtype: DType, shape: impl AsRef<[u64]>) -> Result<Self, Misuse> {
        let shape = shape.as_ref();
        let len = byte_len(dtype, shape)
            .and_then(|len| usize::try_from(len).ok())
            .filter(|len| *len <= isize::MAX as usize - 64);
        let Some(len) = len else {
            return Err(Misuse::Shape {
                dtype,
                shape: shape.to_vec(),
                wanted: u64::MAX,
                found: 0,
            });
        };
        Self::from_buffer(BufferMut::zeroed(len).freeze(), dtype, shape)
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Dimensions, outermost first; empty for a scalar.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Where the bytes are.
    pub fn device(&self) -> Device {
        self.buffer.device()
    }

    /// Number of elements.
    pub fn len(&self) -> u64 {
        (self.buffer.len() / self.dtype.size()) as u64
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Size in bytes.
    pub fn byte_len(&self) -> usize {
        self.buffer.len()
    }

    /// The memory behind it.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// The memory behind it, without dtype and shape.
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }

    /// The raw bytes, little-endian.
    ///
    /// # Errors
    /// [`Misuse::NotOnCpu`] for memory that the CPU cannot read.
    pub fn as_bytes(&self) -> Result<&[u8], Misuse> {
        self.buffer
            .as_bytes()
            .ok_or_else(|| Misuse::NotOnCpu(self.device()))
    }

    /// The elements.
    ///
    /// # Errors
    /// [`Misuse::DType`] for another element type, [`Misuse::Alignment`] where borrowed memory is not aligned for it,
    /// [`Misuse::NotOnCpu`] for device memory.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], Misuse> {
        self.check_dtype::<T>()?;
        let bytes = self.as_bytes()?;
        bytemuck::try_cast_slice(bytes).map_err(|_| misaligned::<T>(bytes))
    }

    /// The elements, to write. Copies first (into aligned memory) if another handle exists or the memory is
    /// read-only.
    ///
    /// # Errors
    /// As [`Tensor::as_slice`].
    pub fn make_mut<T: Element>(&mut self) -> Result<&mut [T], Misuse> {
        self.check_dtype::<T>()?;
        if self.buffer.as_bytes_mut().is_none() {
            self.buffer = Buffer::copy_from_slice(self.as_bytes()?);
        }
        let device = self.device();
        let bytes = self.buffer.as_bytes_mut().ok_or(Misuse::NotOnCpu(device))?;
        let found = alignment_of(bytes);
        bytemuck::try_cast_slice_mut(bytes).map_err(|_| Misuse::Alignment {
            dtype: T::DTYPE,
            wanted: align_of::<T>(),
            found,
        })
    }

    /// The elements as a vector: moved out if the tensor was made of one and this is the last handle, else copied.
    ///
    /// # Errors
    /// As [`Tensor::as_slice`].
    pub fn into_vec<T: Element>(self) -> Result<Vec<T>, Misuse> {
        self.check_dtype::<T>()?;
        let (dtype, shape) = (self.dtype, self.shape);
        match self.buffer.try_into_vec() {
            Ok(vec) => Ok(vec),
            Err(buffer) => Self {
                buffer,
                dtype,
                shape,
            }
            .as_slice()
            .map(<[T]>::to_vec),
        }
    }

    /// Itself if its memory is aligned to 64 bytes, else a copy that is.
    ///
    /// # Errors
    /// [`Misuse::NotOnCpu`] for device memory.
    pub fn to_aligned(&self) -> Result<Self, Misuse> {
        let bytes = self.as_bytes()?;
        if bytes.is_empty() || (bytes.as_ptr() as usize).is_multiple_of(64) {
            return Ok(self.clone());
        }
        Ok(Self {
            buffer: Buffer::copy_from_slice(bytes),
            dtype: self.dtype,
            shape: self.shape.clone(),
        })
    }

    /// The same bytes under another shape.
    ///
    /// # Errors
    /// [`Misuse::Shape`] when the number of elements differs.
    pub fn reshape(self, shape: impl AsRef<[u64]>) -> Result<Self, Misuse> {
        Self::from_buffer(self.buffer, self.dtype, shape)
    }

    fn check_dtype<T: Element>(&self) -> Result<(), Misuse> {
        if T::accepts(self.dtype) {
            Ok(())
        } else {
            Err(Misuse::DType {
                wanted: T::DTYPE,
                found: self.dtype,
            })
        }
    }
}

/// Bytes that a tensor takes; `None` when that overflows.
pub(crate) fn byte_len(dtype: DType, shape: &[u64]) -> Option<u64> {
    shape
        .iter()
        .try_fold(dtype.size() as u64, |len, dim| len.checked_mul(*dim))
}

fn alignment_of(bytes: &[u8]) -> usize {
    1 << (bytes.as_ptr() as usize).trailing_zeros().min(12)
}

fn misaligned<T: Element>(bytes: &[u8]) -> Misuse {
    Misuse::Alignment {
        dtype: T::DTYPE,
        wanted: align_of::<T>(),
        found: alignment_of(bytes),
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Tensor({}{:?} on {})",
            self.dtype,
            self.shape(),
            self.device()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
            Tensor::from_vec(vec![7u8], []).unwrap().shape(),
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
}
