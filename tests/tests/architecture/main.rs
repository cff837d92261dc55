//! The rules that the design sets and neither the compiler nor clippy checks: who may name whom, where `unsafe` may stand, and
//! what documents name. They are read off the source's tokens, so each failure names a file and what to do.
#![allow(missing_docs, reason = "a test")]

mod edges;
mod rules;
mod source;
