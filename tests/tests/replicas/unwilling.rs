//! Servers that are reachable but refuse calls.

use tensorpipe_rpc::{ConnectError, replicas::ReplicaState};
use tensorpipe_tests::{alone, eventually, soon};

use super::scene::{
    Load, WorkClient, WorkerProcess, all_live, client_of, replicas_of, start, states,
};

#[test]
fn a_server_drains_and_calls_move_over() {
    alone(async || {
        let places = start::<2>();
        let (client, replicas) = client_of(replicas_of(&places)).await;
        let load = Load::begin(&client);
        load.goes_on(200).await;
        // One on each, this client makes no others: the one on the server that drains is finished there.
        let (slow, _own) = client_of(replicas_of(&places)).await;
        let running = [tokio::spawn(slow.once(500)), tokio::spawn(slow.once(500))];
        places
            .iter()
            .for_each(|place| drop(place.child.hear("begun")));
        let draining = WorkClient::connect(&places[0].url).await.unwrap();
        draining.drain().await.unwrap();
        eventually("it gets no calls", || {
            states(&replicas)[0] != ReplicaState::Live
        })
        .await;
        load.goes_on(300).await;
        for call in running {
            soon("calls under way", call).await.unwrap().unwrap();
        }
        assert_eq!(places[0].child.hear("drained"), "0");
        load.goes_on(100).await;
        load.end().await;
        assert_eq!(client.nap(0).await.unwrap(), places[1].id());
    });
}

#[test]
fn calls_move_away_from_a_server_that_is_overloaded() {
    alone(async || {
        let places = [
            WorkerProcess::start(&[("TEST_CALLS", "1")]),
            WorkerProcess::start(&[]),
        ];
        let (client, replicas) = client_of(replicas_of(&places)).await;
        let held = [client.once(60_000), client.once(60_000)];
        places
            .iter()
            .for_each(|place| drop(place.child.hear("begun")));
        // The budget has room for these.
        for _ in 0..20 {
            let answer = soon("one that has room", client.once(0)).await;
            assert_eq!(answer.unwrap(), places[1].id());
        }
        assert_eq!(states(&replicas), [ReplicaState::Live; 2]);
        drop(held);
    });
}

#[test]
fn a_server_of_another_definition_gets_no_calls_until_it_is_replaced() {
    alone(async || {
        let mut places = [
            WorkerProcess::start(&[("TEST_STRANGE", "")]),
            WorkerProcess::start(&[]),
        ];
        let replicas = replicas_of(&places).connect().await.unwrap();
        let client = WorkClient::on(&replicas).await.unwrap();
        eventually("it is known", || {
            states(&replicas) == [ReplicaState::Unsuitable, ReplicaState::Live]
        })
        .await;
        let reason = replicas.status()[0].last_error.clone().unwrap();
        assert!(matches!(reason, ConnectError::Mismatch(_)), "{reason:?}");
        assert!(reason.to_string().contains("nap"), "{reason}");
        let load = Load::begin(&client);
        load.goes_on(100).await;
        places[0].child.kill();
        places[0].again();
        all_live(&replicas).await;
        let found = async { while client.nap(0).await.unwrap() != places[0].id() {} };
        soon("its successor is called", found).await;
        load.end().await;
    });
}
