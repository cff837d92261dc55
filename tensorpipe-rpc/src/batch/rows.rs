//! Results of batched methods: values that can be cut into the rows of each caller.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hash};
use std::ops::Range;

use tensorpipe::Tensor;

/// A result with a row for each row of the arguments.
///
/// Tensors implement it, and so do types made only of tensors: tuples, arrays, `Vec`, `Option`, `Box`, maps. For a struct it takes
/// a line for each field:
///
/// ```
/// use tensorpipe::Tensor;
/// use tensorpipe_rpc::batch::{Cut, Rows};
///
/// struct Labelled {
///     vectors: Tensor,
///     /// One for each row.
///     labels: Vec<String>,
///     /// The same for all.
///     model: String,
/// }
///
/// impl Rows for Labelled {
///     fn cut(&self, cut: &mut Cut) -> Self {
///         Self {
///             vectors: cut.tensor(&self.vectors),
///             labels: cut.items(&self.labels),
///             model: self.model.clone(),
///         }
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be cut into the rows of each caller of a batch",
    label = "not made of tensors alone",
    note = "return a `Tensor`, a tuple or a `Vec` of tensors, or implement `tensorpipe_rpc::batch::Rows` for this type"
)]
pub trait Rows: Sized {
    /// The rows of one caller.
    fn cut(&self, cut: &mut Cut) -> Self;
}

/// Cuts the rows of one caller out of those of all callers.
#[derive(Debug)]
pub struct Cut {
    range: Range<u64>,
    /// The number of rows of all callers.
    total: u64,
    wrong: Option<String>,
}

impl Cut {
    pub(super) fn new(range: Range<u64>, total: u64) -> Self {
        Self {
            range,
            total,
            wrong: None,
        }
    }

    /// The caller's rows of a tensor that has a row for each row of the arguments. They share its memory.
    pub fn tensor(&mut self, tensor: &Tensor) -> Tensor {
        let shape = tensor.shape();
        let rows = match shape.first() == Some(&self.total) {
            true => tensor.rows(self.range.clone()).ok(),
            false => None,
        };
        rows.unwrap_or_else(|| {
            self.wrong(format!("a tensor of shape {shape:?}"));
            tensor.clone()
        })
    }

    /// The caller's items of a slice with one for each row.
    pub fn items<T: Clone>(&mut self, items: &[T]) -> Vec<T> {
        if items.len() as u64 != self.total {
            self.wrong(format!("a list of {} items", items.len()));
            return Vec::new();
        }
        // Both fit `usize`, because the length does.
        items[self.range.start as usize..self.range.end as usize].to_vec()
    }

    /// The range of the caller's rows, for values that are neither tensors nor lists.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Names the first value that did not have a row for each row of the arguments.
    pub(super) fn into_wrong(self) -> Option<String> {
        self.wrong
    }

    fn wrong(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }
}

impl Rows for Tensor {
    fn cut(&self, cut: &mut Cut) -> Self {
        cut.tensor(self)
    }
}

impl Rows for () {
    fn cut(&self, _: &mut Cut) -> Self {}
}

impl<T: Rows> Rows for Option<T> {
    fn cut(&self, cut: &mut Cut) -> Self {
        self.as_ref().map(|value| value.cut(cut))
    }
}

impl<T: Rows> Rows for Box<T> {
    fn cut(&self, cut: &mut Cut) -> Self {
        Self::new((**self).cut(cut))
    }
}

impl<T: Rows> Rows for Vec<T> {
    fn cut(&self, cut: &mut Cut) -> Self {
        self.iter().map(|value| value.cut(cut)).collect()
    }
}

impl<T: Rows, const N: usize> Rows for [T; N] {
    fn cut(&self, cut: &mut Cut) -> Self {
        self.each_ref().map(|value| value.cut(cut))
    }
}

impl<K: Clone + Eq + Hash, T: Rows, S: BuildHasher + Default> Rows for HashMap<K, T, S> {
    fn cut(&self, cut: &mut Cut) -> Self {
        let rows = self.iter();
        rows.map(|(key, value)| (key.clone(), value.cut(cut)))
            .collect()
    }
}

impl<K: Clone + Ord, T: Rows> Rows for BTreeMap<K, T> {
    fn cut(&self, cut: &mut Cut) -> Self {
        let rows = self.iter();
        rows.map(|(key, value)| (key.clone(), value.cut(cut)))
            .collect()
    }
}

macro_rules! tuples {
    ($($($name:ident)+;)+) => {$(
        impl<$($name: Rows),+> Rows for ($($name,)+) {
            #[expect(non_snake_case, reason = "a value is named as its type")]
            fn cut(&self, cut: &mut Cut) -> Self {
                let ($($name,)+) = self;
                ($($name.cut(cut),)+)
            }
        }
    )+};
}

tuples! {
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn four() -> Tensor {
        Tensor::from_vec((0..8u32).collect(), [4, 2]).unwrap()
    }

    #[test]
    fn everything_made_of_tensors_is_cut_at_the_same_rows_without_a_copy() {
        let tensor = four();
        let all = HashMap::from([("x", (tensor.clone(), vec![Some(tensor.clone())]))]);
        let mut cut = Cut::new(1..3, 4);
        let mine = all.cut(&mut cut);
        assert_eq!(cut.into_wrong(), None);
        let (first, rest) = &mine["x"];
        for part in [first, rest[0].as_ref().unwrap()] {
            assert_eq!(part.shape(), [2, 2]);
            assert_eq!(part.as_slice::<u32>().unwrap(), [2, 3, 4, 5]);
            let memory = part.buffer().memory();
            assert!(std::sync::Arc::ptr_eq(memory, tensor.buffer().memory()));
        }
        assert_eq!(Cut::new(1..3, 4).items(&[5, 6, 7, 8]), [6, 7]);
    }

    #[test]
    fn what_has_not_a_row_for_each_row_is_named() {
        let mut cut = Cut::new(0..1, 3);
        (Tensor::scalar(1f32), four()).cut(&mut cut);
        let wrong = cut.into_wrong();
        assert_eq!(wrong.as_deref(), Some("a tensor of shape []"));
        let mut cut = Cut::new(0..1, 3);
        four().cut(&mut cut);
        assert_eq!(
            cut.into_wrong().as_deref(),
            Some("a tensor of shape [4, 2]")
        );
        let mut cut = Cut::new(0..1, 3);
        assert!(cut.items(&[1]).is_empty());
        assert_eq!(cut.into_wrong().as_deref(), Some("a list of 1 items"));
    }
}
