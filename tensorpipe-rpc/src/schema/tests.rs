//! Tests of tracing and of comparing.

mod agreement;
mod structures;
