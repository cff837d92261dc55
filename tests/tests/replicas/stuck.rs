//! Servers that answer pings but no calls.

use std::time::Duration;

use tensorpipe_rpc::{
    CallError, ConnectError,
    replicas::{Backoff, ReplicaState},
};
use tensorpipe_tests::{alone, eventually, soon};

use super::scene::{WorkClient, WorkerProcess, all_live, client_of, replicas_of, start, states};

/// None of the two comes back by itself within a test.
const FOR_LONG: Backoff = Backoff {
    first: Duration::from_secs(100),
    longest: Duration::from_secs(100),
    factor: 1.0,
    jitter: 0.0,
};

const STUCK: &[(&str, &str)] = &[("TEST_STUCK", "")];

/// In which one that is well answers, however busy the machine is.
const IN_TIME: Duration = Duration::from_secs(2);

/// Makes so many calls one after another. Returns how many had no answer in time; the others must have one.
async fn without_answer(client: &WorkClient, calls: u32) -> u32 {
    let mut without = 0;
    for _ in 0..calls {
        without += without_answer_at_once(client, 1).await;
    }
    without
}

/// The same of so many calls at once: those that are not answered cost the time of one.
async fn without_answer_at_once(client: &WorkClient, calls: u32) -> u32 {
    let calls: Vec<_> = (0..calls).map(|_| client.nap(0)).collect();
    let mut without = 0;
    for call in calls {
        match soon("an answer", call).await {
            Ok(_) => {}
            Err(CallError::Deadline { .. }) => without += 1,
            Err(other) => panic!("{other}"),
        }
    }
    without
}

#[test]
fn one_that_answers_no_call_gets_no_further_ones() {
    alone(async || {
        let mut places = [WorkerProcess::start(STUCK), WorkerProcess::start(&[])];
        let builder = replicas_of(&places).unanswered(3).backoff(FOR_LONG);
        let (client, replicas) = client_of(builder).await;
        let hurried = client.with_deadline(IN_TIME);
        // One after the other has its turn.
        assert_eq!(without_answer_at_once(&hurried, 6).await, 3);
        assert_eq!(without_answer(&hurried, 14).await, 0);
        assert_eq!(states(&replicas)[0], ReplicaState::Waiting);
        let reason = replicas.status()[0].last_error.clone().unwrap();
        assert!(
            matches!(reason, ConnectError::Unanswered { calls: 3 }),
            "{reason:?}"
        );
        // And it comes back.
        places[0].child.kill();
        places[0].again();
        replicas.reconnect();
        all_live(&replicas).await;
        let found = async { while client.nap(0).await.unwrap() != places[0].id() {} };
        soon("its successor is called", found).await;
    });
}

#[test]
fn one_that_comes_back_and_still_answers_none_is_found_out_by_one_call() {
    alone(async || {
        let places = [WorkerProcess::start(STUCK), WorkerProcess::start(&[])];
        let builder = replicas_of(&places).unanswered(4).backoff(FOR_LONG);
        let (client, replicas) = client_of(builder).await;
        let client = client.with_deadline(IN_TIME);
        assert_eq!(without_answer_at_once(&client, 8).await, 4);
        for _ in 0..2 {
            replicas.reconnect();
            all_live(&replicas).await;
            // Each of the two has its turn.
            assert_eq!(without_answer_at_once(&client, 2).await, 1);
            eventually("it is taken out", || {
                matches!(
                    replicas.status()[0].last_error,
                    Some(ConnectError::Unanswered { calls: 1 })
                )
            })
            .await;
        }
    });
}

#[test]
fn answers_in_between_are_no_row() {
    alone(async || {
        let places = start::<2>();
        let (client, replicas) = client_of(replicas_of(&places).unanswered(3)).await;
        let hurried = client.with_deadline(Duration::from_millis(30));
        for _ in 0..3 {
            // Two on each, and then one that is answered.
            for _ in 0..4 {
                let late = soon("an answer", hurried.nap(60_000)).await;
                assert!(matches!(late, Err(CallError::Deadline { .. })), "{late:?}");
            }
            assert_eq!(without_answer(&client, 2).await, 0);
        }
        assert_eq!(states(&replicas), [ReplicaState::Live; 2]);
    });
}

#[test]
fn the_only_one_that_is_there_stays() {
    alone(async || {
        let mut places = [WorkerProcess::start(STUCK), WorkerProcess::start(&[])];
        let builder = replicas_of(&places).unanswered(2).backoff(FOR_LONG);
        let (client, replicas) = client_of(builder).await;
        places[1].child.kill();
        eventually("the other is seen to be gone", || {
            states(&replicas)[1] != ReplicaState::Live
        })
        .await;
        let client = client.with_deadline(Duration::from_millis(30));
        assert_eq!(without_answer(&client, 6).await, 6);
        assert_eq!(states(&replicas)[0], ReplicaState::Live);
    });
}
