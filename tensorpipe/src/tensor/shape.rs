//! Dimensions without an allocation, since nearly all tensors have four or fewer; and the types that a shape can be given as.

use std::fmt;
use std::ops::{Deref, DerefMut};

use smallvec::SmallVec;

use crate::error::Misuse;

/// Dimensions of a tensor, outermost first; empty for a scalar. It is a slice of `u64`, stored in place if there are at most four.
///
/// ```
/// # use tensorpipe::Shape;
/// let shape = Shape::from([2, 3]);
/// assert_eq!((shape.len(), shape[1]), (2, 3));
/// ```
#[derive(Default, PartialEq, Eq, Hash)]
pub struct Shape(SmallVec<[u64; 4]>);

impl Shape {
    /// Adds a dimension behind the others.
    pub(crate) fn push(&mut self, dim: u64) {
        self.0.push(dim);
    }
}

impl Clone for Shape {
    fn clone(&self) -> Self {
        Self::from(&**self)
    }
}

impl Deref for Shape {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.0
    }
}

impl DerefMut for Shape {
    fn deref_mut(&mut self) -> &mut [u64] {
        &mut self.0
    }
}

impl AsRef<[u64]> for Shape {
    fn as_ref(&self) -> &[u64] {
        self
    }
}

impl From<&[u64]> for Shape {
    fn from(dims: &[u64]) -> Self {
        Self(SmallVec::from_slice(dims))
    }
}

impl<const N: usize> From<[u64; N]> for Shape {
    fn from(dims: [u64; N]) -> Self {
        Self::from(&dims[..])
    }
}

impl From<Vec<u64>> for Shape {
    fn from(dims: Vec<u64>) -> Self {
        Self(dims.into())
    }
}

impl FromIterator<u64> for Shape {
    fn from_iter<I: IntoIterator<Item = u64>>(dims: I) -> Self {
        Self(dims.into_iter().collect())
    }
}

impl<const N: usize> PartialEq<[u64; N]> for Shape {
    fn eq(&self, other: &[u64; N]) -> bool {
        **self == other[..]
    }
}

impl PartialEq<[u64]> for Shape {
    fn eq(&self, other: &[u64]) -> bool {
        **self == *other
    }
}

/// The types that a shape can be given as: an array, slice or vector of whole numbers, outermost first, or `()` for a scalar.
///
/// Integer literals without a suffix are `i32` in Rust: write `4u64 << 30`, since `4 << 30` is 0 there.
///
/// ```
/// # use tensorpipe::{DType, Tensor};
/// let rows = vec![1.0f32; 6].len() / 3;
/// let batch = Tensor::zeros(DType::F32, [rows, 3])?;
/// let same = Tensor::zeros(DType::F32, [2, 3])?;
/// assert_eq!(batch.shape(), same.shape());
/// assert!(Tensor::zeros(DType::F32, ())?.shape().is_empty());
/// # Ok::<(), tensorpipe::Misuse>(())
/// ```
pub trait IntoShape {
    /// The shape.
    ///
    /// # Errors
    /// [`Misuse::NegativeDim`] for a dimension below zero.
    fn into_shape(self) -> Result<Shape, Misuse>;
}

/// A whole number that can be a dimension. A literal without a suffix is an `i32`.
pub trait Dim: Copy {
    /// The dimension, or the number that cannot be one.
    #[doc(hidden)]
    fn dim(self) -> Result<u64, i64>;
}

macro_rules! dims {
    ($($number:ty: $dim:expr;)*) => {$(
        impl Dim for $number {
            fn dim(self) -> Result<u64, i64> {
                let dim: fn(Self) -> Result<u64, i64> = $dim;
                dim(self)
            }
        }
    )*};
}

dims! {
    u64: Ok;
    usize: |dim| Ok(dim as u64);
    u32: |dim| Ok(dim.into());
    i32: |dim| dim.try_into().map_err(|_| dim.into());
    i64: |dim| dim.try_into().map_err(|_| dim);
}

impl<D: Dim> IntoShape for &[D] {
    fn into_shape(self) -> Result<Shape, Misuse> {
        let dim = |(index, dim): (usize, &D)| {
            let negative = |found| Misuse::NegativeDim { index, found };
            dim.dim().map_err(negative)
        };
        self.iter().enumerate().map(dim).collect()
    }
}

impl<D: Dim, const N: usize> IntoShape for [D; N] {
    fn into_shape(self) -> Result<Shape, Misuse> {
        self[..].into_shape()
    }
}

impl<D: Dim, const N: usize> IntoShape for &[D; N] {
    fn into_shape(self) -> Result<Shape, Misuse> {
        self[..].into_shape()
    }
}

impl<D: Dim> IntoShape for Vec<D> {
    fn into_shape(self) -> Result<Shape, Misuse> {
        self[..].into_shape()
    }
}

impl<D: Dim> IntoShape for &Vec<D> {
    fn into_shape(self) -> Result<Shape, Misuse> {
        self[..].into_shape()
    }
}

impl IntoShape for Shape {
    fn into_shape(self) -> Result<Self, Misuse> {
        Ok(self)
    }
}

impl IntoShape for &Shape {
    fn into_shape(self) -> Result<Shape, Misuse> {
        Ok(self.clone())
    }
}

/// The shape of a scalar.
impl IntoShape for () {
    fn into_shape(self) -> Result<Shape, Misuse> {
        Ok(Shape::default())
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
