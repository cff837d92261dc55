//! Conversions from and to `ndarray`.
//!
//! A tensor is row-major, which ndarray calls standard layout. Any other layout (transposed, strided, reversed) is gathered into that order
//! by one counted copy.

use ::ndarray::{Array, ArrayD, ArrayView, ArrayViewD, ArrayViewMutD, Dimension, IxDyn};

use super::{count_copy, into_counted_vec, usize_shape};
use crate::device::{Buffer, Pool};
use crate::error::Misuse;
use crate::tensor::{DType, Element, Shape, Tensor};

/// Moves the numbers of an array in standard layout, also if it is a slice of a larger one; copies them once for any other layout.
///
/// ```
/// # use ndarray::array;
/// # use tensorpipe::Tensor;
/// let tensor = Tensor::try_from(array![[1f32, 2.], [3., 4.]])?;
/// assert_eq!(tensor.shape(), [2, 2]);
/// # Ok::<(), tensorpipe::Misuse>(())
/// ```
///
/// # Errors
/// [`Misuse::Shape`] for more than [`MAX_DIMS`](crate::tensor::MAX_DIMS) dimensions.
impl<T: Element, D: Dimension> TryFrom<Array<T, D>> for Tensor {
    type Error = Misuse;

    fn try_from(array: Array<T, D>) -> Result<Self, Misuse> {
        if !array.is_standard_layout() {
            return Self::try_from(array.view());
        }
        let shape = shape_of(array.shape());
        let len = array.len() * size_of::<T>();
        // A slice of a larger array keeps the whole array's memory alive, as before.
        let (vec, first) = array.into_raw_vec_and_offset();
        let start = first.unwrap_or(0) * size_of::<T>();
        let buffer = Buffer::from_vec(vec).slice(start..start + len);
        Self::from_buffer(buffer, T::DTYPE, shape)
    }
}

/// Copies the numbers once, into aligned memory.
///
/// # Errors
/// [`Misuse::Shape`] for more than [`MAX_DIMS`](crate::tensor::MAX_DIMS) dimensions.
impl<T: Element, D: Dimension> TryFrom<ArrayView<'_, T, D>> for Tensor {
    type Error = Misuse;

    fn try_from(array: ArrayView<'_, T, D>) -> Result<Self, Misuse> {
        gather(array, Self::zeros)
    }
}

impl Pool {
    /// Copies the numbers once, into warm memory.
    ///
    /// # Errors
    /// As [`Pool::tensor`].
    pub fn tensor_from_ndarray<T: Element, D: Dimension>(
        &self,
        array: ArrayView<'_, T, D>,
    ) -> Result<Tensor, Misuse> {
        gather(array, |dtype, shape| self.tensor(dtype, shape))
    }
}

/// Borrows the elements; `into_dimensionality` makes a view of fixed dimensions of it.
///
/// ```
/// # use ndarray::{ArrayViewD, Ix2};
/// # use tensorpipe::Tensor;
/// let tensor = Tensor::from_vec(vec![1f32, 2., 3., 4.], [2, 2])?;
/// let view = ArrayViewD::<f32>::try_from(&tensor)?;
/// assert_eq!(view.into_dimensionality::<Ix2>().unwrap()[[1, 0]], 3.0);
/// # Ok::<(), tensorpipe::Misuse>(())
/// ```
///
/// # Errors
/// As [`Tensor::as_slice`].
impl<'a, T: Element> TryFrom<&'a Tensor> for ArrayViewD<'a, T> {
    type Error = Misuse;

    fn try_from(tensor: &'a Tensor) -> Result<Self, Misuse> {
        let shape = IxDyn(&usize_shape(tensor)?);
        Self::from_shape(shape, tensor.as_slice()?).map_err(refused)
    }
}

/// Borrows the elements for writing. Copies first if [`Tensor::make_mut`] does, which is not counted here.
///
/// # Errors
/// As [`Tensor::make_mut`].
impl<'a, T: Element> TryFrom<&'a mut Tensor> for ArrayViewMutD<'a, T> {
    type Error = Misuse;

    fn try_from(tensor: &'a mut Tensor) -> Result<Self, Misuse> {
        let shape = IxDyn(&usize_shape(tensor)?);
        Self::from_shape(shape, tensor.make_mut()?).map_err(refused)
    }
}

/// Moves the numbers if the tensor was made of a vector and this is the last handle, else copies them once.
///
/// # Errors
/// [`Misuse::DType`] for another element type, [`Misuse::NotOnCpu`] for device memory.
impl<T: Element> TryFrom<Tensor> for ArrayD<T> {
    type Error = Misuse;

    fn try_from(tensor: Tensor) -> Result<Self, Misuse> {
        let shape = IxDyn(&usize_shape(&tensor)?);
        Self::from_shape_vec(shape, into_counted_vec(tensor)?).map_err(refused)
    }
}

fn gather<T: Element, D: Dimension>(
    array: ArrayView<'_, T, D>,
    memory: impl FnOnce(DType, Shape) -> Result<Tensor, Misuse>,
) -> Result<Tensor, Misuse> {
    let mut tensor = memory(T::DTYPE, shape_of(array.shape()))?;
    ArrayViewMutD::try_from(&mut tensor)?.assign(&array);
    count_copy(tensor.byte_len());
    Ok(tensor)
}

fn shape_of(shape: &[usize]) -> Shape {
    shape.iter().map(|dim| *dim as u64).collect()
}

fn refused(error: ::ndarray::ShapeError) -> Misuse {
    Misuse::Other(format!(
        "ndarray refuses the shape ({error}); reshape the tensor first"
    ))
}

#[cfg(test)]
mod tests {
    use ::ndarray::{Array1, Array2, Array3, Axis, array, s};

    use super::super::{copied_bytes, counting};
    use super::*;

    #[test]
    fn standard_layout_is_moved_there_and_back() {
        let (_turn, before) = counting();
        let array = Array3::from_shape_fn((2, 3, 4), |(i, j, k)| (i * 12 + j * 4 + k) as f32);
        let (at, expected) = (array.as_ptr(), array.clone().into_dyn());
        let tensor = Tensor::try_from(array).unwrap();
        assert_eq!(tensor.shape(), [2, 3, 4]);
        assert_eq!(tensor.as_slice::<f32>().unwrap().as_ptr(), at);
        let view = ArrayViewD::<f32>::try_from(&tensor).unwrap();
        assert_eq!((view.as_ptr(), view), (at, expected.view()));
        let back = ArrayD::<f32>::try_from(tensor).unwrap();
        assert_eq!((back.as_ptr(), back), (at, expected));
        assert_eq!(copied_bytes(), before);
    }

    #[test]
    fn a_slice_of_an_array_is_moved_with_its_offset() {
        let (_turn, before) = counting();
        let array = Array2::from_shape_fn((4, 2), |(i, j)| (i * 2 + j) as i64);
        let at = array.as_ptr();
        let part = array.slice_move(s![1..3, ..]);
        let tensor = Tensor::try_from(part).unwrap();
        assert_eq!(tensor.as_slice::<i64>().unwrap(), [2, 3, 4, 5]);
        assert_eq!(
            tensor.as_slice::<i64>().unwrap().as_ptr(),
            at.wrapping_add(2)
        );
        assert_eq!(copied_bytes(), before);
    }

    #[test]
    fn other_layouts_are_gathered_by_one_counted_copy() {
        let (_turn, before) = counting();
        let array = array![[1u16, 2, 3], [4, 5, 6]];
        let tensor = Tensor::try_from(array.clone().reversed_axes()).unwrap();
        assert_eq!(tensor.shape(), [3, 2]);
        assert_eq!(tensor.as_slice::<u16>().unwrap(), [1, 4, 2, 5, 3, 6]);
        assert_eq!(copied_bytes() - before, 12);

        let mut backwards = array.clone();
        backwards.invert_axis(Axis(0));
        let tensor = Tensor::try_from(backwards).unwrap();
        assert_eq!(tensor.as_slice::<u16>().unwrap(), [4, 5, 6, 1, 2, 3]);
        assert_eq!(copied_bytes() - before, 24);

        let pool = Pool::default();
        let tensor = pool.tensor_from_ndarray(array.slice(s![.., 1])).unwrap();
        assert_eq!(tensor.as_slice::<u16>().unwrap(), [2, 5]);
        assert_eq!(copied_bytes() - before, 28);
    }

    #[test]
    fn a_shared_or_pooled_tensor_is_copied_once() {
        let (_turn, before) = counting();
        let tensor = Tensor::from_vec(vec![1f64, 2.0], [2]).unwrap();
        let other = tensor.clone();
        let array = ArrayD::<f64>::try_from(tensor).unwrap();
        assert_ne!(array.as_ptr(), other.as_slice::<f64>().unwrap().as_ptr());
        assert_eq!(copied_bytes() - before, 16);
        // Not aligned for f64; a copy does not need that.
        let odd = Buffer::copy_from_slice(&[0; 17]).slice(1..17);
        let odd = Tensor::from_buffer(odd, DType::F64, [2]).unwrap();
        assert!(ArrayViewD::<f64>::try_from(&odd).is_err());
        assert_eq!(
            ArrayD::<f64>::try_from(odd).unwrap(),
            array![0.0, 0.0].into_dyn()
        );
        assert_eq!(copied_bytes() - before, 32);
    }

    #[test]
    fn a_view_to_write_writes_the_tensor() {
        let mut tensor = Pool::default().zeros(DType::F32, [2, 2]).unwrap();
        ArrayViewMutD::<f32>::try_from(&mut tensor).unwrap()[[1, 0]] = 7.0;
        assert_eq!(tensor.as_slice::<f32>().unwrap(), [0.0, 0.0, 7.0, 0.0]);
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let tensor = Tensor::from(vec![1f32]);
        let error = ArrayViewD::<i32>::try_from(&tensor).unwrap_err();
        assert_eq!(error.to_string(), "this tensor holds f32, not i32");
        assert!(ArrayD::<i32>::try_from(tensor).is_err());
        let deep = ArrayD::<u8>::zeros(vec![1; 33]);
        let refused = Tensor::try_from(deep);
        assert!(matches!(refused, Err(Misuse::TooManyDims { found: 33 })));
        let absurd = Tensor::zeros(DType::F32, [0, u64::MAX]).unwrap();
        let error = ArrayViewD::<f32>::try_from(&absurd).unwrap_err();
        assert!(error.to_string().contains("reshape"), "{error}");
        let empty = Tensor::try_from(Array1::<f32>::zeros(0)).unwrap();
        assert_eq!(empty.shape(), [0]);
    }
}
