//! Combinations of transports and channels through the pipe suite.
#![allow(missing_docs, reason = "a test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tensorpipe::Context;
use tensorpipe::channels::{BasicChannel, Channel, XthChannel};
use tensorpipe::transports::{MemoryTransport, TcpTransport, Transport};

fn context(transport: impl Transport, channel: impl Channel) -> Context {
    let transport: Arc<dyn Transport> = Arc::new(transport);
    let channel: Arc<dyn Channel> = Arc::new(channel);
    let builder = Context::builder()
        .transports([transport])
        .channels([channel]);
    builder.build().unwrap()
}

fn a_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("memory://pipes {}", NEXT.fetch_add(1, Ordering::Relaxed))
}

tensorpipe::pipe_conformance!(
    tcp_basic,
    || context(TcpTransport::new(), BasicChannel::new()),
    "tcp://127.0.0.1:0"
);
tensorpipe::pipe_conformance!(
    tcp_xth,
    || context(TcpTransport::new(), XthChannel::new()),
    "tcp://127.0.0.1:0"
);
tensorpipe::pipe_conformance!(
    memory_basic,
    || context(MemoryTransport::new(), BasicChannel::new()),
    a_name()
);
tensorpipe::pipe_conformance!(
    memory_xth,
    || context(MemoryTransport::new(), XthChannel::new()),
    a_name()
);
// Every default: begins on tcp, moves to memory.
tensorpipe::pipe_conformance!(default, Context::new, "tcp://127.0.0.1:0");
