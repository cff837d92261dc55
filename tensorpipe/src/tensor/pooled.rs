//! Tensors in the memory of a [`Pool`] or [`DevicePool`].

use super::{DType, IntoShape, Tensor};
use crate::device::{DevicePool, Pool};
use crate::error::Misuse;

/// Smaller tensors ride in a message's frame. They are copied anyway, and need no lendable memory. In bytes.
const RIDES: usize = 4 << 10;

impl Pool {
    /// A tensor in warm memory. If it is sent to another process of this machine, that process reads it in place, without a copy
    /// (channel `lease`). Its content is unspecified, like `torch.empty`: fill it through [`Tensor::make_mut`]. That copies the whole
    /// tensor if another handle exists, or a reader has not given back what was sent.
    ///
    /// [`PoolOptions::lendable`](crate::PoolOptions::lendable) and 512 segments bound such memory. Beyond that, the tensor is in ordinary
    /// memory: [`LendableStats::fallbacks`](crate::device::LendableStats::fallbacks) counts these. One process can have 4096 loans of
    /// another one at once ([`LeaseChannel`](crate::channels::LeaseChannel)).
    ///
    /// ```
    /// # use tensorpipe::{DType, Pool};
    /// let pool = Pool::default();
    /// let mut batch = pool.tensor(DType::F32, [64, 1024])?;
    /// batch.make_mut::<f32>()?.fill(1.0);
    /// # Ok::<(), tensorpipe::Misuse>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn tensor(&self, dtype: DType, shape: impl IntoShape) -> Result<Tensor, Misuse> {
        Tensor::allocate(dtype, shape.into_shape()?, |len| match len {
            ..=RIDES => self.try_take(len),
            _ => self.try_take_lendable(len),
        })
    }

    /// As [`tensor`](Self::tensor), all zeros.
    ///
    /// # Errors
    /// As [`Pool::tensor`].
    pub fn zeros(&self, dtype: DType, shape: impl IntoShape) -> Result<Tensor, Misuse> {
        Tensor::allocate(dtype, shape.into_shape()?, |len| match len {
            ..=RIDES => self.try_zeroed(len),
            _ => self.try_zeroed_lendable(len),
        })
    }
}

impl DevicePool {
    /// A tensor in warm memory of the device; in main memory, as by [`Pool::tensor`], but not lendable. Its content is unspecified.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn tensor(&self, dtype: DType, shape: impl IntoShape) -> Result<Tensor, Misuse> {
        Tensor::allocate(dtype, shape.into_shape()?, |len| self.take(len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pooled_tensor_is_written_in_place_and_goes_back() {
        let pool = Pool::default();
        let mut tensor = pool.tensor(DType::F32, [100, 100]).unwrap();
        let at = tensor.as_bytes().unwrap().as_ptr();
        tensor.make_mut::<f32>().unwrap().fill(2.0);
        assert_eq!(tensor.as_bytes().unwrap().as_ptr(), at);
        drop(tensor);
        let zeros = pool.zeros(DType::I64, [5000]).unwrap();
        assert_eq!(zeros.as_bytes().unwrap().as_ptr(), at);
        assert!(zeros.as_slice::<i64>().unwrap().iter().all(|n| *n == 0));
    }

    #[test]
    fn impossible_shapes_are_errors() {
        let pool = Pool::default();
        let error = pool.tensor(DType::F64, [u64::MAX, 2]).unwrap_err();
        assert!(matches!(error, Misuse::ShapeTooLarge { .. }));
        let error = pool.zeros(DType::U8, [1u64 << 60]).unwrap_err();
        assert!(error.to_string().contains("make it in parts"), "{error}");
        let error = pool.tensor(DType::U8, [1; 33]).unwrap_err();
        assert!(matches!(error, Misuse::TooManyDims { found: 33 }));
    }
}
