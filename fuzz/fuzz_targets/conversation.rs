//! A connection that serves and calls, with a peer that says what it likes: what `tensorpipe-rpc` tests with inputs at random.
#![no_main]

#[path = "../../tensorpipe-rpc/tests/conversation/mod.rs"]
mod conversation;

use libfuzzer_sys::fuzz_target;
use tensorpipe_fuzz::bounded;
use tokio::runtime::Builder;

fn on_one_thread(data: &[u8]) {
    conversation::conversation(&mut Builder::new_current_thread(), data);
}

// Both ends, with their pools.
fuzz_target!(|data: &[u8]| bounded(64 << 20, data, on_one_thread));
