//! Calls move to another replica where that is safe, and only there.

use std::time::Duration;

use tensorpipe::Tensor;
use tensorpipe_rpc::{
    CallError, ServerLimits,
    replicas::{Balance, ReplicaState, RetryBudget},
};

use super::lab::{
    Ledger, Site, WorkClient, client_of, cut_the_busy, replicas_of, sites, soon, states, tcp, until,
};

#[tokio::test]
async fn an_idempotent_call_goes_on_elsewhere_when_its_server_dies() {
    let ledger = Ledger::default();
    let sites = sites(3, &ledger).await;
    let (client, replicas) = client_of(replicas_of(&sites)).await;
    let call = tokio::spawn(client.second(1));
    until(|| ledger.runs(1) == 1).await;
    let dead = cut_the_busy(&sites).await;
    assert_eq!(soon(call).await.unwrap().unwrap(), 2);
    assert_eq!(ledger.runs(1), 2);
    let status = &replicas.status()[dead];
    assert_ne!(status.state, ReplicaState::Live);
    assert!(status.last_error.is_some(), "{status:?}");
    // And back, without anybody's help.
    sites[dead].proxy.mend();
    until(|| states(&replicas)[dead] == ReplicaState::Live).await;
    let status = &replicas.status()[dead];
    assert!(status.last_error.is_none(), "{status:?}");
}

#[tokio::test]
async fn any_other_call_ends_with_an_error_that_says_that_it_may_have_run() {
    let ledger = Ledger::default();
    let sites = sites(2, &ledger).await;
    let (client, _replicas) = client_of(replicas_of(&sites)).await;
    let call = tokio::spawn(client.once(1));
    until(|| ledger.runs(1) == 1).await;
    cut_the_busy(&sites).await;
    let error = soon(call).await.unwrap().unwrap_err();
    assert!(
        matches!(
            error,
            CallError::Connection {
                may_have_run: true,
                ..
            }
        ),
        "{error:?}"
    );
    // The other is there, and the dead one is known: whatever comes next did not run, and does now.
    for id in 2..10 {
        soon(client.add(id, 0)).await.unwrap();
        assert_eq!(ledger.runs(id), 1);
    }
    assert_eq!(ledger.runs(1), 1);
}

#[tokio::test]
async fn a_large_call_is_made_again_whole() {
    let ledger = Ledger::default();
    let sites = sites(2, &ledger).await;
    let (client, _replicas) = client_of(replicas_of(&sites)).await;
    for (id, len) in [(1, 10), (2, 30_000), (3, 3_000_000)] {
        let text = "x".repeat(len);
        let tensor = Tensor::from_vec(vec![7u8; 2 * len], [2 * len as u64]).unwrap();
        let call = tokio::spawn(client.large(id, &text, &tensor));
        until(|| ledger.runs(id) == 1).await;
        let dead = cut_the_busy(&sites).await;
        let lens = soon(call).await.unwrap().unwrap();
        assert_eq!(lens, (len as u64, 2 * len as u64));
        sites[dead].proxy.mend();
    }
}

#[tokio::test]
async fn calls_move_away_from_a_server_that_shuts_down() {
    let ledger = Ledger::default();
    let mut sites = sites(2, &ledger).await;
    let (client, _replicas) = client_of(replicas_of(&sites)).await;
    // One on each.
    let running = [client.add(1, 300), client.add(2, 300)];
    until(|| ledger.runs(1) + ledger.runs(2) == 2).await;
    let shutdown = tokio::spawn(sites[0].server.take().unwrap().shutdown());
    for id in 10..200 {
        soon(client.add(id, 1)).await.unwrap();
        assert_eq!(ledger.runs(id), 1);
    }
    for call in running {
        soon(call).await.unwrap();
    }
    assert_eq!(
        soon(shutdown).await.unwrap(),
        0,
        "calls under way were finished"
    );
}

#[tokio::test]
async fn calls_move_away_from_a_server_that_is_overloaded() {
    let ledger = Ledger::default();
    let mut limits = ServerLimits::default();
    limits.calls = 1;
    let small = Site::new(0, &ledger, limits).await;
    let large = Site::new(1, &ledger, ServerLimits::default()).await;
    let (client, replicas) = client_of(replicas_of([&small, &large])).await;
    // Fills the small one, whoever's turn it is.
    let held = [client.once(1), client.once(2)];
    until(|| ledger.runs(1) + ledger.runs(2) == 2).await;
    for id in 10..30 {
        assert_eq!(soon(client.add(id, 0)).await.unwrap(), 1);
        assert_eq!(ledger.runs(id), 1);
    }
    // It has too much to do, and is not gone.
    assert_eq!(states(&replicas), [ReplicaState::Live; 2]);
    drop(held);
}

#[tokio::test]
async fn where_all_are_overloaded_the_budget_bounds_what_is_sent() {
    const CALLS: u64 = 50;
    let ledger = Ledger::default();
    let mut limits = ServerLimits::default();
    limits.calls = 1;
    let sites = [
        Site::new(0, &ledger, limits.clone()).await,
        Site::new(1, &ledger, limits).await,
    ];
    let budget = RetryBudget {
        share: 0.0,
        reserve: 4,
    };
    let (client, _replicas) = client_of(replicas_of(&sites).retry_budget(budget)).await;
    let held = [client.once(1), client.once(2)];
    until(|| ledger.runs(1) + ledger.runs(2) == 2).await;
    let received = || {
        let servers = sites.iter().filter_map(|site| site.server.as_ref());
        servers.map(|server| server.stats().reads).sum::<u64>()
    };
    let before = received();
    for id in 10..10 + CALLS {
        let error = soon(client.who(id)).await.unwrap_err();
        assert!(matches!(error, CallError::Overloaded(_)), "{error:?}");
        assert!(!error.may_have_run());
    }
    // A small call is one read. Without a budget each would be sent to both.
    let sent = received() - before;
    assert!((CALLS..CALLS + 4 + 10).contains(&sent), "{sent}");
    drop(held);
}

#[tokio::test]
async fn the_least_busy_is_called() {
    let ledger = Ledger::default();
    let sites = sites(2, &ledger).await;
    let (client, replicas) = client_of(replicas_of(&sites).balance(Balance::LeastBusy)).await;
    let long = client.once(1);
    until(|| ledger.runs(1) == 1).await;
    let busy: Vec<usize> = replicas
        .status()
        .iter()
        .map(|one| one.calls_in_flight)
        .collect();
    let idle = busy.iter().position(|calls| *calls == 0).unwrap() as u64;
    for id in 10..30 {
        assert_eq!(soon(client.who(id)).await.unwrap(), idle);
    }
    drop(long);
    until(|| replicas.status().iter().all(|one| one.calls_in_flight == 0)).await;
    let mut names: Vec<u64> = Vec::new();
    for id in 40..44 {
        names.push(soon(client.who(id)).await.unwrap());
    }
    names.sort_unstable();
    assert_eq!(names, [0, 0, 1, 1], "equally busy, they take turns");
}

#[tokio::test]
async fn no_call_is_sent_more_often_than_it_may() {
    let ledger = Ledger::default();
    let sites = sites(3, &ledger).await;
    let (client, _replicas) = client_of(replicas_of(&sites).max_attempts(1)).await;
    let call = tokio::spawn(client.second(1));
    until(|| ledger.runs(1) == 1).await;
    cut_the_busy(&sites).await;
    let error = soon(call).await.unwrap().unwrap_err();
    assert!(error.may_have_run(), "{error:?}");
    assert_eq!(ledger.runs(1), 1);
}

#[tokio::test]
async fn all_attempts_have_one_deadline() {
    const WAITED: Duration = Duration::from_millis(100);
    let ledger = Ledger::default();
    let sites = sites(2, &ledger).await;
    let (client, _replicas) = client_of(replicas_of(&sites)).await;
    let after = Duration::from_secs(20);
    let call = tokio::spawn(client.with_deadline(after).left(1));
    until(|| ledger.runs(1) == 1).await;
    tokio::time::sleep(WAITED).await;
    cut_the_busy(&sites).await;
    let left = soon(call).await.unwrap().unwrap();
    assert!(left <= after - WAITED, "{left:?}");
}

#[tokio::test]
async fn an_attempt_that_did_not_run_does_not_deny_one_that_may_have() {
    let ledger = Ledger::default();
    let mut limits = ServerLimits::default();
    limits.calls = 1;
    let first = Site::new(0, &ledger, ServerLimits::default()).await;
    let full = Site::new(1, &ledger, limits).await;
    let direct = WorkClient::connect_with(&tcp(), &full.proxy.url).await;
    let (client, _replicas) = client_of(replicas_of([&first, &full])).await;
    let held = direct.unwrap().once(1);
    until(|| ledger.runs(1) == 1).await;
    // The first call of all goes to the first of all.
    let call = tokio::spawn(client.second(2));
    until(|| ledger.runs(2) == 1).await;
    first.proxy.cut();
    // The other one does not take it, and says so.
    let error = soon(call).await.unwrap().unwrap_err();
    assert!(error.may_have_run(), "{error:?}");
    assert_eq!(ledger.runs(2), 1);
    drop(held);
}
