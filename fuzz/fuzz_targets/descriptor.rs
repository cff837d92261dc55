//! Heads of messages and control frames, decoded, encoded, decoded: see `tensorpipe::fuzzing::descriptor`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tensorpipe_fuzz::bounded;

fuzz_target!(|data: &[u8]| bounded(64 << 10, data, tensorpipe::fuzzing::descriptor));
