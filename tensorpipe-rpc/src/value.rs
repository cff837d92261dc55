//! The types that may be arguments and results of calls.

use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tensorpipe::Payload;

use crate::remote::{Remote, Shared};
use crate::schema::Tracer;

/// A type that may be an argument or a result of a call: serde can encode and decode it, it can move between tasks, and it owns
/// what it holds. Derive `serde::Serialize` and `serde::Deserialize` for your own types.
pub trait CallValue: Serialize + DeserializeOwned + Send + 'static {
    /// The type itself. Generated code names each type through it. If the type is no `CallValue`, rustc stops there and reports one
    /// error, at the type in the trait. (A message of `on_unimplemented` here is not shown, or makes rustc go on.)
    #[doc(hidden)]
    type Itself;
}

impl<T: Serialize + DeserializeOwned + Send + 'static> CallValue for T {
    type Itself = T;
}

/// Tells properties of a type, even through an alias: rustc prefers an inherent constant of `Known<T>` to the trait constant of
/// [`Unknown`].
#[derive(Debug)]
pub struct Known<T>(PhantomData<T>);

impl<T, E> Known<Result<T, E>> {
    /// The type is a `Result`.
    pub const IS_RESULT: bool = true;
}

impl<T: WithoutTensors> Known<T> {
    /// The type holds no tensor.
    pub const HOLDS_NO_TENSOR: bool = true;
}

// `DeserializeOwned` would choose this also for types that can only be read from `'static` bytes, and then fail.
impl<T: Refers> Known<T>
where
    T::To: Serialize + Deserialize<'static>,
{
    /// Shows a tracer what can be fetched.
    pub const REFERENT: fn(&mut Tracer, &'static str) = Tracer::referent::<T::To>;
}

/// See [`Known`].
pub trait Unknown {
    /// The type is no `Result`.
    const IS_RESULT: bool = false;
    /// The type may hold tensors.
    const HOLDS_NO_TENSOR: bool = false;
    /// The type refers to nothing that can be fetched, as far as this can tell.
    const REFERENT: fn(&mut Tracer, &'static str) = |_, _| {};
}

impl<T> Unknown for Known<T> {}

/// A reference, or an `Option` or a `Vec` of references.
pub trait Refers {
    /// What it refers to.
    type To;
}

impl<T> Refers for Remote<T> {
    type To = T;
}

impl<T> Refers for Shared<T> {
    type To = T;
}

impl<T: Refers> Refers for Option<T> {
    type To = T::To;
}

impl<T: Refers> Refers for Vec<T> {
    type To = T::To;
}

/// A type that never holds a tensor, whatever its value. Users' types do not count: their `Deserialize` may read a tensor,
/// depending on bytes before it.
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
