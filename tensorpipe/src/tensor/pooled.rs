//! Tensors in the memory of a [`Pool`].

use super::{DType, Tensor, byte_len};
use crate::device::{BufferMut, Pool};
use crate::error::{Misuse, SystemError};

impl Pool {
    /// A tensor in warm memory. Its content is unspecified, like `torch.empty`: fill it through
    /// [`Tensor::make_mut`], which copies nothing while this is the only handle.
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
    /// [`Misuse::Shape`] for a shape that no memory can hold, [`Misuse::Other`] for one that this machine's cannot.
    pub fn tensor(&self, dtype: DType, shape: impl AsRef<[u64]>) -> Result<Tensor, Misuse> {
        self.tensor_from(dtype, shape.as_ref(), Self::try_take)
    }

    /// The same, all zeros.
    ///
    /// # Errors
    /// As [`Pool::tensor`].
    pub fn zeros(&self, dtype: DType, shape: impl AsRef<[u64]>) -> Result<Tensor, Misuse> {
        self.tensor_from(dtype, shape.as_ref(), Self::try_zeroed)
    }

    fn tensor_from(
        &self,
        dtype: DType,
        shape: &[u64],
        take: fn(&Self, usize) -> Result<BufferMut, SystemError>,
    ) -> Result<Tensor, Misuse> {
        let len = byte_len(dtype, shape).and_then(|len| usize::try_from(len).ok());
        let len = len.ok_or_else(|| Misuse::Shape {
            dtype,
            shape: shape.to_vec(),
            wanted: u64::MAX,
            found: 0,
        })?;
        let buffer = take(self, len).map_err(|error| {
            Misuse::Other(format!(
                "no memory for a {dtype} tensor of shape {shape:?} ({error}); send it in parts"
            ))
        })?;
        Tensor::from_buffer(buffer.freeze(), dtype, shape)
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
        assert!(matches!(error, Misuse::Shape { .. }));
        let error = pool.zeros(DType::U8, [1 << 60]).unwrap_err();
        assert!(error.to_string().contains("send it in parts"), "{error}");
        let error = pool.tensor(DType::U8, [1; 33]).unwrap_err();
        assert!(matches!(error, Misuse::Shape { .. }));
    }
}
