//! The errors of a client when no server is there, and after it was closed.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use tensorpipe_rpc::{CallError, replicas::ReplicaState};

use super::lab::{
    Ledger, all_gone, assert_unavailable, client_of, replicas_of, sites, soon, states, until,
};

#[tokio::test]
async fn a_call_waits_for_a_server_that_comes_back() {
    let ledger = Ledger::default();
    let (sites, client, _replicas) = all_gone(2, &ledger).await;
    let call = tokio::spawn(client.add(1, 0));
    // Attempts go on meanwhile.
    let came = || sites[1].proxy.came.load(Ordering::SeqCst);
    let before = came();
    until(|| came() > before + 2).await;
    assert!(!call.is_finished());
    sites[1].proxy.mend();
    assert_eq!(soon(call).await.unwrap().unwrap(), 1);
    assert_eq!(ledger.runs(1), 1);
}

#[tokio::test]
async fn a_call_does_not_wait_longer_than_its_deadline() {
    let ledger = Ledger::default();
    let (sites, client, _replicas) = all_gone(2, &ledger).await;
    let call = client.with_deadline(Duration::from_millis(100)).who(1);
    let error = soon(call).await.unwrap_err();
    let CallError::Unavailable {
        replicas: each,
        may_have_run: false,
    } = &error
    else {
        panic!("{error:?}");
    };
    for (one, site) in each.iter().zip(&sites) {
        assert_eq!(*one.url, *site.proxy.url);
        assert!(one.error.is_some());
        assert!(error.to_string().contains(&site.proxy.url), "{error}");
    }
    assert!(
        error.to_string().ends_with("the method did not run"),
        "{error}"
    );
}

/// At its first poll, without a timer: nobody drives the runtime of the replicas.
#[test]
fn a_call_whose_deadline_has_passed_does_not_wait_at_all() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().unwrap();
    let ledger = Ledger::default();
    let (_sites, client, _replicas) = runtime.block_on(all_gone(2, &ledger));
    let call = client.with_deadline(Duration::from_millis(50)).who(1);
    std::thread::sleep(Duration::from_millis(60));
    let error = call.now_or_never().expect("time is up").unwrap_err();
    assert_unavailable(&error, false);
}

#[tokio::test]
async fn a_call_does_not_wait_for_servers_that_were_given_up() {
    let ledger = Ledger::default();
    let sites = sites(2, &ledger).await;
    let (client, replicas) = client_of(replicas_of(&sites).connect_attempts(2)).await;
    // Under way on one, and none is left.
    let call = tokio::spawn(client.second(1));
    until(|| ledger.runs(1) == 1).await;
    sites.iter().for_each(|site| site.proxy.cut());
    let error = soon(call).await.unwrap().unwrap_err();
    assert_unavailable(&error, true);
    until(|| states(&replicas) == [ReplicaState::GivenUp; 2]).await;
    let error = soon(client.second(2)).await.unwrap_err();
    assert_unavailable(&error, false);
}

#[tokio::test]
async fn closing_ends_everything() {
    let ledger = Ledger::default();
    let sites = sites(2, &ledger).await;
    let (client, replicas) = client_of(replicas_of(&sites)).await;
    let running = [tokio::spawn(client.once(1)), tokio::spawn(client.second(2))];
    until(|| ledger.runs(1) + ledger.runs(2) == 2).await;
    soon(replicas.close()).await.unwrap();
    for call in running {
        let error = soon(call).await.unwrap().unwrap_err();
        assert!(error.may_have_run(), "{error:?}");
    }
    let error = soon(client.who(3)).await.unwrap_err();
    assert!(
        !error.may_have_run() && error.to_string().contains("closed"),
        "{error}"
    );
    assert_eq!(states(&replicas), [ReplicaState::Closed; 2]);
    replicas.reconnect();
    for site in &sites {
        until(|| site.server.as_ref().unwrap().pipes().is_empty()).await;
    }
    assert_eq!(states(&replicas), [ReplicaState::Closed; 2]);
}

#[tokio::test]
async fn the_last_handle_client_and_call_ends_everything() {
    let ledger = Ledger::default();
    let sites = sites(2, &ledger).await;
    let (client, replicas) = client_of(replicas_of(&sites)).await;
    let call = tokio::spawn(client.second(1));
    until(|| ledger.runs(1) == 1).await;
    drop((client, replicas));
    // The call goes on, and moves.
    let busy = |site: &super::lab::Site| site.server.as_ref().unwrap().calls_in_flight() > 0;
    sites.iter().find(|site| busy(site)).unwrap().proxy.cut();
    assert_eq!(soon(call).await.unwrap().unwrap(), 2);
    for site in &sites {
        until(|| site.server.as_ref().unwrap().pipes().is_empty()).await;
    }
    let came = |site: &super::lab::Site| site.proxy.came.load(Ordering::SeqCst);
    let before: Vec<usize> = sites.iter().map(came).collect();
    sites.iter().for_each(|site| site.proxy.mend());
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(sites.iter().map(came).collect::<Vec<_>>(), before);
}

#[tokio::test]
async fn dropping_a_call_cancels_it() {
    let ledger = Ledger::default();
    let sites = sites(2, &ledger).await;
    let (client, replicas) = client_of(replicas_of(&sites)).await;
    let call = client.once(1);
    until(|| ledger.runs(1) == 1).await;
    drop(call);
    let busy = |site: &super::lab::Site| site.server.as_ref().unwrap().calls_in_flight();
    until(|| sites.iter().map(busy).sum::<usize>() == 0).await;
    assert!(replicas.status().iter().all(|one| one.calls_in_flight == 0));
}
