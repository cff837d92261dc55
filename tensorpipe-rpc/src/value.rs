//! What may be an argument or a result of a call.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A type that travels: serde knows it, and it may move to the task that handles the call.
///
/// Generated code names such a type as `<T as Value>::Itself`. For a `T` that is no `Value` rustc
/// gives up there, so that the user gets one error, at the type in the trait, and not one for each use.
pub trait Value: Serialize + DeserializeOwned + Send + 'static {
    /// The type itself.
    type Itself;
}

impl<T: Serialize + DeserializeOwned + Send + 'static> Value for T {
    type Itself = T;
}
