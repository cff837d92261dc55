//! A call with a stream is made on one replica, and ends with it.

use std::time::Duration;

use futures_util::stream;
use tensorpipe_rpc::{CallError, ConnectError, replicas::ReplicaState};

use super::lab::{
    Ledger, all_gone, assert_unavailable, client_of, replicas_of, sites, soon, states, until,
};

#[tokio::test]
async fn a_stream_ends_with_its_server_and_the_next_one_is_made_elsewhere() {
    let ledger = Ledger::default();
    let sites = sites(2, &ledger).await;
    let (client, replicas) = client_of(replicas_of(&sites)).await;
    let mut names = client.names(1);
    let first = soon(names.next()).await.unwrap().unwrap();
    assert_eq!(replicas.status()[first as usize].calls_in_flight, 1);
    sites[first as usize].proxy.cut();
    let error = soon(names.next()).await.unwrap().unwrap_err();
    assert!(error.may_have_run(), "{error:?}");
    assert_eq!(ledger.runs(1), 1, "idempotent or not, it is not made again");
    until(|| states(&replicas)[first as usize] != ReplicaState::Live).await;
    for id in 2..6 {
        let other = soon(client.names(id).next()).await.unwrap().unwrap();
        assert_eq!(other, 1 - first);
        assert_eq!(soon(client.sum(id, stream::iter(1..=4))).await.unwrap(), 10);
    }
}

/// Its deadline is the end of a stream that has none of its own: its server answered all the while.
#[tokio::test]
async fn a_stream_that_lasts_as_long_as_it_may_is_not_without_an_answer() {
    let ledger = Ledger::default();
    let sites = sites(2, &ledger).await;
    let (client, replicas) = client_of(replicas_of(&sites).unanswered(3)).await;
    let client = client.with_deadline(Duration::from_millis(300));
    let streams: Vec<_> = (0..8).map(|id| client.names(id)).collect();
    for mut names in streams {
        soon(names.next()).await.unwrap().unwrap();
        let end = soon(names.next()).await.unwrap().unwrap_err();
        assert!(matches!(end, CallError::Deadline { .. }), "{end:?}");
    }
    // One on each.
    for id in 10..12 {
        let late = soon(client.once(id)).await.unwrap_err();
        assert!(matches!(late, CallError::Deadline { .. }), "{late:?}");
    }
    assert_eq!(states(&replicas), [ReplicaState::Live; 2]);
}

#[tokio::test]
async fn streams_keep_away_from_a_server_that_shuts_down() {
    let ledger = Ledger::default();
    let mut sites = sites(2, &ledger).await;
    let (client, replicas) = client_of(replicas_of(&sites)).await;
    // Holds up the shutdown, whichever server it is on.
    let held = [client.add(1, 2000), client.add(2, 2000)];
    until(|| ledger.runs(1) + ledger.runs(2) == 2).await;
    let shutdown = tokio::spawn(sites[0].server.take().unwrap().shutdown());
    until(|| states(&replicas)[0] != ReplicaState::Live).await;
    let error = replicas.status()[0].last_error.clone().unwrap();
    assert!(matches!(error, ConnectError::ShuttingDown), "{error:?}");
    for id in 10..20 {
        assert_eq!(soon(client.names(id).next()).await.unwrap().unwrap(), 1);
    }
    drop(held);
    soon(shutdown).await.unwrap();
}

#[tokio::test]
async fn a_stream_does_not_wait_for_a_server() {
    let ledger = Ledger::default();
    let (_sites, client, _replicas) = all_gone(1, &ledger).await;
    let error = soon(client.names(1).next()).await.unwrap().unwrap_err();
    assert_unavailable(&error, false);
    let error = soon(client.sum(1, stream::iter([1]))).await.unwrap_err();
    assert!(!error.may_have_run(), "{error:?}");
}
