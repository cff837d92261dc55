//! Byte rings over shared memory, between one producer and one consumer that share nothing else.
//!
//! Counters only grow; the offset of byte number `n` is `(n - origin) % capacity`. Invariant:
//! `read <= written <= read + capacity`, and the bytes between `read` and `written` belong to the consumer, all others
//! to the producer.
//!
//! ```text
//!   Producer ── counters ── Consumer     the algorithm, apart from where it lives     producer.rs, consumer.rs, control.rs
//!   Mapped                               two of them in a mapping                     mapped.rs
//! ```

#![allow(
    unsafe_code,
    reason = "the bytes lie in memory that another process writes: raw pointers, never references"
)]

mod consumer;
mod control;
mod mapped;
mod producer;

pub(crate) use consumer::Consumer;
pub(crate) use control::Fault;
pub(crate) use mapped::{Mapped, adopt, create};
pub(crate) use producer::Producer;

#[cfg(test)]
mod tests;
