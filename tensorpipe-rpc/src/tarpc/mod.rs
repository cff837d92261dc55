//! tarpc as the compatible layer: generated clients implement its `Stub`.

#[path = "stub.rs"]
mod stub;

#[cfg(feature = "tarpc")]
mod client;
#[cfg(feature = "tarpc")]
pub use client::private;
