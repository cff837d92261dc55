//! Tensors from plain Rust values.

use super::{Element, IntoShape, Shape, Tensor};
use crate::device::Buffer;
use crate::error::Misuse;

impl Tensor {
    /// One number, of shape `[]`.
    pub fn scalar<T: Element>(value: T) -> Self {
        Self {
            buffer: Buffer::copy_from_slice(bytemuck::bytes_of(&value)),
            dtype: T::DTYPE,
            shape: Shape::default(),
        }
    }

    /// Copies a slice into aligned memory. `shape` is outermost first, its product the slice's length.
    ///
    /// # Errors
    /// As [`Tensor::from_buffer`].
    pub fn from_slice<T: Element>(slice: &[T], shape: impl IntoShape) -> Result<Self, Misuse> {
        let buffer = Buffer::copy_from_slice(bytemuck::cast_slice(slice));
        Self::from_buffer(buffer, T::DTYPE, shape)
    }
}

/// Takes over a vector as a one-dimensional tensor, without a copy.
impl<T: Element> From<Vec<T>> for Tensor {
    fn from(vec: Vec<T>) -> Self {
        Self {
            shape: Shape::from([vec.len() as u64]),
            buffer: Buffer::from_vec(vec),
            dtype: T::DTYPE,
        }
    }
}

/// A one-dimensional tensor.
///
/// ```
/// # use tensorpipe::Tensor;
/// let ids: Tensor = (0..4i64).collect();
/// assert_eq!(ids.shape(), [4]);
/// ```
impl<T: Element> FromIterator<T> for Tensor {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        Self::from(values.into_iter().collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;

    #[test]
    fn plain_values_become_tensors() {
        let scalar = Tensor::scalar(3i16);
        assert_eq!((scalar.shape(), scalar.dtype()), (&[][..], DType::I16));
        assert_eq!(scalar.item(), Ok(3i16));

        let vec = vec![1f64, 2.0];
        let at = vec.as_ptr();
        let tensor = Tensor::from(vec);
        assert_eq!(tensor.shape(), [2]);
        assert_eq!(tensor.as_slice::<f64>().unwrap().as_ptr(), at);

        let tensor = Tensor::from_slice(&[1u8, 2, 3, 4], [2, 2]).unwrap();
        assert_eq!(tensor.as_bytes().unwrap(), [1, 2, 3, 4]);
        assert!(Tensor::from_slice(&[1u8], [2]).is_err());

        let empty: Tensor = std::iter::empty::<u32>().collect();
        assert_eq!((empty.shape(), empty.byte_len()), (&[0][..], 0));
    }
}
