//! The first bytes of a hostile peer: see `tensorpipe::fuzzing::handshake`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tensorpipe_fuzz::bounded;

// A connection costs at most 64 KiB before its handshake is done; here several copies are compared.
fuzz_target!(|data: &[u8]| bounded(256 << 10, data, tensorpipe::fuzzing::handshake));
