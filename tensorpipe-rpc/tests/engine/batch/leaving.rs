//! Callers that go away: while they wait, while their batch runs, one or all of them.

use std::time::Duration;

use tensorpipe_rpc::CallError;

use super::model::{are, over_each, rows};
use crate::lab::until;

#[tokio::test]
async fn who_cancels_while_it_waits_is_in_no_batch() {
    over_each(3, async |models| {
        let [a, b, c] = [0, 1, 2].map(|i| &models.clients[i]);
        let first = a.scale(rows(3, 1.0), 2.0);
        models.waiting("scale", 1).await;
        let second = b.scale(rows(3, 5.0), 2.0);
        models.waiting("scale", 2).await;
        // The first one: its batch is the second one's now, and has room again.
        drop(first);
        models.waiting("scale", 1).await;
        let third = c.scale(rows(5, 7.0), 2.0).await.unwrap();
        assert!(are(&third, 5, 14.0) && are(&second.await.unwrap(), 3, 10.0));
        let run = (vec![8, 2], "near 1".to_owned());
        assert_eq!(*models.machine.runs.lock().unwrap(), [run]);

        // All of them: nothing runs.
        let calls = [a, b, c].map(|client| client.scale(rows(1, 1.0), 2.0));
        models.waiting("scale", 3).await;
        drop(calls);
        models.waiting("scale", 0).await;
        assert_eq!(models.stats("scale").runs, 1);
        models.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn who_cancels_while_its_batch_runs_takes_nothing_from_the_others() {
    over_each(3, async |models| {
        let [a, b, c] = [0, 1, 2].map(|i| &models.clients[i]);
        // The first runs alone; the others gather behind it.
        let first = a.held(rows(1, 1.0));
        until(|| models.at_it() == 1).await;
        let mut calls: Vec<_> = [b, c, a]
            .iter()
            .map(|client| client.held(rows(2, 3.0)))
            .collect();
        models.waiting("held", 3).await;
        models.machine.gate.add_permits(1);
        assert!(are(&first.await.unwrap(), 1, 1.0));
        until(|| models.stats("held").waiting == 0 && models.at_it() == 1).await;
        drop(calls.remove(0));
        until(|| models.server.calls_in_flight() == 2).await;
        assert_eq!(models.at_it(), 1);
        models.machine.gate.add_permits(1);
        for call in calls {
            assert!(are(&call.await.unwrap(), 2, 3.0));
        }
        assert_eq!(models.stats("held").runs, 2);
        models.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn a_client_that_dies_is_one_that_cancels() {
    over_each(3, async |mut models| {
        let dies = models.clients.pop().unwrap();
        let [a, b] = [&models.clients[0], &models.clients[1]];
        let waits = a.scale(rows(4, 1.0), 2.0);
        let dead = dies.scale(rows(3, 1.0), 2.0);
        models.waiting("scale", 2).await;
        dies.connection().pipe().clone().close().await.unwrap();
        assert!(dead.await.unwrap_err().may_have_run());
        models.waiting("scale", 1).await;
        let fills = b.scale(rows(4, 3.0), 2.0).await.unwrap();
        assert!(are(&fills, 4, 6.0) && are(&waits.await.unwrap(), 4, 2.0));
        assert_eq!(models.shapes(), [[8, 2]]);
        drop(dies);
        models.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn when_all_have_gone_the_handler_is_dropped_and_its_place_is_free() {
    over_each(2, async |models| {
        let [a, b] = [&models.clients[0], &models.clients[1]];
        let first = a.held(rows(1, 1.0));
        until(|| models.at_it() == 1).await;
        let next = b.held(rows(2, 3.0));
        models.waiting("held", 1).await;
        drop(first);
        until(|| models.stats("held").runs == 2).await;
        models.machine.gate.add_permits(1);
        assert!(are(&next.await.unwrap(), 2, 3.0));
        models.is_clean().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_elsewhere_hears_when_all_have_gone_and_not_before() {
    over_each(2, async |models| {
        let [a, b] = [&models.clients[0], &models.clients[1]];
        let (first, second) = (a.work(rows(1, 1.0)), b.work(rows(1, 1.0)));
        until(|| models.at_it() == 1).await;
        drop(first);
        until(|| models.server.calls_in_flight() == 1).await;
        tokio::time::sleep(Duration::from_millis(30)).await;
        assert_eq!(models.at_it(), 1);
        drop(second);
        models.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn a_deadline_that_passes_while_it_waits_is_that_callers_alone() {
    over_each(3, async |models| {
        let [a, b, c] = [0, 1, 2].map(|i| &models.clients[i]);
        let first = a.held(rows(1, 1.0));
        until(|| models.at_it() == 1).await;
        let hurried = b.with_deadline(Duration::from_millis(50));
        let (late, patient) = (hurried.held(rows(1, 2.0)), c.held(rows(1, 3.0)));
        let error = late.await.unwrap_err();
        assert!(matches!(error, CallError::Deadline { .. }), "{error}");
        models.waiting("held", 1).await;
        models.machine.gate.add_permits(2);
        assert!(are(&first.await.unwrap(), 1, 1.0));
        assert!(are(&patient.await.unwrap(), 1, 3.0));
        let stats = models.stats("held");
        assert_eq!((stats.runs, stats.calls), (2, 2));
        models.is_clean().await;
    })
    .await;
}
