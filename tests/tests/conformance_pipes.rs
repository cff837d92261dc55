//! Combinations of transports and channels through the pipe suite.
#![allow(missing_docs, reason = "a test")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use tensorpipe::Context;
use tensorpipe::channels::{BasicChannel, Channel, XthChannel};
use tensorpipe::transports::{
    MemoryTransport, Pem, ShmTransport, TcpTransport, TlsConfig, TlsTransport, Transport,
};
use tensorpipe_tests::over;

fn context(transport: impl Transport, channel: impl Channel) -> Context {
    let builder = over(vec![Arc::new(transport)]);
    builder.channels([Arc::new(channel) as _]).build().unwrap()
}

/// As between two processes of one machine: begins on tcp, is upgraded to shm.
fn two_processes() -> Context {
    let tcp = over(vec![Arc::new(TcpTransport::new())]);
    tcp.prefer_transport(ShmTransport::new()).build().unwrap()
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
/// Over TLS, with a token.
fn tls() -> Context {
    static MADE: LazyLock<TlsTransport> = LazyLock::new(|| {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let pem = || Pem::bytes(made.cert.pem());
        let key = Pem::bytes(made.signing_key.serialize_pem());
        TlsTransport::new(TlsConfig::new().certificate(pem(), key).trust(pem())).unwrap()
    });
    let builder = over(vec![Arc::new(MADE.clone())]);
    builder.token("conformance", [7; 16]).build().unwrap()
}

tensorpipe::pipe_conformance!(tls_basic, tls, "tls://127.0.0.1:0");
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
// Every default: begins on tcp, is upgraded to memory.
tensorpipe::pipe_conformance!(default, Context::new, "tcp://127.0.0.1:0");
