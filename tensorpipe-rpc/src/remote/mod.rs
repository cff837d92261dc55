//! References to values that stay where they were computed.
//!
//! ```
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! use tensorpipe::Tensor;
//! use tensorpipe_rpc::{Remote, Server, ServiceError, tensor_service};
//!
//! #[tensor_service]
//! trait Model {
//!     /// The features stay at the server.
//!     async fn encode(&self, image: Tensor) -> Remote<Tensor>;
//!     async fn classify(&self, features: Remote<Tensor>) -> Result<u32, ServiceError>;
//! }
//!
//! struct Sums;
//!
//! impl Model for Sums {
//!     async fn encode(&self, image: Tensor) -> Remote<Tensor> {
//!         Remote::new(image)
//!     }
//!
//!     async fn classify(&self, features: Remote<Tensor>) -> Result<u32, ServiceError> {
//!         let features = features.local_value()?;
//!         let features = features.as_slice::<f32>()?;
//!         Ok(features.iter().sum::<f32>() as u32)
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::builder().service(ModelService::new(Sums)).listen("tcp://127.0.0.1:0").await?;
//! let client = ModelClient::connect(server.url()).await?;
//! let image = Tensor::from(vec![1f32, 2.0]);
//!
//! // Both calls leave at once: the second names the first's result before it is there.
//! let features = client.encode(&image);
//! assert_eq!(client.classify(&features).await?, 3);
//!
//! // Or with the reference itself, as often as one likes.
//! let features = features.await?;
//! assert_eq!(client.classify(&features).await?, 3);
//! assert_eq!(features.fetch().await?.as_slice::<f32>()?, [1.0, 2.0]);
//! // Dropped: the server lets go of it.
//! # Ok(())
//! # }
//! ```
//!
//! - A reference belongs to the connection that it came over. When that ends, the owner releases the value, and uses of the
//!   reference fail with [`CallError::Connection`].
//! - A call may take the result of an earlier call as an argument, as a reference to that [`Call`]. It runs when the earlier one
//!   has ended, and fails with [`CallError::Unresolved`] if that failed. From then on, dropping the earlier [`Call`] does not
//!   cancel it.
//! - A third process gets a reference as a [`Shared`], which is plain data: see [`Remote::share`]. So a stage of a pipeline leaves its
//!   result where it is, and the next stage fetches it from there.
//! - A method whose result is used in this way must have the return type `Remote<T>` or `Result<Remote<T>, E>`, written out.
//!
//! # How it works
//!
//! The reply that gives a value away names it: by the call's number, and the value's place in the reply. So the holder knows the
//! name before the value exists. The owner keeps a table for each connection, which is dropped with the connection. The holder
//! tells the owner when nobody refers to a value any more. A call keeps the references among its arguments until it is answered, so
//! the owner does not release them while they travel back. A reply that nobody reads is released as a whole.

mod handle;
mod owned;
mod promise;
mod scope;
mod shared;

pub(crate) use handle::{FETCH, Handle};
pub(crate) use owned::{Exports, Owned, Pending, Referent, Release, drop_value};
pub(crate) use promise::{put_references, split_waits};
pub(crate) use scope::{
    ANY, Copied, EncodedReferences, UNRESOLVED, copying, decoded_references, decoding, encoding,
};
pub use shared::Shared;
pub(crate) use shared::{Grant, Grants};

use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
use tensorpipe::Device;

use crate::call::Call;
use crate::error::CallError;
use owned::CopyValue;
use scope::Found;

/// A reference to a value, here or at the other end of a connection. Cheap to clone. The owner releases the value when the last
/// clone at the other end is dropped.
///
/// A method of a service trait returns one to keep a value where it is, and takes one to use the value again. See [the module's
/// documentation](self).
pub struct Remote<T> {
    location: Location<T>,
}

enum Location<T> {
    /// The value is in this process.
    Here(Arc<T>, CopyValue),
    /// The value is at the other end of a connection.
    There(Arc<Handle>),
    /// The reference was decoded outside of a call, so its connection is unknown.
    Nowhere,
}

/// The value of a [`Remote`] is not in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the value is in another process: fetch it, or call a method there with the reference")]
pub struct NotLocal;

/// The name of a value: the call whose reply brought the reference, and its place in that reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Id {
    pub(crate) call: u64,
    pub(crate) index: u32,
}

/// The index of a reference that is itself a method's result.
pub(crate) const RESULT: u32 = 0;

/// The index of the first reference in a method's error. A call that was given the method's future result must not find one of these.
pub(crate) const IN_ERROR: u32 = RESULT + 1;

/// A reference on the wire: who owns it ([`MINE`] or [`YOURS`]), and its [`Id`].
type Wire = (u8, u64, u32);

/// The sender of the reference owns the value.
pub(crate) const MINE: u8 = 0;

/// The receiver of the reference owns the value.
const YOURS: u8 = 1;

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> Remote<T> {
    /// Makes a reference to `value`, which stays here until nobody refers to it. Every holder can fetch the value.
    pub fn new(value: T) -> Self {
        let location = Location::Here(Arc::new(value), owned::copy::<T>);
        Self { location }
    }

    /// Fetches a copy of the value, wherever it is. The call is on its way from now on; dropping it cancels it.
    pub fn fetch(&self) -> Call<T> {
        match &self.location {
            Location::Here(value, _) => Call::of_copy_on(&**value, None),
            Location::There(handle) => handle.fetch(None),
            Location::Nowhere => Call::failed(CallError::Unresolved(NOWHERE.into())),
        }
    }

    /// Fetches a copy whose tensors land on this device. The call fails with [`CallError::NoPlace`] if they cannot be there. A
    /// value in this process is never moved, so it also fails if that has a tensor on another device.
    pub fn fetch_to(&self, device: Device) -> Call<T> {
        match &self.location {
            Location::Here(value, _) => Call::of_copy_on(&**value, Some(device)),
            Location::There(handle) => handle.fetch(Some(device)),
            Location::Nowhere => self.fetch(),
        }
    }
}

impl<T: Send + Sync + 'static> Remote<T> {
    /// Makes a reference to a value that does not travel: only methods of its owner can use it.
    pub fn unfetchable(value: T) -> Self {
        let location = Location::Here(Arc::new(value), owned::no_copy);
        Self { location }
    }

    /// The value, in the process that owns it.
    ///
    /// # Errors
    /// [`NotLocal`] in any other process.
    pub fn local_value(&self) -> Result<Arc<T>, NotLocal> {
        match &self.location {
            Location::Here(value, _) => Ok(value.clone()),
            Location::There(_) | Location::Nowhere => Err(NotLocal),
        }
    }
}

impl<T> Remote<T> {
    /// The same reference, with the value taken to be of another type. The owner checks the type when the reference is used. A
    /// reference to a local value becomes one to nothing.
    #[doc(hidden)]
    pub fn cast<U>(self) -> Remote<U> {
        let location = match self.location {
            Location::There(handle) => Location::There(handle),
            Location::Here(..) | Location::Nowhere => Location::Nowhere,
        };
        Remote { location }
    }
}

const NOWHERE: &str = "this reference was read outside of a call: it refers to nothing";

impl<T> Clone for Remote<T> {
    fn clone(&self) -> Self {
        let location = match &self.location {
            Location::Here(value, copy) => Location::Here(value.clone(), *copy),
            Location::There(handle) => Location::There(handle.clone()),
            Location::Nowhere => Location::Nowhere,
        };
        Self { location }
    }
}

impl<T> fmt::Debug for Remote<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.location {
            Location::Here(..) => f.write_str("Remote(here)"),
            Location::There(handle) => write!(f, "Remote({handle:?})"),
            Location::Nowhere => f.write_str("Remote(nowhere)"),
        }
    }
}

impl<T: Send + Sync + 'static> Serialize for Remote<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let wire: Result<Wire, &str> = match &self.location {
            Location::Here(value, copy) => {
                let id = scope::export(Referent::new(value, *copy));
                id.map(|id| (MINE, id.call, id.index))
            }
            Location::There(handle) => {
                scope::send_back(handle).map(|id| (YOURS, id.call, id.index))
            }
            Location::Nowhere => Err(NOWHERE),
        };
        wire.map_err(ser::Error::custom)?.serialize(serializer)
    }
}

impl<'de, T: Send + Sync + 'static> Deserialize<'de> for Remote<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (whose, call, index) = Wire::deserialize(deserializer)?;
        let id = Id { call, index };
        let found = match whose {
            MINE => scope::import(id),
            YOURS => scope::own(id),
            _ => Err("a reference of an unknown kind"),
        };
        let location = match found.map_err(de::Error::custom)? {
            Found::There(handle) => Location::There(handle),
            Found::Here(Referent { value, copy }) => {
                let value = value.downcast::<T>();
                let value = value.map_err(|_| {
                    let what = std::any::type_name::<T>();
                    de::Error::custom(format_args!("the reference is not to a `{what}`"))
                })?;
                Location::Here(value, copy)
            }
            Found::Nothing => Location::Nowhere,
        };
        Ok(Self { location })
    }
}
