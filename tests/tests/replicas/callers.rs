//! A caller leaves, and all replicas hear of it.

use std::time::Duration;

use tensorpipe_rpc::{
    CallError, Replicas,
    replicas::{ReplicaState, ReplicaStatus},
};
use tensorpipe_tests::{Child, alone, runtime, say, soon};

use super::scene::{WorkClient, WorkerProcess, client_of, replicas_of, start};

/// The role of a client that has a call under way on each server.
pub(crate) fn call() {
    runtime().block_on(async {
        let urls = std::env::var("TEST_URLS").unwrap();
        let urls: Vec<_> = urls.split(' ').collect();
        let replicas = Replicas::builder().urls(&urls).connect().await.unwrap();
        let client = WorkClient::on(&replicas).await.unwrap();
        // Those that are there later get theirs when they are.
        let mut held = Vec::new();
        loop {
            held.push(client.nap(600_000));
            tokio::time::sleep(Duration::from_millis(5)).await;
            let status = replicas.status();
            // Of one that is not live yet, the question for the service may be under way.
            let has_one =
                |one: &ReplicaStatus| one.state == ReplicaState::Live && one.calls_in_flight > 0;
            if status.iter().all(has_one) {
                break;
            }
        }
        say("calls", held.len());
        futures_util::future::join_all(held).await;
    });
}

/// Waits until nothing is under way on any of them.
async fn are_idle(places: &[WorkerProcess]) {
    for place in places {
        let look = WorkClient::connect(&place.url).await.unwrap();
        let idle = async { while look.busy().await.unwrap() > 0 {} };
        soon("it is idle", idle).await;
    }
}

#[test]
fn a_client_that_dies_leaves_nothing_behind_on_any_server() {
    alone(async || {
        let places = start::<3>();
        let urls = [0, 1, 2].map(|index| &*places[index].url).join(" ");
        let mut child = Child::start("client", &[("TEST_URLS", &urls)]);
        child.hear("calls");
        for place in &places {
            let look = WorkClient::connect(&place.url).await.unwrap();
            let busy = async { while look.busy().await.unwrap() == 0 {} };
            soon("its call is here", busy).await;
        }
        child.kill();
        are_idle(&places).await;
    });
}

#[test]
fn a_call_that_is_dropped_or_late_ends_on_its_server_and_is_made_nowhere_else() {
    alone(async || {
        let places = start::<2>();
        let (client, _replicas) = client_of(replicas_of(&places)).await;
        let dropped = [client.once(600_000), client.once(600_001)];
        for place in &places {
            place.child.hear("begun");
        }
        drop(dropped);
        are_idle(&places).await;
        // Idempotent, and yet: its time is up wherever it runs.
        let hurried = client.with_deadline(Duration::from_millis(100));
        let error = soon("its deadline", hurried.nap(600_000))
            .await
            .unwrap_err();
        assert!(matches!(error, CallError::Deadline { .. }), "{error:?}");
        are_idle(&places).await;
    });
}
