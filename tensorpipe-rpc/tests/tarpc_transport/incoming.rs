//! The pipes of a listener as a stream of transports, and who their peers are.

use std::collections::HashSet;
use std::future::ready;

use futures_util::StreamExt;
use tarpc::client;
use tarpc::context::{self, Context};
use tarpc::server::incoming::{Incoming as _, spawn_incoming};
use tarpc::server::{BaseChannel, Channel};
use tarpc::{ClientMessage, Response};
use tensorpipe::{PeerAddr, Pipe};
use tensorpipe_rpc::tarpc::{Incoming, incoming, transport};

use super::{over_each, shm_only, shm_url, soon, tcp};

#[tarpc::service]
pub(crate) trait Greeter {
    async fn greet() -> u32;
}

#[derive(Clone)]
struct Seven;

impl Greeter for Seven {
    async fn greet(self, _: Context) -> u32 {
        7
    }
}

type Served = Incoming<ClientMessage<GreeterRequest>, Response<GreeterResponse>>;

fn connect(pipe: Pipe) -> GreeterClient {
    GreeterClient::new(client::Config::default(), transport(pipe)).spawn()
}

#[tokio::test]
async fn a_listener_is_a_stream_of_transports_with_a_bound_for_each_host() {
    for (context, url) in [
        (tcp().build().unwrap(), "tcp://127.0.0.1:0"),
        (shm_only().build().unwrap(), &shm_url()),
    ] {
        let transports: Served = incoming(context.listen([url]).await.unwrap());
        let url = transports.listener().url().to_string();
        let channels = transports
            .filter_map(|transport| ready(transport.ok()))
            .map(BaseChannel::with_defaults)
            .max_channels_per_key(2, |channel| channel.transport().peer_addr().party());
        tokio::spawn(spawn_incoming(channels.execute(Seven.serve())));
        let mut clients = Vec::new();
        for _ in 0..2 {
            let client = connect(context.connect(&url).await.unwrap());
            assert_eq!(client.greet(context::current()).await.unwrap(), 7);
            clients.push(client);
        }
        let third = connect(context.connect(&url).await.unwrap());
        soon(third.greet(context::current())).await.unwrap_err();
        for client in &clients {
            assert_eq!(client.greet(context::current()).await.unwrap(), 7);
        }
        // A place is free again when its client leaves.
        clients.pop();
        soon(async {
            loop {
                let again = connect(context.connect(&url).await.unwrap());
                if again.greet(context::current()).await.is_ok() {
                    break;
                }
            }
        })
        .await;
    }
}

#[tokio::test]
async fn the_stream_ends_with_an_error_when_its_context_is_closed() {
    let context = tcp().build().unwrap();
    let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let mut transports: Served = incoming(listener);
    context.close().await.unwrap();
    let error = soon(transports.next()).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("closed"), "{error}");
    assert!(soon(transports.next()).await.is_none());
}

#[tokio::test]
async fn peers_are_known_by_what_the_system_says_and_pipes_by_numbers_of_their_own() {
    let mut ids = HashSet::new();
    let process = std::process::id();
    over_each(async |client, server| {
        let uid = own_uid();
        for (pipe, other) in [(&client, &server), (&server, &client)] {
            match (pipe.route().transport.as_str(), pipe.peer_addr()) {
                ("tcp", PeerAddr::Socket(address)) => {
                    assert!(address.ip().is_loopback());
                    let ends = &other.route().address;
                    assert!(ends.starts_with(&format!("{address} ->")), "{ends}");
                }
                ("shm", peer) => {
                    let pid = Some(process);
                    assert_eq!(peer, PeerAddr::Process { pid, uid });
                }
                ("memory", peer) => assert_eq!(peer, PeerAddr::SameProcess),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(client.name(), server.name());
        assert_ne!(client.id(), server.id());
    })
    .await;
    let context = tcp().build().unwrap();
    for _ in 0..4 {
        let (client, server) = super::pipes(&context).await;
        assert!(ids.insert(client.id()) && ids.insert(server.id()));
    }
}

/// Whose process this is.
fn own_uid() -> u32 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").unwrap().uid()
}
