//! A ring of bytes between two threads, of a few bytes only.
//!
//! `ends` is that of `tensorpipe/src/ring/`. `memory` is where the model's ring lives, `line` what its ends do with it, as
//! a connection over shared memory does.

pub mod deaths;
#[expect(dead_code, reason = "how much is worth a read is a matter of cost")]
#[path = "../../../tensorpipe/src/ring/ends.rs"]
mod ends;
mod line;
mod memory;
pub mod sleeps;
pub mod streams;
