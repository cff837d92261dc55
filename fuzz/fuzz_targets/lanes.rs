//! Pipes whose peer's lane says whatever it likes: what the workspace tests with inputs at random.
#![no_main]

#[path = "../../tests/tests/lanes/mod.rs"]
mod meeting;

use libfuzzer_sys::fuzz_target;
use tensorpipe_fuzz::bounded;

// Both ends of two pipes, with their pools.
fuzz_target!(|data: &[u8]| bounded(64 << 20, data, meeting::lanes));
