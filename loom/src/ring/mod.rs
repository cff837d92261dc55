//! A ring of bytes between two threads, of a few bytes only.
//!
//! `ends` is that of `tensorpipe/src/ring/`. `memory` is where the model's ring lives, `line` what its ends do with it, as
//! a connection over shared memory does.

pub mod deaths;
#[path = "../../../tensorpipe/src/ring/ends.rs"]
mod ends;
mod line;
mod memory;
pub mod sleeps;
pub mod streams;
