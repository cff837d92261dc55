//! What stays in use of connections that were: nothing. `tp-bench churn` shows the same of resident memory, over an hour.
#![allow(missing_docs, reason = "a test")]

use std::time::Duration;

use tensorpipe::{Context, Tensor};
use tensorpipe_rpc::{Connection, Server, tensor_service};
use tensorpipe_tests::{Counting, alone, soon};
use tokio::io::AsyncWriteExt;

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

#[tensor_service]
trait Echo {
    async fn echo(&self, tensor: Tensor) -> Tensor;
}

struct Echoes;

impl Echo for Echoes {
    async fn echo(&self, tensor: Tensor) -> Tensor {
        tensor
    }
}

/// Connections in a round, over each transport.
const CONNECTIONS: usize = 8;

/// Before these, tables and pools grow to their sizes.
const WARM_UP: usize = 10;

/// Of each half. Within some of them everything that is kept for a second has gone.
const ROUNDS: usize = 15;

/// Bytes that the second half may have more than the first for each connection of a half. A table that keeps one entry of each has more.
const GROWTH: i64 = 32;

#[test]
fn connections_that_were_leave_nothing_in_use() {
    alone(async || {
        let shm = format!("shm://growth-{}", std::process::id());
        let server = Server::builder()
            .context(&Context::builder().name("server").build().unwrap())
            .service(EchoService::new(Echoes))
            .listen_at(["tcp://127.0.0.1:0".to_owned(), shm])
            .await
            .unwrap();
        let urls: Vec<_> = server.urls().iter().map(ToString::to_string).collect();
        let address = urls[0].strip_prefix("tcp://").unwrap().to_owned();
        let context = Context::builder().name("client").build().unwrap();
        let mut at_rest = Vec::new();
        for round in 0..WARM_UP + 2 * ROUNDS {
            for at in 0..CONNECTIONS {
                for url in &urls {
                    visit(&context, url, at).await;
                }
                // A stranger, one that says nothing, and one that is cut within its first frame.
                let mut stranger = tokio::net::TcpStream::connect(&address).await.unwrap();
                let said: &[u8] = [&b"GET / HTTP/1.1"[..], b"", b"\x93TPIPE\r\n\x01\0"][at % 3];
                stranger.write_all(said).await.unwrap();
            }
            let in_use = rest(&server).await;
            if round >= WARM_UP {
                at_rest.push(in_use);
            }
        }
        let (first, second) = at_rest.split_at(ROUNDS);
        let growth = second.iter().min().unwrap() - first.iter().min().unwrap();
        let connections = (3 * CONNECTIONS * ROUNDS) as i64;
        println!("{growth} bytes after {connections} connections: {at_rest:?}");
        assert!(growth < GROWTH * connections, "{growth}: {at_rest:?}");
    });
}

/// A connection that calls, and goes: some in the midst of a call.
async fn visit(context: &Context, url: &str, at: usize) {
    let connection = soon("a connection", Connection::connect_with(context, url))
        .await
        .unwrap();
    let client = soon("a client", EchoClient::on(&connection)).await.unwrap();
    for len in [0, 3000, 100_000, 600_000] {
        let tensor = Tensor::from(vec![at as u8; len]);
        let echoed = soon("an echo", client.echo(&tensor).into_future()).await;
        assert_eq!(echoed.unwrap().byte_len(), len);
    }
    if at.is_multiple_of(2) {
        let tensor = Tensor::from(vec![1u8; 2 << 20]);
        let call = client.echo(&tensor).into_future();
        let _ = tokio::time::timeout(Duration::from_micros(100), call).await;
    }
}

/// Waits until nothing is given back any more. Returns what is in use then, in bytes.
async fn rest(server: &Server) -> i64 {
    while server.calls_under_way() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut least = i64::MAX;
    let mut since = 0;
    while since < 20 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let in_use = ALLOCATOR.held() as i64;
        since = if in_use < least { 0 } else { since + 1 };
        least = least.min(in_use);
    }
    least
}
