//! Combinations of transports and channels through the pipe suite.
#![allow(missing_docs, reason = "a test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tensorpipe::Context;
use tensorpipe::channels::{BasicChannel, Channel, XthChannel};
use tensorpipe::transports::{MemoryTransport, ShmTransport, TcpTransport, Transport};

fn context(transport: impl Transport, channel: impl Channel) -> Context {
    let transport: Arc<dyn Transport> = Arc::new(transport);
    let channel: Arc<dyn Channel> = Arc::new(channel);
    let builder = Context::builder()
        .transports([transport])
        .channels([channel]);
    builder.build().unwrap()
}

/// As between two processes of one machine: begins on tcp, moves to shm.
fn two_processes() -> Context {
    let transports: [Arc<dyn Transport>; 2] =
        [Arc::new(ShmTransport::new()), Arc::new(TcpTransport::new())];
    let channel: Arc<dyn Channel> = Arc::new(BasicChannel::new());
    let builder = Context::builder()
        .transports(transports)
        .channels([channel]);
    builder.build().unwrap()
}

/// Names of shm are the machine's.
fn a_name(transport: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{transport}://pipes {} {number}", std::process::id())
}

tensorpipe::pipe_conformance!(
    tcp_basic,
    || context(TcpTransport::new(), BasicChannel::new()),
    "tcp://127.0.0.1:0"
);
tensorpipe::pipe_conformance!(
    memory_basic,
    || context(MemoryTransport::new(), BasicChannel::new()),
    a_name("memory")
);
tensorpipe::pipe_conformance!(
    memory_xth,
    || context(MemoryTransport::new(), XthChannel::new()),
    a_name("memory")
);
tensorpipe::pipe_conformance!(
    shm_basic,
    || context(ShmTransport::new(), BasicChannel::new()),
    a_name("shm")
);
tensorpipe::pipe_conformance!(tcp_to_shm, two_processes, "tcp://127.0.0.1:0");
// Every default: begins on tcp, moves to memory.
tensorpipe::pipe_conformance!(default, Context::new, "tcp://127.0.0.1:0");
