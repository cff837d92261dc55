//! One peer has many connections, another has one: each gets its share of the slots for calls.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tensorpipe::transports::{ShmTransport, TcpTransport, Transport};
use tensorpipe::{Context, Limits, Timeouts};
use tensorpipe_rpc::{Server, ServerLimits, tensor_service};
use tensorpipe_tests::{Child, runtime, say, soon};

use super::calls::{call, method};
use super::memory::Account;
use super::raw::{Raw, message};
use super::server::context_over;
use super::stream::Way;

const PLACES: usize = 64;

/// Half of all places is divided between two peers.
const SHARE: usize = PLACES / 4;

#[tensor_service]
pub(crate) trait Naps {
    async fn nap(&self, ms: u64) -> u64;
}

struct Tired;

impl Naps for Tired {
    async fn nap(&self, ms: u64) -> u64 {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        ms
    }
}

/// The server, over both.
pub(crate) fn play() {
    runtime().block_on(async {
        let transports: [Arc<dyn Transport>; 2] =
            [Arc::new(TcpTransport::new()), Arc::new(ShmTransport::new())];
        let context = Context::builder().transports(transports).build().unwrap();
        let mut limits = ServerLimits::default();
        limits.calls = PLACES;
        let server = Server::builder()
            .context(&context)
            .limits(limits)
            .service(NapsService::new(Tired))
            .listen_at([Way::Tcp.url("calls"), Way::Shm.url("calls")])
            .await
            .unwrap();
        for (key, url) in ["tcp", "shm"].iter().zip(server.urls()) {
            say(key, url);
        }
        server.wait().await;
    });
}

#[test]
fn a_peer_with_many_connections_takes_no_more_than_one_with_one() {
    let child = Child::start("shares", &[]);
    let (tcp, shm) = (child.hear("tcp"), child.hear("shm"));
    let account = Account::open(child.id(), &[&tcp]);
    runtime().block_on(async {
        let context = context_over(Way::Shm, Timeouts::default(), Limits::default());
        let honest = NapsClient::connect_with(&context, shm).await.unwrap();
        let greedy = tokio::task::spawn_blocking(move || {
            let connections = 3 * PLACES;
            let nap = message(&call(0, 0, method("nap"), b"\xff\xff\x03"), &[], b"");
            let open = |_| {
                let mut raw = Raw::open(&tcp);
                raw.send(&nap.repeat(2));
                raw
            };
            let mut raws: Vec<Raw> = (0..connections).map(open).collect();
            // A ping is answered before the calls that came with it.
            let refused = |raw: &mut Raw| (0..2).map(|_| raw.messages_before_a_pong().len()).sum();
            let refused: Vec<usize> = raws.iter_mut().map(refused).collect();
            (2 * connections - refused.iter().sum::<usize>(), raws)
        });
        let (taken, greedy) = greedy.await.unwrap();
        assert_eq!(taken, PLACES - SHARE, "it has all but what is kept");
        let naps = (0..SHARE).map(|_| honest.nap(300));
        for nap in soon("its naps", join_all(naps)).await {
            nap.expect("its share is kept for it");
        }
        account.check();
        drop(greedy);
    });
}
