//! Tensors of other libraries, each behind its feature: `ndarray`, `candle`, `safetensors`, `dlpack`, and slices of `cudarc` (`cuda`).
//!
//! A conversion moves or borrows the numbers if the other library allows it; otherwise it copies them, once, never twice. [`copied_bytes`]
//! counts every copied byte, so that a test can demand that there are none.
//!
//! | from | to | the numbers are |
//! |---|---|---|
//! | `ndarray::Array`, standard layout | `Tensor` | moved |
//! | `ndarray::Array`, other layouts; `ArrayView` | `Tensor` | copied |
//! | `&Tensor`, `&mut Tensor` | `ArrayViewD`, `ArrayViewMutD` | borrowed |
//! | `Tensor` | `ndarray::ArrayD`, `candle_core::Tensor` | moved if it was made of a vector and is the last handle, else copied |
//! | `candle_core::Tensor` | `Tensor` | copied: candle does not tell whether somebody else holds its storage |
//! | `MappedSafetensors` | `Tensor` | borrowed from the mapped file |
//! | `dlpark`'s `Dlpack` (PyTorch, NumPy, CuPy, JAX and others) | `Tensor` | borrowed; and lent back |
//! | `cudarc`'s `CudaSlice` | `Tensor` | moved; and back, from the last handle |
//!
//! Copy tensors that are sent repeatedly into a [`Pool`](crate::Pool): `Pool::tensor_from_candle`, `Pool::tensor_from_ndarray`.

#[cfg(feature = "candle")]
mod candle;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "dlpack")]
mod dlpack;
#[cfg(feature = "ndarray")]
mod ndarray;
#[cfg(feature = "safetensors")]
mod safetensors;

#[cfg(feature = "dlpack")]
pub use dlpark;

#[cfg(feature = "safetensors")]
pub use self::safetensors::{MappedSafetensors, SafetensorsError};

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that conversions of this module have copied in this process, since it began.
pub fn copied_bytes() -> u64 {
    COPIED.load(Ordering::Relaxed)
}

static COPIED: AtomicU64 = AtomicU64::new(0);

#[cfg(any(feature = "candle", feature = "ndarray", feature = "dlpack"))]
fn count_copy(bytes: usize) {
    COPIED.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// The elements as a vector, counted if they had to be copied.
#[cfg(any(feature = "candle", feature = "ndarray"))]
fn into_counted_vec<T: super::Element>(
    tensor: super::Tensor,
) -> Result<Vec<T>, crate::error::Misuse> {
    tensor.check_dtype::<T>()?;
    let (dtype, shape) = (tensor.dtype, tensor.shape);
    tensor.buffer.try_into_vec().or_else(|buffer| {
        let tensor = super::Tensor {
            buffer,
            dtype,
            shape,
        };
        let bytes = tensor.as_bytes()?;
        count_copy(bytes.len());
        Ok(match bytemuck::try_cast_slice(bytes) {
            Ok(elements) => elements.to_vec(),
            // Not aligned; a copy does not need that.
            Err(_) => bytes
                .chunks_exact(size_of::<T>())
                .map(bytemuck::pod_read_unaligned)
                .collect(),
        })
    })
}

/// The shape as other libraries write it. It fits, unless a tensor without elements has an absurd shape.
#[cfg(any(feature = "candle", feature = "ndarray"))]
fn usize_shape(tensor: &super::Tensor) -> Result<Vec<usize>, crate::error::Misuse> {
    let shape = tensor.shape().iter().map(|dim| usize::try_from(*dim));
    shape.collect::<Result<_, _>>().map_err(|_| {
        crate::error::Misuse::Other(format!(
            "shape {:?} does not fit this machine's address space; reshape it first",
            tensor.shape()
        ))
    })
}

/// The counter is per process: tests that compare it run one at a time.
#[cfg(test)]
fn counting() -> (std::sync::MutexGuard<'static, ()>, u64) {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(|poison| poison.into_inner());
    (turn, copied_bytes())
}
