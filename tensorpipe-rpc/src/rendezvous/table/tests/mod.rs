//! Tests of the table.

mod bounds;
mod random;
mod stories;

use tensorpipe::{DType, Tensor};

use super::Table;
use crate::rendezvous::{Key, Limits, Value};

fn key(tensor: u64, step: u64) -> Key {
    Key::new("a", 1, "b", &tensor.to_string(), step).unwrap()
}

/// A value of so many bytes.
fn value(bytes: u64) -> Value {
    Tensor::zeros(DType::U8, [bytes]).unwrap().into()
}

fn table(bytes: u64, values: usize) -> Table<u32> {
    Table::new(Limits { bytes, values })
}
