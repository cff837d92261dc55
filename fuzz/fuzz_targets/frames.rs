//! Frames of a peer into an open pipe: see `tensorpipe::fuzzing::frames`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tensorpipe_fuzz::bounded;

// Memory of parts grows with what has come; the state itself, and copies of the input, take little.
fuzz_target!(|data: &[u8]| bounded(256 << 10, data, tensorpipe::fuzzing::frames));
