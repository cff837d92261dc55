//! The set of replicas of a client, and stand-ins under the paths by which its source files name the rest.

pub(crate) mod connection;
pub mod replicas;
