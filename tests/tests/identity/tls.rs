//! Pipes over TLS: which peers are trusted, which are not and why, and how pipes end.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use tensorpipe::channels::MptChannel;
use tensorpipe::transports::{Pem, TcpTransport, TlsConfig, TlsTransport, Transport};
use tensorpipe::{
    CertificateName, ConnectPolicy, Context, ContextBuilder, Error, Identity, Message, PeerFault,
    Pipe,
};
use tensorpipe_tests::{runtime, soon};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::tokens::{SECRET, works};

/// Who vouches for others.
pub(crate) struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate and its key.
#[derive(Clone)]
pub(crate) struct Own(String, String);

impl Ca {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    fn vouches_for(&self, params: CertificateParams) -> Own {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Own(certificate.pem(), key.serialize_pem())
    }

    pub(crate) fn names(&self, names: &[&str]) -> Own {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        self.vouches_for(CertificateParams::new(names).unwrap())
    }

    /// Its own certificate, and one of these names with its key, as files.
    pub(crate) fn issues(&self, folder: &Path, names: &[&str]) {
        let Own(certificate, key) = self.names(names);
        let files = [
            ("ca.pem", &self.pem),
            ("own.pem", &certificate),
            ("own.key", &key),
        ];
        for (name, text) in files {
            std::fs::write(folder.join(name), text).unwrap();
        }
    }

    pub(crate) fn pem(&self) -> Pem {
        Pem::bytes(self.pem.as_str())
    }
}

pub(crate) fn shows(config: TlsConfig, Own(certificate, key): &Own) -> TlsConfig {
    config.certificate(Pem::bytes(certificate.as_str()), Pem::bytes(key.as_str()))
}

fn transport(config: TlsConfig) -> TlsTransport {
    TlsTransport::new(config).unwrap()
}

/// Over TLS and nothing else.
fn stays(config: TlsConfig) -> ContextBuilder {
    let tls = Arc::new(transport(config)) as Arc<dyn Transport>;
    Context::builder().transports([tls])
}

const AT: [&str; 1] = ["tls://127.0.0.1:0"];

/// A pipe at each end, or the connector's error.
async fn meet(listens: &Context, connects: &Context) -> Result<(Pipe, Pipe), Error> {
    let listener = listens.listen(AT).await.unwrap();
    let pipes = async {
        let client = connects.connect(listener.url()).await?;
        Ok((client, listener.accept().await.unwrap()))
    };
    soon("a pipe or an error", pipes).await
}

/// Why there was none, at the first attempt.
async fn is_refused(listens: &Context, connects: &Context) -> Error {
    match meet(listens, connects).await {
        Err(Error::Connect {
            source, attempts, ..
        }) => {
            println!("{source}");
            assert_eq!(attempts, 1, "{source}");
            *source
        }
        other => panic!("{other:?}"),
    }
}

fn names(pipe: &Pipe) -> Vec<CertificateName> {
    let identity = pipe.route().identity.clone();
    identity.map_or_else(Vec::new, |known| known.names().to_vec())
}

/// Most certificates are for names.
#[test]
fn the_url_of_a_listener_names_the_host_that_it_was_given() {
    runtime().block_on(async {
        let ca = Ca::new("a CA");
        let own = ca.names(&["localhost"]);
        let listens = stays(shows(TlsConfig::new(), &own)).build().unwrap();
        let connects = stays(TlsConfig::new().trust(ca.pem())).build().unwrap();
        let listener = listens.listen(["tls://localhost:0"]).await.unwrap();
        assert!(listener.url().address().starts_with("localhost:"));
        soon("a pipe", connects.connect(listener.url()))
            .await
            .unwrap();
    });
}

#[test]
fn a_connector_knows_its_listener_and_with_clients_each_knows_the_other() {
    runtime().block_on(async {
        let ca = Ca::new("a CA");
        let server = ca.names(&["127.0.0.1", "server.example"]);
        let listens = stays(shows(TlsConfig::new(), &server)).build().unwrap();
        let connects = stays(TlsConfig::new().trust(ca.pem())).build().unwrap();
        let (client, server_end) = meet(&listens, &connects).await.unwrap();
        let host = CertificateName::Dns("server.example".to_owned());
        assert_eq!(names(&client), [host]);
        assert!(server_end.route().identity.is_none());
        works(&client, &server_end).await;
        println!("{}", client.route());
        // A client whose certificate has no name but its common one, which looks like other names.
        let common = "server.example, DNS:\"server.example\"";
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, common);
        let alice = ca.vouches_for(params);
        let listens = shows(TlsConfig::new(), &server).clients(ca.pem());
        let listens = stays(listens).build().unwrap();
        let connects = shows(TlsConfig::new().trust(ca.pem()), &alice);
        let connects = stays(connects).build().unwrap();
        let (client, server_end) = meet(&listens, &connects).await.unwrap();
        let name = CertificateName::Common(common.to_owned());
        assert_eq!(names(&server_end), [name]);
        let route = server_end.route().to_string();
        let words = format!("\n  peer certificate of CN:{common:?}\n");
        assert!(route.contains(&words), "{route}");
        works(&client, &server_end).await;
    });
}

#[test]
fn a_pipe_goes_to_shared_memory_and_to_further_connections_with_its_key() {
    runtime().block_on(async {
        let ca = Ca::new("a CA");
        let server = ca.names(&["127.0.0.1"]);
        let tls = || transport(shows(TlsConfig::new(), &server).trust(ca.pem()));
        // Everything that there is by default.
        let context = || Context::builder().prefer_transport(tls()).build().unwrap();
        let (here, there) = (context(), context());
        let (client, server_end) = meet(&here, &there).await.unwrap();
        assert_eq!(client.route().transport, "tls", "it is preferred");
        works(&client, &server_end).await;
        let moves = || {
            let shm = tensorpipe::transports::ShmTransport::new();
            let all: [Arc<dyn Transport>; 2] = [Arc::new(shm), Arc::new(tls())];
            Context::builder().transports(all)
        };
        for token in [None, Some("trainers")] {
            let context = || {
                let builder = moves();
                let builder = token
                    .iter()
                    .fold(builder, |builder, name| builder.token(*name, SECRET));
                builder.build().unwrap()
            };
            let (here, there) = (context(), context());
            let (client, server_end) = meet(&here, &there).await.unwrap();
            for pipe in [&client, &server_end] {
                assert_eq!(pipe.route().transport, "shm");
                assert_eq!(pipe.route().upgraded_from.as_deref(), Some("tls"));
            }
            let token = token.map(str::to_owned);
            let seen = client.route().identity.as_ref().unwrap();
            assert_eq!(seen.token().map(str::to_owned), token);
            assert!(matches!(seen.over(), Some(Identity::Certificates { .. })));
            works(&client, &server_end).await;
        }
        // Several connections, each with TLS of its own.
        let many = || {
            let config = shows(TlsConfig::new(), &server).trust(ca.pem());
            stays(config)
                .prefer_channel(MptChannel::new())
                .build()
                .unwrap()
        };
        let (here, there) = (many(), many());
        // It stays: further connections come there.
        let listener = here.listen(AT).await.unwrap();
        let (client, server_end) = tokio::join!(there.connect(listener.url()), listener.accept());
        let (client, server_end) = (client.unwrap(), server_end.unwrap());
        assert_eq!(client.route().channels[0].name, "mpt");
        works(&client, &server_end).await;
        for pipe in [&client, &server_end] {
            let mpt = &pipe.route().channels[0];
            assert!(mpt.carried.bytes() > 0, "{}", pipe.route());
            assert!(mpt.degraded.sending().is_none(), "{}", pipe.route());
        }
    });
}

#[test]
fn whoever_is_not_believed_hears_why_at_once() {
    runtime().block_on(async {
        let (ca, other) = (Ca::new("a CA"), Ca::new("another"));
        let server = ca.names(&["127.0.0.1"]);
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.not_after = date_time_ymd(2020, 1, 1);
        let expired = ca.vouches_for(params);
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let itself = ca.vouches_for(params);
        let trusts = || TlsConfig::new().trust(ca.pem());
        for (shown, trusting, words) in [
            (
                &server,
                TlsConfig::new().trust(other.pem()),
                "UnknownIssuer; it leads to none",
            ),
            (
                &server,
                trusts().server_name("server.example"),
                "`TlsConfig::server_name`",
            ),
            (&expired, trusts(), "a new one is due"),
            (
                &itself,
                trusts(),
                "have the CA issue another one for its holder",
            ),
        ] {
            let listens = stays(shows(TlsConfig::new(), shown)).build().unwrap();
            let connects = stays(trusting).build().unwrap();
            let error = is_refused(&listens, &connects).await;
            let Error::Peer { fault, .. } = &error else {
                panic!("{error:?}");
            };
            assert!(matches!(fault, PeerFault::Tls { .. }), "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
        // A listener that asks for certificates.
        let listens = shows(TlsConfig::new(), &server).clients(ca.pem());
        let listens = stays(listens).build().unwrap();
        for connects in [trusts(), shows(trusts(), &other.names(&["alice"]))] {
            let connects = stays(connects).build().unwrap();
            let error = is_refused(&listens, &connects).await;
            let Error::Rejected { transient, .. } = &error else {
                panic!("{error:?}");
            };
            assert!(!transient, "{error}");
            assert!(error.to_string().contains("certificate"), "{error}");
        }
    });
}

#[test]
fn an_end_that_lacks_a_certificate_or_roots_hears_how_to_give_them() {
    runtime().block_on(async {
        let ca = Ca::new("a CA");
        let server = shows(TlsConfig::new(), &ca.names(&["127.0.0.1"]));
        let [shows_alone, trusts_alone] = [server, TlsConfig::new().trust(ca.pem())];
        let listens = stays(shows_alone).build().unwrap();
        let error = meet(&listens, &listens).await.unwrap_err().to_string();
        assert!(error.contains("by `TlsConfig::trust`"), "{error}");
        let connects = stays(trusts_alone).build().unwrap();
        let error = connects.listen(AT).await.unwrap_err().to_string();
        assert!(error.contains("by `TlsConfig::certificate`"), "{error}");
    });
}

/// Also where it was let in before: it does not lose connection after connection without a word.
#[test]
fn a_client_whose_certificate_has_expired_hears_of_it() {
    runtime().block_on(async {
        let ca = Ca::new("a CA");
        let server = ca.names(&["127.0.0.1"]);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let expires = Duration::from_secs(now.as_secs() + 8);
        let mut params = CertificateParams::new(vec!["trainer.example".to_owned()]).unwrap();
        params.not_after = date_time_ymd(1970, 1, 1) + expires;
        let listens = shows(TlsConfig::new(), &server).clients(ca.pem());
        let listens = stays(listens).build().unwrap();
        let connects = shows(TlsConfig::new().trust(ca.pem()), &ca.vouches_for(params));
        let connects = stays(connects).build().unwrap();
        let (client, server_end) = meet(&listens, &connects).await.unwrap();
        works(&client, &server_end).await;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        tokio::time::sleep(expires.saturating_sub(now) + Duration::from_secs(1)).await;
        let error = is_refused(&listens, &connects).await;
        assert!(matches!(error, Error::Rejected { .. }), "{error:?}");
        let said = error.to_string();
        assert!(
            said.contains("certificate of this end has expired"),
            "{said}"
        );
    });
}

#[test]
fn plain_bytes_and_those_of_tls_do_not_mix() {
    runtime().block_on(async {
        let ca = Ca::new("a CA");
        let server = ca.names(&["127.0.0.1"]);
        let tls = stays(shows(TlsConfig::new(), &server).trust(ca.pem()));
        let tls = tls.build().unwrap();
        let tcp = Arc::new(TcpTransport::new()) as Arc<dyn Transport>;
        let tcp = Context::builder().transports([tcp]);
        let tcp = tcp.connect_policy(ConnectPolicy::once()).build().unwrap();
        let listener = tls.listen(AT).await.unwrap();
        let plain = format!("tcp://{}", listener.url().address());
        let error = soon("an error", tcp.connect(plain)).await.unwrap_err();
        println!("{error}");
        assert!(error.to_string().contains("an alert of TLS"), "{error}");
        let plain = tcp.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        let url = format!("tls://{}", plain.url().address());
        let error = soon("an error", tls.connect(url)).await.unwrap_err();
        println!("{error}");
        assert!(
            error.to_string().contains("speaks no TLS 1.3, or none"),
            "{error}"
        );
        // Whoever says nothing, or nonsense, and goes away or does not.
        let mut silent = Vec::new();
        for said in [
            &b""[..],
            b"GET / HTTP/1.1\r\n\r\n",
            &[0x16, 3, 1, 0xff, 0xff, 1],
            &[0xff; 9000],
        ] {
            let mut stream = TcpStream::connect(listener.url().address()).await.unwrap();
            let _ = stream.write_all(said).await;
            silent.push(stream);
        }
        let (client, server_end) = tokio::join!(tls.connect(listener.url()), listener.accept());
        works(&client.unwrap(), &server_end.unwrap()).await;
        for mut stream in silent {
            let mut heard = Vec::new();
            let _ = soon("its end", stream.read_to_end(&mut heard)).await;
        }
    });
}

#[test]
fn a_token_over_tls_is_asked_for_as_well() {
    runtime().block_on(async {
        let ca = Ca::new("a CA");
        let server = ca.names(&["127.0.0.1"]);
        let builder = || stays(shows(TlsConfig::new(), &server).trust(ca.pem()));
        let with = || builder().token("trainers", SECRET).build().unwrap();
        let (here, there) = (with(), with());
        let (client, server_end) = meet(&here, &there).await.unwrap();
        for pipe in [&client, &server_end] {
            assert!(!pipe.route().exposed, "{}", pipe.route());
        }
        let route = client.route().to_string();
        assert!(
            route.contains("peer token trainers, certificate"),
            "{route}"
        );
        let seen = server_end.route().identity.clone().unwrap();
        assert_eq!((seen.token(), seen.over()), (Some("trainers"), None));
        let without = builder().build().unwrap();
        let error = is_refused(&here, &without).await;
        assert!(error.to_string().contains("asks for a token"), "{error}");
    });
}

/// Between the two: passes everything on until it is told to hang up, as a network does that says goodbye by itself.
async fn relay(to: String, hang_up: Arc<tokio::sync::Notify>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("tls://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut near, _) = listener.accept().await.unwrap();
        let mut far = TcpStream::connect(to).await.unwrap();
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
            () = hang_up.notified() => {
                let _ = near.shutdown().await;
                let _ = far.shutdown().await;
            }
        }
    });
    url
}

#[test]
fn an_end_without_a_goodbye_is_a_lost_pipe() {
    runtime().block_on(async {
        let ca = Ca::new("a CA");
        let server = ca.names(&["127.0.0.1"]);
        let context = stays(shows(TlsConfig::new(), &server).trust(ca.pem()));
        let context = context.build().unwrap();
        for cut in [true, false] {
            let listener = context.listen(AT).await.unwrap();
            let hang_up = Arc::new(tokio::sync::Notify::new());
            let url = relay(listener.url().address().to_owned(), hang_up.clone()).await;
            let (client, server_end) = tokio::join!(context.connect(url), listener.accept());
            let (client, server_end) = (client.unwrap(), server_end.unwrap());
            client.send(Message::new("the last one")).unwrap();
            let last = soon("a message", server_end.read()).await.unwrap();
            assert_eq!(last.metadata, "the last one");
            if cut {
                hang_up.notify_one();
                for pipe in [&client, &server_end] {
                    let error = soon("an end", pipe.read()).await.unwrap_err();
                    assert!(matches!(error, Error::Lost { .. }), "{error}");
                    println!("{error}");
                }
            } else {
                soon("a close", client.close()).await.unwrap();
                let error = soon("an end", server_end.read()).await.unwrap_err();
                assert!(
                    matches!(error, Error::Closed { by_peer: true, .. }),
                    "{error}"
                );
            }
        }
    });
}

#[test]
fn new_files_are_for_those_that_come_next() {
    runtime().block_on(async {
        let (old, new) = (Ca::new("old"), Ca::new("new"));
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        let write = |Own(certificate, key): &Own| {
            std::fs::write(file("server.pem"), certificate).unwrap();
            std::fs::write(file("server.key"), key).unwrap();
        };
        write(&old.names(&["127.0.0.1"]));
        let pem = |name| Pem::file(file(name));
        let tls = transport(TlsConfig::new().certificate(pem("server.pem"), pem("server.key")));
        let all = [Arc::new(tls.clone()) as Arc<dyn Transport>];
        let listens = Context::builder().transports(all).build().unwrap();
        let listener = listens.listen(AT).await.unwrap();
        let trusting = |ca: &Ca| stays(TlsConfig::new().trust(ca.pem())).build().unwrap();
        let (trusts_old, trusts_new) = (trusting(&old), trusting(&new));
        let connects = async |context: &Context| {
            let url = listener.url();
            let pipes = async { tokio::join!(context.connect(url), listener.accept()) };
            let (client, server_end) = soon("a pipe", pipes).await;
            (client.unwrap(), server_end.unwrap())
        };
        let first = connects(&trusts_old).await;
        // Files that are no good change nothing.
        std::fs::write(file("server.pem"), "nothing").unwrap();
        tls.reload().unwrap_err();
        let still = connects(&trusts_old).await;
        works(&still.0, &still.1).await;
        write(&new.names(&["127.0.0.1"]));
        tls.reload().unwrap();
        let second = connects(&trusts_new).await;
        works(&second.0, &second.1).await;
        works(&first.0, &first.1).await;
        let refused = soon("an error", trusts_old.connect(listener.url())).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("UnknownIssuer"), "{refused}");
    });
}
