//! A connection that serves and calls, with a peer that says what it likes: see `tensorpipe_rpc::fuzzing::conversation`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tensorpipe_fuzz::bounded;

// Both ends, with their pools.
fuzz_target!(|data: &[u8]| bounded(64 << 20, data, tensorpipe_rpc::fuzzing::conversation));
