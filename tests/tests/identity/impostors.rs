//! An impostor at the address of an upgrade claims that it has joined the pipe.

use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use tensorpipe::transports::{Acceptor, BoxFuture, Connection, TcpTransport, Transport};
use tensorpipe::{Context, Error};
use tensorpipe_tests::{pair, runtime};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use super::tokens::{SECRET, works};

/// A transport to which pipes are upgraded, and at which an impostor answers all that connect.
struct Side;

struct Nobody;

/// Its preface and JOINED, as of a pipe without a key.
const WORD: &[u8] = b"\x93TPIPE\r\n\x01\0\x01\0\0\0\0\0\x05\0\0\0";

impl Acceptor for Nobody {
    fn address(&self) -> String {
        "there".to_owned()
    }

    fn poll_accept(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<Box<dyn Connection>, Error>> {
        Poll::Pending
    }
}

impl Transport for Side {
    fn name(&self) -> &'static str {
        "side"
    }

    fn domain(&self) -> Vec<u8> {
        Vec::new()
    }

    fn upgrade_address(&self) -> Option<String> {
        Some("there".to_owned())
    }

    fn connect<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Box<dyn Connection>, Error>> {
        Box::pin(async {
            let (here, mut there) = duplex(1 << 16);
            tokio::spawn(async move {
                let _ = there.read(&mut [0; 100]).await;
                let _ = there.write_all(WORD).await;
                let _ = tokio::io::copy(&mut there, &mut tokio::io::sink()).await;
            });
            Ok(Box::new(here) as Box<dyn Connection>)
        })
    }

    fn listen<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Box<dyn Acceptor>, Error>> {
        Box::pin(async { Ok(Box::new(Nobody) as Box<dyn Acceptor>) })
    }
}

/// It believes nobody there, and the listener believes that it stays.
#[test]
fn a_pipe_with_a_key_stays_where_its_listener_is() {
    runtime().block_on(async {
        let context = || {
            let all: [Arc<dyn Transport>; 2] = [Arc::new(Side), Arc::new(TcpTransport::new())];
            let builder = Context::builder().transports(all);
            builder.token("trainers", SECRET).build().unwrap()
        };
        let (here, there) = (context(), context());
        let (client, server) = pair(&there, &here, "tcp://127.0.0.1:0").await;
        for pipe in [&client, &server] {
            let route = pipe.route();
            println!("{route}");
            assert_eq!((&*route.transport, &route.upgraded_from), ("tcp", &None));
            let refused = &route.refused[0];
            assert_eq!(refused.candidate, "transport side");
            assert!(refused.reason.contains("did not prove"), "{route}");
        }
        works(&client, &server).await;
    });
}
