//! Servers that die, or stop.

use std::time::{Duration, Instant};

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
fn all_die_and_one_comes_back() {
    alone(async || {
        let mut places = start::<2>();
        let (client, replicas) = client_of(replicas_of(&places)).await;
        places.iter_mut().for_each(|place| place.child.kill());
        eventually("both are seen to be gone", || {
            !states(&replicas).contains(&ReplicaState::Live)
        })
        .await;
        let calls: Vec<_> = (0..10).map(|_| tokio::spawn(client.once(0))).collect();
        let hurried = client.with_deadline(Duration::from_millis(200)).once(0);
        let error = soon("its deadline", hurried).await.unwrap_err();
        assert!(
            matches!(
                error,
                CallError::Unavailable {
                    may_have_run: false,
                    ..
                }
            ),
            "{error:?}"
        );
        places[1].again();
        for call in calls {
            let answer = soon("those that waited", call).await.unwrap();
            assert_eq!(answer.unwrap(), places[1].id());
        }
    });
}

#[test]
fn nobody_comes_back() {
    alone(async || {
        let mut places = start::<2>();
        let builder = replicas_of(&places).give_up_after(Duration::from_secs(1));
        let (client, replicas) = client_of(builder).await;
        let running = tokio::spawn(client.nap(60_000));
        let begun = tokio::spawn(client.once(60_000));
        eventually("both are under way", || {
            let status = replicas.status();
            status.iter().map(|one| one.calls_in_flight).sum::<usize>() == 2
        })
        .await;
        places.iter_mut().for_each(|place| place.child.kill());
        let error = soon("the one that is not idempotent", begun).await.unwrap();
        assert!(error.unwrap_err().may_have_run());
        // Long before its deadline of a minute.
        let error = soon("the one that is", running).await.unwrap().unwrap_err();
        let CallError::Unavailable {
            replicas: each,
            may_have_run: true,
        } = &error
        else {
            panic!("{error:?}");
        };
        for (one, place) in each.iter().zip(&places) {
            assert_eq!(*one.url, *place.url);
            assert!(one.error.is_some());
        }
        println!("{error}");
        assert_eq!(states(&replicas), [ReplicaState::GivenUp; 2]);
        let begun = Instant::now();
        let error = soon("at once", client.nap(0)).await.unwrap_err();
        assert!(!error.may_have_run(), "{error:?}");
        assert!(begun.elapsed() < Duration::from_secs(20));
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
