//! Byte rings over shared memory: [`ends`] is the algorithm, apart from where it lives; [`mapped`] puts two of them, one for
//! each direction, into a mapping.

#![allow(
    unsafe_code,
    reason = "the bytes lie in memory that another process writes: raw pointers, never references"
)]

mod ends;
mod mapped;

pub(crate) use ends::{Consumer, Fault, Producer};
pub(crate) use mapped::{Mapped, adopt, create};

#[cfg(test)]
mod tests;
