//! Pipes whose peer's lane says whatever it likes: what the workspace tests with inputs at random.
#![no_main]

// What the included sources have of the tests' package, under its name.
extern crate self as tensorpipe_tests;
#[allow(dead_code, reason = "transports are other tests'")]
#[path = "../../tests/src/double.rs"]
mod double;
pub use double::Double;

#[path = "../../tests/tests/lanes/mod.rs"]
mod meeting;

use libfuzzer_sys::fuzz_target;
use tensorpipe_fuzz::bounded;

// Both ends of two pipes, with their pools.
fuzz_target!(|data: &[u8]| bounded(64 << 20, data, meeting::lanes));
