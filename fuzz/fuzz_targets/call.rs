//! A call's header, its body and a service's description: see `tensorpipe_rpc::fuzzing::call`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tensorpipe_fuzz::bounded;

// The codec lets elements take 256 MiB whatever their bytes say: those without bytes, mostly.
fuzz_target!(|data: &[u8]| bounded(512 << 20, data, tensorpipe_rpc::fuzzing::call));
