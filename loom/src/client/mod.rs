//! Clients, of which a set of replicas is modelled: its files name the rest by these paths.

pub(crate) mod connection;
pub mod replicas;
