//! What cannot be seen from outside, such as whether a session was resumed.

use std::time::Duration;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use rustls::HandshakeKind;
use rustls::pki_types::UnixTime;
use rustls::server::Acceptor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::client::TlsStream;

use super::*;

fn made() -> (Pem, Pem) {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let key = made.signing_key.serialize_pem();
    (Pem::bytes(made.cert.pem()), Pem::bytes(key))
}

/// The configuration of both ends.
fn one_way(made: (Pem, Pem)) -> TlsConfig {
    let (certificate, key) = made;
    let config = TlsConfig::new().certificate(certificate.clone(), key);
    config.trust(certificate)
}

/// The accepted end, and rustls's end of the connecting one.
async fn connected(tls: &TlsTransport) -> (Box<dyn Connection>, TlsStream<Shaking>) {
    let mut acceptor = tls.listen("127.0.0.1:0").await.unwrap();
    let address = acceptor.address();
    let accepts = std::future::poll_fn(|cx| acceptor.poll_accept(cx));
    let connects = lock(&tls.now).sides.connects.clone().unwrap();
    let connects = async {
        let tcp = tls.tcp.connect(&address).await.unwrap();
        let connector = TlsConnector::from(connects.config);
        let name = host(&address).unwrap();
        connector.connect(name, Shaking::new(tcp)).await.unwrap()
    };
    let (server, client) = tokio::join!(accepts, connects);
    (server.unwrap(), client)
}

/// Connects and exchanges bytes. Returns how the client shook hands, and what the two ends export.
async fn talk(tls: &TlsTransport) -> (HandshakeKind, [Option<[u8; 32]>; 2]) {
    let (mut server, client) = connected(tls).await;
    let kind = client.get_ref().1.handshake_kind().unwrap();
    let (ends, peer) = (String::new(), crate::address::PeerAddr::Unknown);
    let mut client = TlsConnection::connected(client, ends, peer);
    // Tickets follow the handshake.
    server.write_all(b"hello").await.unwrap();
    server.flush().await.unwrap();
    client.read_exact(&mut [0; 5]).await.unwrap();
    client.write_all(b"hello").await.unwrap();
    client.flush().await.unwrap();
    server.read_exact(&mut [0; 5]).await.unwrap();
    assert!(client.identity().is_some());
    (kind, [client.exporter_secret(), server.exporter_secret()])
}

#[tokio::test]
async fn who_comes_again_shakes_hands_faster_until_the_certificate_changes() {
    let tls = TlsTransport::new(one_way(made())).unwrap();
    let (first, [here, there]) = talk(&tls).await;
    assert!(first == HandshakeKind::Full && here.is_some() && here == there);
    let (again, [next, there]) = talk(&tls).await;
    assert_eq!(again, HandshakeKind::Resumed);
    assert!(next == there && next != here, "each connection has its own");
    // A reload without changes still forgets the listener's sessions.
    tls.reload().unwrap();
    assert_eq!(talk(&tls).await.0, HandshakeKind::Full);
    tls.replace(one_way(made())).unwrap();
    assert_eq!(talk(&tls).await.0, HandshakeKind::Full);
}

/// The listener picks its configuration when the hello arrives.
#[tokio::test]
async fn who_has_said_nothing_yet_shakes_hands_by_what_is_new() {
    let tls = TlsTransport::new(one_way(made())).unwrap();
    let mut acceptor = tls.listen("127.0.0.1:0").await.unwrap();
    let address = acceptor.address();
    let accepts = std::future::poll_fn(|cx| acceptor.poll_accept(cx));
    let (server, tcp) = tokio::join!(accepts, tls.tcp.connect(&address));
    tls.replace(one_way(made())).unwrap();
    let connects = lock(&tls.now).sides.connects.clone().unwrap();
    let connector = TlsConnector::from(connects.config);
    let client = connector.connect(host(&address).unwrap(), Shaking::new(tcp.unwrap()));
    client.await.unwrap();
    drop(server);
}

/// With client certificates there is no resumption: a refused client would not learn what is wrong with its certificate.
#[tokio::test]
async fn where_both_ends_show_certificates_they_do_so_each_time() {
    let own = made();
    let tls = TlsTransport::new(one_way(own.clone()).clients(own.0)).unwrap();
    for _ in 0..2 {
        assert_eq!(talk(&tls).await.0, HandshakeKind::Full);
    }
}

/// The connector checks the certificate from the session's first handshake again.
#[tokio::test]
async fn a_session_does_not_outlive_its_certificate() {
    let expires = UnixTime::now().as_secs() + 8;
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(expires);
    let key = KeyPair::generate().unwrap();
    let certificate = Pem::bytes(params.self_signed(&key).unwrap().pem());
    let own = (certificate, Pem::bytes(key.serialize_pem()));
    let tls = TlsTransport::new(one_way(own)).unwrap();
    assert_eq!(talk(&tls).await.0, HandshakeKind::Full);
    assert_eq!(talk(&tls).await.0, HandshakeKind::Resumed);
    let left = (expires + 1).saturating_sub(UnixTime::now().as_secs());
    tokio::time::sleep(Duration::from_secs(left)).await;
    let mut acceptor = tls.listen("127.0.0.1:0").await.unwrap();
    let address = acceptor.address();
    let accepts = std::future::poll_fn(|cx| acceptor.poll_accept(cx));
    let (_server, client) = tokio::join!(accepts, tls.connect(&address));
    let said = client.err().unwrap().to_string();
    assert!(said.contains("expired"), "{said}");
}

/// RFC 6066, 3: in clear text, so that a proxy in front can tell hosts apart. An address is not a name.
#[tokio::test]
async fn the_host_s_name_is_said_in_the_hello() {
    for (host, config, said) in [
        ("localhost", one_way(made()), "localhost"),
        (
            "127.0.0.1",
            one_way(made()).server_name("a.example"),
            "a.example",
        ),
        ("127.0.0.1", one_way(made()), ""),
    ] {
        let tls = TlsTransport::new(config).unwrap();
        let mut acceptor = tls.tcp.listen("127.0.0.1:0").await.unwrap();
        let port = acceptor.address().rsplit(':').next().unwrap().to_owned();
        let hears = async {
            let tcp = std::future::poll_fn(|cx| acceptor.poll_accept(cx)).await;
            let hello = LazyConfigAcceptor::new(Acceptor::default(), tcp.unwrap()).await;
            let hello = hello.unwrap();
            let name = hello.client_hello().server_name().map(str::to_owned);
            name.unwrap_or_default()
        };
        let address = format!("{host}:{port}");
        let heard = tokio::select! {
            heard = hears => heard,
            _ = tls.connect(&address) => panic!("nobody answers"),
        };
        assert_eq!(heard, said);
    }
}

/// RFC 8446, 4 and 5.1: a ClientHello or a ServerHello of 60 KiB, in records of 4 KiB.
#[tokio::test]
async fn a_handshake_that_is_too_long_is_hung_up_on() {
    let tls = TlsTransport::new(one_way(made())).unwrap();
    let said = |kind| {
        let mut records = Vec::new();
        for first in [true].into_iter().chain([false; 13]) {
            let mut part = [7; 4096];
            if first {
                part[..4].copy_from_slice(&[kind, 0, 0xf0, 0]);
            }
            records.extend_from_slice(&[22, 3, 3, 16, 0]);
            records.extend_from_slice(&part);
        }
        records
    };
    let mut acceptor = tls.listen("127.0.0.1:0").await.unwrap();
    let address = acceptor.address();
    let accepts = std::future::poll_fn(|cx| acceptor.poll_accept(cx));
    let (server, tcp) = tokio::join!(accepts, tls.tcp.connect(&address));
    let (mut server, mut tcp) = (server.unwrap(), tcp.unwrap());
    let hello = said(1);
    let (_, read) = tokio::join!(tcp.write_all(&hello), server.read_u8());
    let accepts = read.unwrap_err().to_string();

    let mut acceptor = tls.tcp.listen("127.0.0.1:0").await.unwrap();
    let address = acceptor.address();
    let accepted = async {
        let tcp = std::future::poll_fn(|cx| acceptor.poll_accept(cx)).await;
        let mut tcp = tcp.unwrap();
        let _ = tcp.write_all(&said(2)).await;
        tcp
    };
    let (_tcp, connection) = tokio::join!(accepted, tls.connect(&address));
    let connects = connection.err().unwrap().to_string();
    for said in [accepts, connects] {
        assert!(said.contains("a handshake has 32 KiB"), "{said}");
    }
}

/// rustls bounds how many key changes may follow each other.
#[tokio::test]
async fn a_peer_that_only_changes_keys_is_hung_up_on() {
    let tls = TlsTransport::new(one_way(made())).unwrap();
    let (mut server, mut client) = connected(&tls).await;
    for _ in 0..33 {
        client.get_mut().1.refresh_traffic_keys().unwrap();
    }
    client.flush().await.unwrap();
    let read = server.read(&mut [0; 1]).await;
    let said = read.unwrap_err().to_string();
    assert!(said.contains("TooManyKeyUpdateRequests"), "{said}");
}

#[tokio::test]
async fn what_came_intact_comes_before_the_error() {
    for room in [8, 64 << 10] {
        let tls = TlsTransport::new(one_way(made())).unwrap();
        let (mut server, mut client) = connected(&tls).await;
        client.write_all(b"hello").await.unwrap();
        client.flush().await.unwrap();
        let mut room_of = vec![0; room];
        // The handshake is complete.
        server.read_exact(&mut room_of[..5]).await.unwrap();
        client.write_all(b"intact").await.unwrap();
        client.flush().await.unwrap();
        // A record that is not encrypted.
        let (tcp, _) = client.get_mut();
        let record = [23, 3, 3, 0, 32].into_iter().chain([7; 32]);
        tcp.write_all(&record.collect::<Vec<_>>()).await.unwrap();
        tcp.flush().await.unwrap();
        // By then, all of it has arrived.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let len = server.read(&mut room_of).await.unwrap();
        assert_eq!(&room_of[..len], b"intact");
        let read = tokio::time::timeout(Duration::from_secs(10), server.read(&mut room_of));
        read.await.expect("it is not told").unwrap_err();
    }
}

/// With tickets, which rustls does not bound.
#[tokio::test]
async fn a_peer_that_sends_records_without_content_is_hung_up_on() {
    for room in [1, 64 << 10] {
        let tls = TlsTransport::new(one_way(made())).unwrap();
        let mut acceptor = tls.tcp.listen("127.0.0.1:0").await.unwrap();
        let address = acceptor.address();
        let listens = lock(&tls.now).sides.listens.clone().unwrap();
        let mut listens = (*listens).clone();
        listens.send_tls13_tickets = 600;
        let accepts = async {
            let tcp = std::future::poll_fn(|cx| acceptor.poll_accept(cx)).await;
            let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(listens));
            acceptor.accept(tcp.unwrap()).await.unwrap()
        };
        let (_server, client) = tokio::join!(accepts, tls.connect(&address));
        let (mut client, mut room_of) = (client.unwrap(), vec![0; room]);
        let read = tokio::time::timeout(Duration::from_secs(10), client.read(&mut room_of));
        let said = read.await.expect("it goes on").unwrap_err().to_string();
        assert!(said.contains("TooManyEmptyFragments"), "{room}: {said}");
    }
}

#[test]
fn what_cannot_be_used_is_named() {
    let (certificate, key) = made();
    let (_, other) = made();
    let one = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let repeated = one.cert.pem().repeat(40);
    let bad = |config: TlsConfig| TlsTransport::new(config).unwrap_err().to_string();
    let new = TlsConfig::new;
    for (config, words) in [
        (
            new().trust(Pem::file("/nobody/ca.pem")),
            "/nobody/ca.pem: No such file",
        ),
        (
            new().trust(Pem::bytes("nothing")),
            "7 bytes: no certificate",
        ),
        (new().trust(key.clone()), "no certificate"),
        (
            new().certificate(certificate.clone(), certificate.clone()),
            "a private key",
        ),
        (
            new().certificate(certificate.clone(), other),
            "fit each other",
        ),
        (
            new().certificate(Pem::bytes(repeated), key.clone()),
            "a chain of at most 12288 bytes",
        ),
        (new().server_name("not a name"), "`not a name`"),
    ] {
        let said = bad(config);
        assert!(said.contains(words), "{said}");
    }
    let shown = format!("{:?}", new().certificate(certificate, key));
    assert!(!shown.contains("PRIVATE"), "{shown}");
}

#[test]
fn hosts_of_addresses() {
    for (address, name) in [
        ("example.org:80", "example.org"),
        ("127.0.0.1:80/", "127.0.0.1"),
        ("[::1]:80", "::1"),
    ] {
        assert_eq!(host(address).unwrap().to_str(), name);
    }
    assert!(host("a b:80").is_err());
}
