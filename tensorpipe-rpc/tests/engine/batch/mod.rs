//! Batching: which calls of many clients share a batch, what each caller gets, and how callers affect each other.

mod chaos;
mod faults;
mod gathered;
mod leaving;
mod model;
mod waits;
