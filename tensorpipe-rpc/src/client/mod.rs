//! The calling side: connections, several servers behind one client, and what generated clients are made of.
//!
//! A [`ClientHandle`] makes calls on a [`Target`]: on one [`Connection`], whose calls end with it, or on [`Replicas`], whose
//! calls move to another server where that is safe.

mod bind;
mod connection;
mod encoded_call;
mod handle;
pub mod replicas;
mod target;

pub use crate::engine::DEFAULT_DEADLINE;
pub use connection::Connection;
pub use handle::ClientHandle;
pub use replicas::Replicas;
pub use target::Target;
