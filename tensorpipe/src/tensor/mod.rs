//! Tensors: bytes on a device with an element type and a shape.
//!
//! A [`Tensor`] is contiguous, row-major and reference counted: cloning it clones a handle. It is read-only while
//! shared; [`Tensor::make_mut`] copies only if somebody else holds it too.

mod dtype;
mod from;
#[cfg(any(
    feature = "candle",
    feature = "cuda",
    feature = "dlpack",
    feature = "ndarray",
    feature = "safetensors"
))]
pub mod interop;
mod pooled;
#[cfg(feature = "serde")]
pub(crate) mod serde;
mod shape;

#[cfg(feature = "serde")]
#[doc(hidden)]
pub use self::serde::lift;
pub use dtype::{DType, Element};
pub use shape::{Dim, IntoShape, Shape};

use std::fmt;
use std::ops::Range;

use crate::device::{ALIGNMENT, Buffer, BufferMut, Device};
use crate::error::{Misuse, SystemError};

/// The most dimensions that a tensor can have.
pub const MAX_DIMS: usize = 32;

/// A contiguous, row-major, reference-counted tensor.
///
/// If a malicious peer has lent the memory ([`MemoryKind::Borrowed`](crate::device::MemoryKind::Borrowed)), the numbers can change while
/// they are read. Check an index where it is used, and parse [bytes](crate::Payload::into_bytes), not tensors.
///
/// There is no `==`: NaN and GPU memory leave open what it would compare, values or bits. Compare [`Tensor::as_slice`] or
/// [`Tensor::as_bytes`].
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
    ///
    /// # Errors
    /// As [`Tensor::from_buffer`].
    pub fn from_vec<T: Element>(vec: Vec<T>, shape: impl IntoShape) -> Result<Self, Misuse> {
        Self::from_buffer(Buffer::from_vec(vec), T::DTYPE, shape)
    }

    /// A tensor over `buffer`, which must hold exactly the bytes that `dtype` and `shape` need.
    ///
    /// # Errors
    /// [`Misuse::Shape`] when the two disagree, [`Misuse::ShapeTooLarge`], [`Misuse::TooManyDims`] or
    /// [`Misuse::NegativeDim`] for what is no shape of a tensor.
    pub fn from_buffer(
        buffer: Buffer,
        dtype: DType,
        shape: impl IntoShape,
    ) -> Result<Self, Misuse> {
        let shape = shape.into_shape()?;
        let (wanted, found) = (checked_len(dtype, &shape)?, buffer.len() as u64);
        if wanted != found {
            return Err(Misuse::Shape {
                dtype,
                shape: shape.to_vec(),
                wanted,
                found,
            });
        }
        Ok(Self {
            buffer,
            dtype,
            shape,
        })
    }

    /// A one-dimensional `u8` tensor over any bytes.
    pub fn from_bytes(bytes: impl Into<Buffer>) -> Self {
        let buffer = bytes.into();
        let shape = Shape::from([buffer.len() as u64]);
        Self {
            buffer,
            dtype: DType::U8,
            shape,
        }
    }

    /// All zeros, in fresh 64-byte aligned main memory. If tensors come and go, a [`Pool`](crate::Pool) is faster.
    ///
    /// ```
    /// # use tensorpipe::{DType, Tensor};
    /// let mut t = Tensor::zeros(DType::F32, [2, 3])?;
    /// t.make_mut::<f32>()?[5] = 1.0;
    /// # Ok::<(), tensorpipe::Misuse>(())
    /// ```
    ///
    /// # Errors
    /// [`Misuse::ShapeTooLarge`] for a shape that no memory can hold, [`Misuse::Other`] if this machine lacks the memory, and as
    /// [`Tensor::from_buffer`] for an invalid shape.
    pub fn zeros(dtype: DType, shape: impl IntoShape) -> Result<Self, Misuse> {
        Self::allocate(dtype, shape.into_shape()?, BufferMut::try_zeroed)
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
        // These may lie anywhere.
        if bytes.is_empty() {
            return Ok(&[]);
        }
        bytemuck::try_cast_slice(bytes).map_err(|_| misaligned::<T>(bytes))
    }

    /// The elements, for writing. Copies first (into aligned memory) if another handle exists, the memory is lent to another process,
    /// or it is read-only. A copy of lendable memory is lendable, too.
    ///
    /// The copy is of the whole tensor, even if only some rows of it ([`Tensor::rows`]) have another handle or are lent. 64 MiB took
    /// 132 ms instead of 1 µs, and some 10 ms if the pool had warm memory for the copy. So make the blocks of a cache, which are lent
    /// and written one by one, separate tensors.
    ///
    /// # Errors
    /// As [`Tensor::as_slice`], and [`Misuse::Other`] where the system has no memory for the copy.
    pub fn make_mut<T: Element>(&mut self) -> Result<&mut [T], Misuse> {
        self.check_dtype::<T>()?;
        let device = self.device();
        let bytes = self.buffer.try_make_mut().map_err(no_memory)?;
        let bytes = bytes.ok_or(Misuse::NotOnCpu(device))?;
        if bytes.is_empty() {
            return Ok(&mut []);
        }
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
    /// [`Misuse::NotOnCpu`] for device memory, [`Misuse::Other`] where the system has no memory for the copy.
    pub fn to_aligned(&self) -> Result<Self, Misuse> {
        let bytes = self.as_bytes()?;
        if bytes.is_empty() || (bytes.as_ptr() as usize).is_multiple_of(ALIGNMENT) {
            return Ok(self.clone());
        }
        Ok(Self {
            buffer: Buffer::try_copy_from_slice(bytes).map_err(no_memory)?,
            dtype: self.dtype,
            shape: self.shape.clone(),
        })
    }

    /// The same bytes under another shape.
    ///
    /// # Errors
    /// [`Misuse::Shape`] when the number of elements differs, and as [`Tensor::from_buffer`] for what is no shape.
    pub fn reshape(self, shape: impl IntoShape) -> Result<Self, Misuse> {
        Self::from_buffer(self.buffer, self.dtype, shape)
    }

    /// Rows `range` of the outermost dimension, sharing the memory. While they exist, or are lent, [`Tensor::make_mut`] of the whole
    /// copies all of it.
    ///
    /// ```
    /// # use tensorpipe::Tensor;
    /// let batch = Tensor::from_vec((0..12u32).collect(), [4, 3])?;
    /// let half = batch.rows(2..4)?;
    /// assert_eq!((half.shape(), half.as_slice::<u32>()?[0]), (&[2, 3][..], 6));
    /// # Ok::<(), tensorpipe::Misuse>(())
    /// ```
    ///
    /// # Errors
    /// [`Misuse::Rows`] for rows that are not there; a scalar has none.
    pub fn rows(&self, range: Range<u64>) -> Result<Self, Misuse> {
        let Some(&rows) = self.shape.first() else {
            return Err(Misuse::Rows { range, rows: 0 });
        };
        if range.start > range.end || range.end > rows {
            return Err(Misuse::Rows { range, rows });
        }
        let mut shape = self.shape.clone();
        // Fits `usize`, because the bytes of all rows do; in a tensor without elements, a row has no bytes.
        let row = self.buffer.len().checked_div(rows as usize).unwrap_or(0);
        shape[0] = range.end - range.start;
        Ok(Self {
            buffer: self
                .buffer
                .slice(range.start as usize * row..range.end as usize * row),
            dtype: self.dtype,
            shape,
        })
    }

    /// The only element of a tensor that has one, such as a loss.
    ///
    /// ```
    /// # use tensorpipe::Tensor;
    /// assert_eq!(Tensor::scalar(0.5f32).item::<f32>()?, 0.5);
    /// # Ok::<(), tensorpipe::Misuse>(())
    /// ```
    ///
    /// # Errors
    /// [`Misuse::NotOneElement`] when there is not exactly one; else as [`Tensor::as_slice`], without the alignment.
    pub fn item<T: Element>(&self) -> Result<T, Misuse> {
        self.check_dtype::<T>()?;
        let bytes = self.as_bytes()?;
        bytemuck::try_pod_read_unaligned(bytes).map_err(|_| Misuse::NotOneElement {
            shape: self.shape.to_vec(),
            found: self.len(),
        })
    }

    fn allocate<E: fmt::Display>(
        dtype: DType,
        shape: Shape,
        memory: impl FnOnce(usize) -> Result<BufferMut, E>,
    ) -> Result<Self, Misuse> {
        let len = checked_len(dtype, &shape)?;
        let buffer = memory(len as usize).map_err(|error| {
            Misuse::Other(format!(
                "no memory for a {dtype} tensor of shape {shape:?} ({error}); make it in parts"
            ))
        })?;
        Self::from_buffer(buffer.freeze(), dtype, shape)
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

/// Bytes that a tensor takes; `None` if that overflows. A dimension of zero makes it zero, wherever it stands.
///
/// Several steps of a message call it: they share one copy of its code in the instruction cache.
#[inline(never)]
pub(crate) fn byte_len(dtype: DType, shape: &[u64]) -> Option<u64> {
    let (mut len, mut is_empty) = (Some(dtype.size() as u64), false);
    for dim in shape {
        is_empty |= *dim == 0;
        len = len.and_then(|len| len.checked_mul(*dim));
    }
    if is_empty { Some(0) } else { len }
}

/// As [`byte_len`], for a shape from a caller.
fn checked_len(dtype: DType, shape: &Shape) -> Result<u64, Misuse> {
    if shape.len() > MAX_DIMS {
        return Err(Misuse::TooManyDims { found: shape.len() });
    }
    byte_len(dtype, shape).ok_or_else(|| Misuse::ShapeTooLarge {
        dtype,
        shape: shape.to_vec(),
    })
}

fn alignment_of(bytes: &[u8]) -> usize {
    1 << (bytes.as_ptr() as usize).trailing_zeros().min(12)
}

/// Where a copy would lie.
fn no_memory(error: SystemError) -> Misuse {
    Misuse::Other(format!(
        "no memory for a copy of the tensor ({error}); let go of its other handles, or of something else"
    ))
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
mod tests;
