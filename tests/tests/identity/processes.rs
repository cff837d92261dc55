//! Two processes share a secret, and a third does not have it.

use std::path::Path;
use std::sync::Arc;

use tensorpipe::channels::{BasicChannel, Channel, CmaChannel};
use tensorpipe::transports::{Pem, TlsConfig, TlsTransport};
use tensorpipe::{
    Context, ContextBuilder, Message, Pipe, Tensor,
    channels::{Pays, Threshold},
};
use tensorpipe_tests::{Child, runtime, say, soon};

use super::tls::Ca;
use super::tokens::SECRET;

fn builder() -> ContextBuilder {
    let mut builder = Context::builder();
    if std::env::var("TEST_CMA").is_ok() {
        let channels: [Arc<dyn Channel>; 2] =
            [Arc::new(CmaChannel::new()), Arc::new(BasicChannel::new())];
        let pays = Threshold::new(Pays::From(1 << 20));
        builder = builder.channels(channels).threshold("cma", pays);
    }
    if let Ok(folder) = std::env::var("TEST_PKI") {
        let pem = |name: &str| Pem::file(Path::new(&folder).join(name));
        let mut config = TlsConfig::new().trust(pem("ca.pem")).clients(pem("ca.pem"));
        if std::env::var("TEST_SHOWS").is_ok() {
            config = config.certificate(pem("own.pem"), pem("own.key"));
        }
        builder = builder.prefer_transport(TlsTransport::new(config).unwrap());
    }
    match std::env::var("TEST_TOKEN").ok() {
        Some(name) => builder.token(name, SECRET),
        None => builder,
    }
}

/// Echoes the tensors of whoever it lets in.
pub(crate) fn play_keeper() {
    runtime().block_on(async {
        let context = builder().build().unwrap();
        let transport = std::env::var("TEST_PKI").map_or("tcp", |_| "tls");
        let url = format!("{transport}://127.0.0.1:0");
        let listener = context.listen([url]).await.unwrap();
        say("url", listener.url());
        while let Ok(pipe) = listener.accept().await {
            say("peer", pipe.peer());
            tokio::spawn(echo(pipe));
        }
    });
}

async fn echo(pipe: Pipe) {
    while let Ok(message) = pipe.read().await {
        if pipe.send(message).is_err() {
            return;
        }
    }
}

/// Sends tensors in memory of every kind, and gets them back.
pub(crate) fn play_visitor() {
    runtime().block_on(async {
        let context = builder().build().unwrap();
        let url = std::env::var("TEST_URL").unwrap();
        let pipe = match context.connect(url).await {
            Ok(pipe) => pipe,
            Err(error) => return say("refused", error),
        };
        let heap = Tensor::from(vec![7u8; 5 << 20]);
        let mut lent = context.pool().tensor(heap.dtype(), [1 << 20]).unwrap();
        lent.make_mut::<u8>().unwrap().fill(7);
        for tensor in [heap, lent] {
            for _ in 0..3 {
                let len = tensor.byte_len();
                pipe.send(Message::new("m").tensor(tensor.clone())).unwrap();
                let mut message = soon("an echo", pipe.read()).await.unwrap();
                let echo = message.tensors.remove(0).tensor;
                assert!(echo.as_slice::<u8>().unwrap() == vec![7; len]);
            }
        }
        let stats = pipe.stats();
        say("route", pipe.route().to_string().replace('\n', "; "));
        say("borrowed", stats.bytes_borrowed > 0);
        let first = &pipe.route().channels[0];
        let carried = first.carried.bytes() > 0 && stats.bytes_diverted == 0;
        say("carried", format!("{} {carried}", first.name));
        pipe.close().await.unwrap();
    });
}

#[test]
fn a_pair_with_a_token_shares_memory_and_a_hostile_peer_is_refused() {
    let keeper = Child::start("keeper", &[("TEST_TOKEN", "trainers")]);
    let url = keeper.hear("url");
    let trainer = Child::start("visitor", &[("TEST_URL", &url), ("TEST_TOKEN", "trainers")]);
    let route = trainer.hear("route");
    println!("{route}");
    assert!(route.starts_with("transport shm ("), "{route}");
    assert!(route.contains(";   peer token trainers;"), "{route}");
    assert_eq!(trainer.hear("borrowed"), "true");
    assert_eq!(trainer.hear("carried"), "lease true");
    let peer = keeper.hear("peer");
    println!("{peer}");
    assert!(peer.starts_with("token trainers at process "), "{peer}");
    for (token, words) in [
        (None, "it asks for a token"),
        (Some(("TEST_TOKEN", "strangers")), "it did not prove"),
    ] {
        let variables = [("TEST_URL", &*url)].into_iter().chain(token);
        let hostile = Child::start("visitor", &variables.collect::<Vec<_>>());
        let refused = hostile.hear("refused");
        println!("{refused}");
        assert!(refused.contains(words), "{refused}");
    }
}

#[test]
fn a_pair_over_tls_knows_each_other_and_a_hostile_peer_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let pki = folder.path().to_str().unwrap();
    let ca = Ca::new("a CA");
    ca.issues(folder.path(), &["127.0.0.1", "worker.example"]);
    let (pki, shows) = (("TEST_PKI", pki), ("TEST_SHOWS", "yes"));
    let keeper = Child::start("keeper", &[pki, shows]);
    let url = keeper.hear("url");
    let trainer = Child::start("visitor", &[("TEST_URL", &url), pki, shows]);
    let route = trainer.hear("route");
    println!("{route}");
    assert!(route.starts_with("transport tls (127.0.0.1:"), "{route}");
    assert!(
        route.contains(";   peer certificate of DNS:\"worker.example\";"),
        "{route}"
    );
    // What is lent goes to who has the key of this connection.
    assert_eq!(trainer.hear("carried"), "lease true");
    let peer = keeper.hear("peer");
    assert!(
        peer.starts_with("certificate of DNS:\"worker.example\" at 127.0.0.1:"),
        "{peer}"
    );
    let hostile = Child::start("visitor", &[("TEST_URL", &url), pki]);
    let refused = hostile.hear("refused");
    println!("{refused}");
    assert!(refused.contains("it asks for a certificate"), "{refused}");
}

/// The reader goes to the exchange of who has the pipe's key.
#[test]
fn a_pair_with_a_token_reads_memory() {
    let (token, cma) = (("TEST_TOKEN", "trainers"), ("TEST_CMA", "yes"));
    let keeper = Child::start("keeper", &[token, cma]);
    let url = keeper.hear("url");
    let trainer = Child::start("visitor", &[("TEST_URL", &url), token, cma]);
    let route = trainer.hear("route");
    println!("{route}");
    // Where Yama lets nobody read, the route says so.
    let can = !route.contains("receives nothing") && !route.contains("sends nothing");
    assert_eq!(trainer.hear("carried"), format!("cma {can}"));
}

#[test]
fn a_pair_without_a_token_is_as_ever() {
    let keeper = Child::start("keeper", &[]);
    let url = keeper.hear("url");
    let visitor = Child::start("visitor", &[("TEST_URL", &url)]);
    let route = visitor.hear("route");
    let words = " of uid 0; no token or certificate is required;";
    let words = words.replace('0', &nix::unistd::getuid().to_string());
    assert!(route.contains(&words), "{route}");
    assert_eq!(visitor.hear("borrowed"), "true");
    let peer = keeper.hear("peer");
    assert!(peer.contains("which has proved nothing"), "{peer}");
}
