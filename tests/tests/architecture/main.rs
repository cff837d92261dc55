//! The rules that the design sets and the compiler does not check: who may name whom, where `unsafe` may stand, how long
//! a file may be. They are read off the source text, so each failure names a file and what to do.
#![allow(missing_docs, reason = "a test")]

mod edges;
mod rules;
mod source;
mod tables;
