//! Servers that are reachable, but have another definition of the service or none.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorpipe::{Limits, Pipe};
use tensorpipe_rpc::{
    ConnectError, Connection, Replicas, Server, replicas::ReplicaState, tensor_service,
};

use super::lab::{Ledger, WorkClient, quick, replicas_of, sites, soon, states, tcp, until};

pub(crate) mod other {
    use super::*;

    /// Another definition.
    #[tensor_service]
    pub(super) trait Work {
        async fn who(&self, id: String) -> u64;
    }

    /// One from before most methods.
    pub(crate) mod older {
        use super::*;

        #[tensor_service]
        pub(crate) trait Work {
            #[rpc(idempotent)]
            async fn second(&self, id: u64) -> u32;
        }
    }
}

pub(crate) struct OtherWork;

impl other::Work for OtherWork {
    async fn who(&self, _: String) -> u64 {
        99
    }
}

impl other::older::Work for OtherWork {
    async fn second(&self, _: u64) -> u32 {
        99
    }
}

#[tokio::test]
async fn a_server_with_another_definition_gets_no_calls_and_its_successor_does() {
    let ledger = Ledger::default();
    let mut sites = sites(2, &ledger).await;
    // The first site has another service of that name.
    soon(sites[0].server.take().unwrap().shutdown()).await;
    let other_site = sites[0].serve(other::WorkService::new(OtherWork)).await;
    let replicas = replicas_of(&sites).connect().await.unwrap();
    let client = WorkClient::on(&replicas).await.unwrap();
    until(|| states(&replicas) == [ReplicaState::Unsuitable, ReplicaState::Live]).await;
    let status = replicas.status();
    let reason = status[0].last_error.as_ref().unwrap();
    assert!(matches!(reason, ConnectError::Mismatch(_)), "{reason:?}");
    assert!(reason.to_string().contains("who"), "{reason}");
    for id in 0..20 {
        assert_eq!(soon(client.who(id)).await.unwrap(), 1);
    }

    // Another client, of what the other site has.
    let strange = other::WorkClient::on(&replicas).await.unwrap();
    assert_eq!(soon(strange.who("x")).await.unwrap(), 99);
    until(|| states(&replicas) == [ReplicaState::Live; 2]).await;
    drop(strange);

    soon(other_site.shutdown()).await;
    sites[0].replace(0, &ledger).await;
    let both = async {
        let mut id = 100;
        while soon(client.who(id)).await.unwrap() != 0 {
            id += 1;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    soon(both).await;
}

#[tokio::test]
async fn where_no_server_fits_a_client_hears_why() {
    let ledger = Ledger::default();
    let sites = sites(2, &ledger).await;
    let replicas = replicas_of(&sites).connect().await.unwrap();
    let error = soon(other::WorkClient::on(&replicas)).await.unwrap_err();
    let ConnectError::Unavailable(each) = &error else {
        panic!("{error:?}");
    };
    assert_eq!(each.len(), 2);
    for one in each.iter() {
        assert!(
            matches!(one.error, Some(ConnectError::Mismatch(_))),
            "{one:?}"
        );
    }
    // The others are not disturbed.
    let client = WorkClient::on(&replicas).await.unwrap();
    soon(client.who(1)).await.unwrap();
}

#[tensor_service]
trait Small {
    async fn one(&self) -> u64;
}

#[derive(Serialize, Deserialize)]
struct Wordy {
    a_field_whose_name_takes_the_room_that_a_whole_description_of_a_service_usually_needs: u64,
    another_field_whose_name_is_about_as_long_as_that_of_the_one_before_it_and_says_as_little: u64,
    one_more_for_which_there_is_no_room_in_what_the_server_takes_as_one_message_s_metadata: u64,
}

#[tensor_service]
trait Large {
    async fn two(&self, wordy: Wordy) -> u64;
}

struct Both;

impl Small for Both {
    async fn one(&self) -> u64 {
        1
    }
}

impl Large for Both {
    async fn two(&self, _: Wordy) -> u64 {
        2
    }
}

/// Its own limits are in the way, as they would be each time. What it serves beside that goes on.
#[tokio::test]
async fn a_service_whose_description_a_server_does_not_take_costs_it_no_other() {
    let mut limits = Limits::default();
    (limits.metadata, limits.payload) = (250, 250);
    let context = super::common::tcp().limits(limits).build().unwrap();
    let server = Server::builder().context(&context);
    let server = server.service(SmallService::new(Both));
    let server = server.service(LargeService::new(Both));
    let server = soon(server.listen("tcp://127.0.0.1:0")).await.unwrap();
    let replicas = Replicas::builder().context(&tcp()).url(server.url());
    let replicas = replicas.backoff(quick()).connect().await.unwrap();
    let small = SmallClient::on(&replicas).await.unwrap();
    assert_eq!(soon(small.one()).await.unwrap(), 1);
    let pipes = || server.pipes().iter().map(Pipe::id).collect::<Vec<_>>();
    let before = pipes();
    let error = soon(LargeClient::on(&replicas)).await.unwrap_err();
    assert!(error.to_string().contains("Limits::"), "{error}");
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(soon(small.one()).await.unwrap(), 1);
    }
    assert_eq!(pipes(), before, "it was connected to anew");
}

#[tokio::test]
async fn a_client_of_one_connection_is_as_before() {
    let ledger = Ledger::default();
    let sites = sites(1, &ledger).await;
    let connection = Connection::connect_with(&tcp(), &sites[0].proxy.url)
        .await
        .unwrap();
    let by_reference = &connection;
    let client = WorkClient::on(&by_reference).await.unwrap();
    assert_eq!(soon(client.who(1)).await.unwrap(), 0);
    let call = tokio::spawn(client.second(2));
    until(|| ledger.runs(2) == 1).await;
    sites[0].proxy.cut();
    let error = soon(call).await.unwrap().unwrap_err();
    assert!(
        error.may_have_run(),
        "idempotent or not, it is not made again: {error:?}"
    );
    assert_eq!(ledger.runs(2), 1);
}
