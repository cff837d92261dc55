//! A ring of bytes between two threads, of a few bytes only.
//!
//! `control`, `producer` and `consumer` are the real files of `tensorpipe/src/ring/`. `memory` is the memory of the model's ring. In `line`
//! the ends use the ring as a connection over shared memory does.

#[expect(dead_code, reason = "how much is worth a read is a matter of cost")]
#[path = "../../../tensorpipe/src/ring/consumer.rs"]
mod consumer;
#[path = "../../../tensorpipe/src/ring/control.rs"]
mod control;
pub mod deaths;
mod line;
mod memory;
#[expect(dead_code, reason = "what only a test or a connection asks")]
#[path = "../../../tensorpipe/src/ring/producer.rs"]
mod producer;
pub mod sleeps;
pub mod streams;
