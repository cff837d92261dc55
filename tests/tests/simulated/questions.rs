//! A client of one more service is made while a pipe to its server is full.

use std::time::Duration;

use tensorpipe::testing::{self, Event, Network};
use tensorpipe::{Context, Limits, Tensor};
use tensorpipe_rpc::{Replicas, Server, replicas::ReplicaState, tensor_service};
use tokio::time::sleep;

use crate::scene::tensor;

#[tensor_service]
trait Trade {
    /// Gives another tensor, of this length.
    async fn swap(&self, tensor: Tensor, len: u64) -> Tensor;
}

#[tensor_service]
trait Greeter {
    async fn hello(&self);
}

struct Dealer;

impl Trade for Dealer {
    async fn swap(&self, _: Tensor, len: u64) -> Tensor {
        tensor(len as usize)
    }
}

impl Greeter for Dealer {
    async fn hello(&self) {}
}

fn context(network: &Network, name: &str, full: &str) -> Context {
    let mut limits = Limits::default();
    if name == full {
        limits.queued_writes = 1;
    }
    let context = network.host(name).context();
    context.limits(limits).build().unwrap()
}

/// What has to leave before the end that is full takes anything more: the client's call, or the server's reply.
#[test]
fn a_full_pipe_is_asked_later_and_goes_on_with_what_it_has() {
    const LARGE: usize = 1 << 20;
    for (full, other, given, taken) in [
        ("client", "server", LARGE, 1),
        ("server", "client", 1, LARGE),
    ] {
        testing::run(1, async |network| {
            let server = Server::builder().context(&context(&network, "server", full));
            let server = server.service(TradeService::new(Dealer));
            let server = server.service(GreeterService::new(Dealer));
            let server = server.listen("sim://server:1").await.unwrap();
            let replicas = Replicas::builder().context(&context(&network, "client", full));
            let replicas = replicas.url(server.url()).connect().await.unwrap();
            let client = TradeClient::on(&replicas).await.unwrap();
            network.link(full, other).stall();
            let call = client.swap(tensor(given), taken as u64);
            sleep(Duration::from_secs(1)).await;
            let healing = async {
                sleep(Duration::from_secs(1)).await;
                network.heal(full, other);
            };
            let (greeter, ()) = tokio::join!(GreeterClient::on(&replicas), healing);
            let greeter = greeter.unwrap();
            call.await.unwrap();
            greeter.hello().await.unwrap();
            assert_eq!(replicas.status()[0].state, ReplicaState::Live);
            let connected = |event: &&Event| event.what.ends_with("connected");
            let trace = network.trace();
            assert_eq!(trace.iter().filter(connected).count(), 1, "{full} is full");
        });
    }
}
