//! Every transport through the transport suite.
#![allow(missing_docs, reason = "a test")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use tensorpipe::testing::{Network, SimTransport};
use tensorpipe::transports::{
    MemoryTransport, Pem, ShmTransport, TcpTransport, TlsConfig, TlsTransport,
};

/// Two listeners of one process cannot have the same name.
fn a_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("conformance {}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Names of shm are the machine's.
fn a_process_wide_name() -> String {
    format!("{} of {}", a_name(), std::process::id())
}

tensorpipe::transport_conformance!(tcp, || Arc::new(TcpTransport::new()), "127.0.0.1:0");
tensorpipe::transport_conformance!(tcp_v6, || Arc::new(TcpTransport::new()), "[::1]:0");
/// A network in real time, of each test's own: a port is free as soon as nobody listens there, and the next test would have it.
fn sim() -> Arc<SimTransport> {
    Arc::new(Network::new(1).host("host").transport())
}

tensorpipe::transport_conformance!(sim, super::sim, "host:0");
/// Both ends of TLS, by a certificate that this process makes.
fn tls() -> Arc<TlsTransport> {
    static MADE: LazyLock<TlsTransport> = LazyLock::new(|| {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let pem = || Pem::bytes(made.cert.pem());
        let key = Pem::bytes(made.signing_key.serialize_pem());
        TlsTransport::new(TlsConfig::new().certificate(pem(), key).trust(pem())).unwrap()
    });
    Arc::new(MADE.clone())
}

tensorpipe::transport_conformance!(tls, super::tls, "127.0.0.1:0");
tensorpipe::transport_conformance!(memory, || Arc::new(MemoryTransport::new()), a_name());
tensorpipe::transport_conformance!(shm, || Arc::new(ShmTransport::new()), a_process_wide_name());
