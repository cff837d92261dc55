//! How long a call waits: deadlines, limits, how many run at once, and a server that stops.

use std::time::Duration;

use tensorpipe_rpc::{CallError, ServerLimits};

use super::model::{are, over_each, over_each_with, rows};
use crate::lab::until;

#[tokio::test]
async fn a_deadline_shortens_the_wait_of_all_and_the_latest_is_the_handlers() {
    over_each(2, async |models| {
        let hurried = models.clients[0].with_deadline(Duration::from_secs(2));
        let patient = models.clients[1].with_deadline(Duration::from_secs(500));
        let (a, b) = tokio::try_join!(
            patient.scale(rows(1, 1.0), 2.0),
            hurried.scale(rows(2, 2.0), 2.0),
        )
        .unwrap();
        assert!(are(&a, 1, 2.0) && are(&b, 2, 4.0));
        assert_eq!(models.shapes(), [[3, 2]]);
        let left = models.machine.left.lock().unwrap()[0];
        assert!(left > Duration::from_secs(400), "{left:?}");
        models.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn as_many_run_at_once_as_the_method_allows() {
    over_each(1, async |models| {
        let client = &models.clients[0];
        let held = [(); 3].map(|()| client.held(rows(1, 1.0)));
        models.waiting("held", 2).await;
        assert_eq!((models.at_it(), models.stats("held").running), (1, 1));
        let two = [(); 3].map(|()| client.two(rows(1, 2.0)));
        models.waiting("two", 1).await;
        until(|| models.at_it() == 3).await;
        assert_eq!(models.stats("two").running, 2);
        models.machine.gate.add_permits(5);
        for call in held {
            assert!(are(&call.await.unwrap(), 1, 1.0));
        }
        for call in two {
            assert!(are(&call.await.unwrap()[0], 1, 2.0));
        }
        let runs = ["held", "two"].map(|method| models.stats(method).runs);
        assert_eq!(runs, [2, 3], "what gathered meanwhile went as one");
        models.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn until_its_batch_runs_a_call_waits_and_is_not_handled() {
    const HELD: Duration = Duration::from_millis(50);
    over_each(2, async |models| {
        let [a, b] = [&models.clients[0], &models.clients[1]];
        let first = a.held(rows(1, 1.0));
        until(|| models.at_it() == 1).await;
        let second = b.with_stats().held(rows(2, 2.0));
        models.waiting("held", 1).await;
        tokio::time::sleep(HELD).await;
        models.machine.gate.add_permits(1);
        assert!(are(&first.await.unwrap(), 1, 1.0));
        until(|| models.stats("held").waiting == 0 && models.at_it() == 1).await;
        tokio::time::sleep(HELD).await;
        models.machine.gate.add_permits(1);
        let (x, stats) = second.stats().await;
        assert!(are(&x.unwrap(), 2, 2.0));
        let server = stats.server.unwrap();
        assert!(server.waiting.min(server.handling) >= HELD, "{stats:?}");
        let there = server.waiting + server.handling + server.sending;
        assert!(there <= stats.round_trip, "{stats:?}");
        models.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn calls_that_wait_count_as_under_way() {
    let mut limits = ServerLimits::default();
    limits.calls_per_connection = 2;
    over_each_with(2, limits, async |models| {
        let [a, b] = [&models.clients[0], &models.clients[1]];
        let calls = [(); 2].map(|()| a.scale(rows(2, 1.0), 2.0));
        models.waiting("scale", 2).await;
        let error = a.scale(rows(1, 1.0), 2.0).await.unwrap_err();
        assert!(matches!(error, CallError::Overloaded(_)), "{error}");
        let x = b.scale(rows(4, 3.0), 2.0).await.unwrap();
        assert!(are(&x, 4, 6.0));
        for call in calls {
            assert!(are(&call.await.unwrap(), 2, 2.0));
        }
        models.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn a_server_that_stops_runs_what_is_gathered() {
    over_each(2, async |models| {
        // One batch runs, and one waits behind it.
        let [a, b] = [&models.clients[0], &models.clients[1]];
        let first = a.held(rows(1, 1.0));
        until(|| models.at_it() == 1).await;
        let second = b.held(rows(2, 2.0));
        models.waiting("held", 1).await;
        let stops = models.server.shutdown();
        models.machine.gate.add_permits(2);
        let (given_up, first, second) = tokio::join!(stops, first, second);
        assert_eq!(given_up, 0);
        assert!(are(&first.unwrap(), 1, 1.0) && are(&second.unwrap(), 2, 2.0));
        let error = a.held(rows(1, 1.0)).await.unwrap_err();
        assert!(!error.may_have_run(), "{error}");
    })
    .await;
}

#[tokio::test]
async fn a_server_that_stops_waits_for_no_calls_that_cannot_come() {
    let mut limits = ServerLimits::default();
    // Less than the half minute after which the deadlines of these calls end their wait.
    limits.drain = Duration::from_secs(20);
    over_each_with(3, limits, async |models| {
        // Two batches are gathered, neither of them full.
        let [a, b, c] = [0, 1, 2].map(|i| &models.clients[i]);
        let first = a.scale(rows(3, 1.0), 2.0);
        let second = b.scale(rows(2, 2.0), 2.0);
        let other = c.scale(rows(1, 1.0), 3.0);
        models.waiting("scale", 3).await;
        let stops = models.server.shutdown();
        let (given_up, first, second, other) = tokio::join!(stops, first, second, other);
        assert_eq!(given_up, 0);
        assert!(are(&first.unwrap(), 3, 2.0) && are(&second.unwrap(), 2, 4.0));
        assert!(are(&other.unwrap(), 1, 3.0));
        assert_eq!(models.batches.stats("scale").unwrap().runs, 2);
    })
    .await;
}

#[tokio::test]
async fn what_batching_came_to_outlives_the_server() {
    over_each(1, async |models| {
        assert!(models.batches.stats("plain").is_none());
        assert!(are(
            &models.clients[0].scale(rows(8, 1.0), 2.0).await.unwrap(),
            8,
            2.0
        ));
        let batches = models.batches.clone();
        drop(models);
        assert_eq!(batches.stats("scale").unwrap().mean_rows(), 8.0);
    })
    .await;
}
