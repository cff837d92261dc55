//! `#[tensor_service]`: turns a trait into client and server stubs.
