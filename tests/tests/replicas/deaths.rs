//! Servers that die, or stop.

use tensorpipe_rpc::{CallError, replicas::ReplicaState};
use tensorpipe_tests::{alone, eventually, soon};

use super::scene::{Load, WorkerProcess, all_live, client_of, replicas_of, start, states};

#[test]
fn one_of_three_is_killed_under_load() {
    alone(async || {
        let mut places = start::<3>();
        let (client, replicas) = client_of(replicas_of(&places)).await;
        let load = Load::begin(&client);
        load.goes_on(200).await;
        // Not idempotent, and one on each of the three: this client makes no others.
        let (careful, _own) = client_of(replicas_of(&places)).await;
        let held: Vec<_> = (0..3).map(|_| tokio::spawn(careful.once(60_000))).collect();
        places
            .iter()
            .for_each(|place| drop(place.child.hear("begun")));
        places[0].child.kill();
        load.goes_on(500).await;
        eventually("the one on the dead server ends", || {
            held.iter().any(|call| call.is_finished())
        })
        .await;
        let (ended, going): (Vec<_>, Vec<_>) =
            held.into_iter().partition(|call| call.is_finished());
        assert_eq!((ended.len(), going.len()), (1, 2));
        for call in ended {
            let error = call.await.unwrap().unwrap_err();
            let lost = CallError::may_have_run(&error);
            assert!(
                lost && matches!(error, CallError::Connection { .. }),
                "{error:?}"
            );
        }
        going.iter().for_each(|call| call.abort());
        assert_ne!(states(&replicas)[0], ReplicaState::Live);
        // And it comes back.
        places[0].again();
        all_live(&replicas).await;
        load.goes_on(200).await;
        load.end().await;
        let new = places[0].id();
        let found = async { while client.nap(0).await.unwrap() != new {} };
        soon("the new one is called", found).await;
    });
}

#[test]
fn a_stopped_server_is_taken_out_and_comes_back() {
    alone(async || {
        let places = start::<2>();
        let (client, replicas) = client_of(replicas_of(&places)).await;
        places[0].child.suspend();
        // Some of them stick there until it is known to be silent.
        let calls: Vec<_> = (0..10).map(|_| tokio::spawn(client.nap(0))).collect();
        for call in calls {
            let answer = soon("those that stuck", call).await.unwrap();
            assert_eq!(answer.unwrap(), places[1].id());
        }
        assert_ne!(states(&replicas)[0], ReplicaState::Live);
        places[0].child.resume();
        all_live(&replicas).await;
        let found = async { while client.nap(0).await.unwrap() != places[0].id() {} };
        soon("it is called again", found).await;
    });
}

#[test]
fn a_server_that_is_not_there_at_first_joins_later() {
    alone(async || {
        let mut places = start::<2>();
        places[1].child.kill();
        let builder = replicas_of(&places);
        let replicas = soon("the other one", builder.connect()).await.unwrap();
        let client = super::scene::WorkClient::on(&replicas).await.unwrap();
        assert_eq!(client.nap(0).await.unwrap(), places[0].id());
        places[1].again();
        all_live(&replicas).await;
        let [first, second]: [WorkerProcess; 2] = places;
        drop(first);
        let found = async { while client.nap(0).await.unwrap() != second.id() {} };
        soon("the late one is called", found).await;
    });
}
