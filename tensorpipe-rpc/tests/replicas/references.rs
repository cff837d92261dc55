//! A reference belongs to one server: a call that takes it goes to that server, whatever the balancing says.

use tensorpipe_rpc::replicas::ReplicaState;
use tensorpipe_rpc::{CallError, Remote, Replicas, Server, ServerLimits, tensor_service};

use super::lab::{
    Ledger, WorkClient, WorkService, Worker, assert_unavailable, client_of, quick, replicas_of,
    sites, soon, states, tcp, until,
};

#[tokio::test]
async fn calls_with_references_go_to_their_owner() {
    let ledger = Ledger::default();
    let sites = sites(3, &ledger).await;
    let (client, _replicas) = client_of(replicas_of(&sites)).await;
    let mut owners = Vec::new();
    for id in 0..6 {
        let stays = soon(client.stays(id)).await.unwrap();
        let owner = soon(stays.fetch()).await.unwrap();
        owners.push(owner);
        for _ in 0..4 {
            let both = soon(client.both(id, &stays)).await.unwrap();
            assert_eq!(both, (owner, owner));
        }
        // Before it is there.
        let promised = client.stays(id);
        let both = soon(client.both(id, &promised)).await.unwrap();
        assert_eq!(both.0, both.1);
        // The next one's turn.
        soon(client.who(100 + id)).await.unwrap();
        let several = soon(client.several(id)).await.unwrap();
        let both = soon(client.both(id, &several[1])).await.unwrap();
        assert_eq!(both.0, both.1);
    }
    assert!((0..3).all(|name| owners.contains(&name)), "{owners:?}");
    let exported = || {
        let servers = sites.iter().filter_map(|site| site.server.as_ref());
        servers.map(|server| server.references()).sum::<usize>()
    };
    until(|| exported() == 0).await;
}

/// Also a server that has the service, as one of other replicas or over a connection of its own.
#[tokio::test]
async fn a_reference_leads_no_call_to_a_server_that_the_client_was_not_made_for() {
    let ledger = Ledger::default();
    let sites = sites(2, &ledger).await;
    let (client, _replicas) = client_of(replicas_of(&sites[..1])).await;
    let (other, _others) = client_of(replicas_of(&sites[1..])).await;
    let direct = WorkClient::connect(&sites[1].proxy.url).await.unwrap();
    for (id, stays) in [(1, other.stays(1)), (2, direct.stays(2))] {
        // Before it is there, and then.
        let error = soon(client.both(id, &stays)).await.unwrap_err();
        assert!(matches!(error, CallError::Unresolved(_)), "{error}");
        let stays = soon(stays).await.unwrap();
        let error = soon(client.both(id, &stays)).await.unwrap_err();
        assert!(
            error.to_string().contains("not among these replicas"),
            "{error}"
        );
        assert!(!error.may_have_run());
        assert_eq!(soon(stays.fetch()).await.unwrap(), 1);
    }
}

/// The body is too large for the metadata, and what the call waits for is named behind it.
#[tokio::test]
async fn a_large_call_waits_for_what_it_is_given() {
    let ledger = Ledger::default();
    let sites = sites(2, &ledger).await;
    let (client, _replicas) = client_of(replicas_of(&sites)).await;
    for (id, len) in [0, 40_000, 1 << 20].into_iter().enumerate() {
        let promised = client.stays(id as u64);
        let text = "x".repeat(len);
        let (here, owner, seen) = soon(client.beside(text, &promised)).await.unwrap();
        assert_eq!((here, seen), (owner, len as u64));
    }
}

#[tokio::test]
async fn a_reference_dies_with_its_owner() {
    let ledger = Ledger::default();
    let sites = sites(2, &ledger).await;
    let (client, replicas) = client_of(replicas_of(&sites)).await;
    let stays = soon(client.stays(1)).await.unwrap();
    let owner = soon(stays.fetch()).await.unwrap() as usize;
    sites[owner].proxy.cut();
    until(|| states(&replicas)[owner] != ReplicaState::Live).await;
    let error = soon(client.both(2, &stays)).await.unwrap_err();
    assert!(!error.may_have_run(), "{error:?}");
    assert_eq!(ledger.runs(2), 0);
    // Another one is made elsewhere.
    let again = soon(client.stays(3)).await.unwrap();
    let other = 1 - owner as u64;
    assert_eq!(soon(client.both(4, &again)).await.unwrap(), (other, other));
}

#[tensor_service]
trait Reads {
    async fn read(&self, stayed: Remote<u64>) -> u64;
}

struct Reader;

impl Reads for Reader {
    async fn read(&self, stayed: Remote<u64>) -> u64 {
        *stayed.local_value().unwrap()
    }
}

/// Its owner has not been asked for the service, and can be asked no more.
#[tokio::test]
async fn a_reference_whose_owner_is_gone_blames_the_connection() {
    let ledger = Ledger::default();
    let (servers, replicas, client) = two_servers(&ledger).await;
    let stays = soon(client.stays(1)).await.unwrap();
    let owner = soon(stays.fetch()).await.unwrap() as usize;
    let mut servers = servers.map(Some);
    drop(servers[owner].take());
    until(|| states(&replicas)[owner] != ReplicaState::Live).await;
    let reads = soon(ReadsClient::on(&replicas)).await.unwrap();
    let ended = async {
        loop {
            match reads.read(&stays).await.unwrap_err() {
                CallError::ShuttingDown => tokio::time::sleep(quick().first).await,
                error => return error,
            }
        }
    };
    let error = soon(ended).await;
    assert!(matches!(error, CallError::Connection { .. }), "{error:?}");
    assert!(!error.may_have_run());
}

/// A server of both services that has one call at a time, and too much to do to be asked for another service during it.
async fn server(name: u64, ledger: &Ledger) -> Server {
    let ledger = ledger.clone();
    let mut limits = ServerLimits::default();
    limits.calls_per_connection = 1;
    let server = Server::builder().context(&tcp()).limits(limits);
    let server = server.service(WorkService::new(Worker { name, ledger }));
    let server = server.service(ReadsService::new(Reader));
    server.listen("tcp://127.0.0.1:0").await.unwrap()
}

async fn two_servers(ledger: &Ledger) -> ([Server; 2], Replicas, WorkClient) {
    let servers = [server(0, ledger).await, server(1, ledger).await];
    let urls = servers.each_ref().map(|server| server.url().to_string());
    let builder = Replicas::builder().context(&tcp()).urls(urls);
    let (client, replicas) = client_of(builder.backoff(quick())).await;
    (servers, replicas, client)
}

#[tokio::test]
async fn an_owner_that_has_not_answered_for_the_service_yet_is_not_there_yet() {
    let ledger = Ledger::default();
    let (servers, replicas, client) = two_servers(&ledger).await;
    let stays = soon(client.stays(1)).await.unwrap();
    let owner = soon(stays.fetch()).await.unwrap();
    // The owner alone is busy.
    let (mut id, mut held) = (2, None);
    while held.is_none() {
        let call = client.once(id);
        until(|| ledger.runs(id) == 1).await;
        let is_there = servers[owner as usize].calls_in_flight() == 1;
        held = is_there.then_some(call);
        until(|| servers[1 - owner as usize].calls_in_flight() == 0).await;
        id += 1;
    }
    let reads = soon(ReadsClient::on(&replicas)).await.unwrap();
    let error = soon(reads.read(&stays)).await.unwrap_err();
    assert_unavailable(&error, false);
    drop(held);
    let read = async {
        loop {
            match reads.read(&stays).await {
                Err(CallError::Unavailable { .. } | CallError::Overloaded(_)) => {
                    tokio::time::sleep(quick().first).await;
                }
                read => return read,
            }
        }
    };
    assert_eq!(soon(read).await.unwrap(), owner);
    // Somebody else's is none of theirs.
    let outside = server(2, &ledger).await;
    let (client, _replicas) =
        client_of(Replicas::builder().context(&tcp()).url(outside.url())).await;
    let foreign = soon(client.stays(9)).await.unwrap();
    let error = soon(reads.read(&foreign)).await.unwrap_err();
    assert!(matches!(error, CallError::Unresolved(_)), "{error:?}");
}
