//! Dimensions without an allocation: nearly all tensors have four or fewer.

use std::fmt;
use std::ops::{Deref, DerefMut};

use smallvec::SmallVec;

/// Dimensions of a tensor, outermost first; empty for a scalar. A slice of `u64`, which it keeps in place where there are
/// at most four.
///
/// ```
/// # use tensorpipe::Shape;
/// let shape = Shape::from([2, 3]);
/// assert_eq!((shape.len(), shape[1]), (2, 3));
/// ```
#[derive(Default, PartialEq, Eq, Hash)]
pub struct Shape(SmallVec<[u64; 4]>);

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

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
