//! What may be an argument or a result of a call.

use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tensorpipe::Payload;

/// What may be an argument or a result of a call: serde knows it, it may move to the task that handles the call, and owns what it
/// holds. Derive `serde::Serialize` and `serde::Deserialize` for a type of yours.
pub trait CallValue: Serialize + DeserializeOwned + Send + 'static {
    /// The type itself. Generated code names a type so. Where it is no `CallValue`, rustc gives up there and tells the user once,
    /// at the type in the trait. (A message of `on_unimplemented` here is not shown, or makes rustc go on.)
    #[doc(hidden)]
    type Itself;
}

impl<T: Serialize + DeserializeOwned + Send + 'static> CallValue for T {
    type Itself = T;
}

/// What rustc knows of a type in a trait, whatever it is called there: a constant of a type's own goes before one of a trait's.
#[derive(Debug)]
pub struct Known<T>(PhantomData<T>);

impl<T, E> Known<Result<T, E>> {
    /// It is one.
    pub const IS_RESULT: bool = true;
}

impl<T: WithoutTensors> Known<T> {
    /// It holds none.
    pub const HOLDS_NO_TENSOR: bool = true;
}

/// See [`Known`].
pub trait Unknown {
    /// It is none.
    const IS_RESULT: bool = false;
    /// It may hold some.
    const HOLDS_NO_TENSOR: bool = false;
}

impl<T> Unknown for Known<T> {}

/// A type that holds no tensor, whatever its value. Types of others are none of these: their `Deserialize` may read a tensor behind
/// bytes that say so.
pub trait WithoutTensors {}

macro_rules! without_tensors {
    ($($ty:ty)*) => { $(impl WithoutTensors for $ty {})* };
}

without_tensors! {
    () bool char String Payload Duration
    u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64
}

impl<T: WithoutTensors> WithoutTensors for Option<T> {}
impl<T: WithoutTensors> WithoutTensors for Vec<T> {}
impl<T: WithoutTensors> WithoutTensors for Box<T> {}
impl<T: WithoutTensors, const N: usize> WithoutTensors for [T; N] {}
impl<T: WithoutTensors, E: WithoutTensors> WithoutTensors for Result<T, E> {}
impl<K: WithoutTensors, V: WithoutTensors, S> WithoutTensors for HashMap<K, V, S> {}
impl<K: WithoutTensors, V: WithoutTensors> WithoutTensors for BTreeMap<K, V> {}
impl<A: WithoutTensors, B: WithoutTensors> WithoutTensors for (A, B) {}
impl<A: WithoutTensors, B: WithoutTensors, C: WithoutTensors> WithoutTensors for (A, B, C) {}
