//! What may be an argument or a result of a call.

use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// What may be an argument or a result of a call: serde knows it, it may move to the task that handles the call, and owns what it
/// holds. Derive `serde::Serialize` and `serde::Deserialize` for a type of yours.
pub trait CallValue: Serialize + DeserializeOwned + Send + 'static {
    /// The type itself. Generated code names a type so: where it is no `CallValue` rustc gives up there, and tells the user once,
    /// at the type in the trait, and not at each use. (A message of `on_unimplemented` here is not shown, or makes rustc go on.)
    #[doc(hidden)]
    type Itself;
}

impl<T: Serialize + DeserializeOwned + Send + 'static> CallValue for T {
    type Itself = T;
}

/// Tells whether what a method answers is a `Result`, whatever it is called: a constant of a type's own goes before one of a trait's.
#[derive(Debug)]
pub struct Answer<T>(PhantomData<T>);

impl<T, E> Answer<Result<T, E>> {
    /// It is one.
    pub const IS_RESULT: bool = true;
}

/// See [`Answer`].
pub trait NoResult {
    /// It is none.
    const IS_RESULT: bool = false;
}

impl<T> NoResult for Answer<T> {}
