//! Servers join a set of replicas and leave it while calls are made.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tensorpipe::{Error, Misuse};
use tensorpipe_rpc::{
    ConnectError, Replicas,
    replicas::{ReplicaState, ReplicaStatus},
};

use super::lab::*;

fn names(replicas: &Replicas, sites: &[Site]) -> Vec<usize> {
    let status = replicas.status();
    let name = |one: &ReplicaStatus| sites.iter().position(|site| *site.proxy.url == *one.url);
    status.iter().map(|one| name(one).unwrap()).collect()
}

/// Names these of the sites.
fn name(replicas: &Replicas, sites: &[Site], named: &[usize]) {
    let urls = named.iter().map(|index| &sites[*index].proxy.url);
    replicas.set_urls(urls).unwrap();
}

/// A client of the first one, made on the last one: a client keeps the connection that it was made on.
async fn client_made_elsewhere(sites: &[Site]) -> (WorkClient, Replicas) {
    let last = sites.len() - 1;
    let (client, replicas) = client_of(replicas_of(&sites[last..])).await;
    name(&replicas, sites, &[0]);
    all_live(&replicas).await;
    (client, replicas)
}

async fn all_live(replicas: &Replicas) {
    let is_live = |state: &ReplicaState| *state == ReplicaState::Live;
    until(|| states(replicas).iter().all(is_live)).await;
}

#[tokio::test]
async fn whoever_is_named_gets_calls_and_whoever_is_not_gets_none() {
    let ledger = Ledger::default();
    let sites = sites(4, &ledger).await;
    let (client, replicas) = client_of(replicas_of(&sites[..2])).await;
    for named in [&[1, 2][..], &[3, 2, 1], &[0], &[0, 1, 2, 3]] {
        name(&replicas, &sites, named);
        all_live(&replicas).await;
        let mut called = Vec::new();
        for id in 0..2 * named.len() as u64 {
            called.push(soon(client.who(id)).await.unwrap() as usize);
        }
        called.sort_unstable();
        let mut each_twice = [named, named].concat();
        each_twice.sort_unstable();
        assert_eq!(called, each_twice);
    }
    // In the order in which they were named first since they were not.
    assert_eq!(names(&replicas, &sites), [0, 1, 2, 3]);
}

#[tokio::test]
async fn one_that_is_named_as_before_keeps_its_connection() {
    let ledger = Ledger::default();
    let sites = sites(3, &ledger).await;
    let (client, replicas) = client_of(replicas_of(&sites[..2])).await;
    let held = client.second(1);
    let busy = |site: &Site| site.server.as_ref().unwrap().calls_in_flight() == 1;
    until(|| sites.iter().any(busy)).await;
    let stays = sites.iter().position(busy).unwrap();
    name(&replicas, &sites, &[2, stays, stays]);
    all_live(&replicas).await;
    // Named twice it is two replicas, of which one is new.
    assert_eq!(names(&replicas, &sites), [stays, 2, stays]);
    name(&replicas, &sites, &[stays]);
    assert_eq!(names(&replicas, &sites), [stays]);
    assert_eq!(replicas.status()[0].calls_in_flight, 1);
    sites[stays].proxy.cut();
    sites[stays].proxy.mend();
    assert_eq!(soon(held).await.unwrap(), 2);
}

#[tokio::test]
async fn of_two_at_one_address_the_live_one_stays() {
    let ledger = Ledger::default();
    let sites = sites(2, &ledger).await;
    let (client, replicas) = client_of(replicas_of(&sites[..1]).connect_attempts(1)).await;
    // Only the first one is cut, and given up.
    sites[0].proxy.cut();
    until(|| states(&replicas) == [ReplicaState::GivenUp]).await;
    sites[0].proxy.mend();
    name(&replicas, &sites, &[0, 0]);
    until(|| states(&replicas) == [ReplicaState::GivenUp, ReplicaState::Live]).await;
    name(&replicas, &sites, &[0]);
    assert_eq!(states(&replicas), [ReplicaState::Live]);
    assert_eq!(soon(client.who(1)).await.unwrap(), 0);
}

#[tokio::test]
async fn a_call_under_way_ends_where_it_is_and_then_the_connection_does() {
    let ledger = Ledger::default();
    let sites = sites(3, &ledger).await;
    let (client, replicas) = client_made_elsewhere(&sites).await;
    let call = client.add(1, 300);
    let server = sites[0].server.as_ref().unwrap();
    until(|| ledger.runs(1) == 1).await;
    name(&replicas, &sites, &[1]);
    assert_eq!(soon(client.who(2)).await.unwrap(), 1);
    assert_eq!(soon(call).await.unwrap(), 0);
    assert_eq!(ledger.runs(1), 1);
    until(|| server.pipes().is_empty()).await;
}

#[tokio::test]
async fn a_reference_stays_good_and_keeps_the_connection() {
    let ledger = Ledger::default();
    let sites = sites(3, &ledger).await;
    let (client, replicas) = client_made_elsewhere(&sites).await;
    let stays = soon(client.stays(1)).await.unwrap();
    name(&replicas, &sites, &[1]);
    all_live(&replicas).await;
    assert_eq!(soon(client.both(2, &stays)).await.unwrap(), (0, 0));
    assert_eq!(soon(client.who(3)).await.unwrap(), 1);
    let server = sites[0].server.as_ref().unwrap();
    assert_eq!(server.pipes().len(), 1);
    drop(stays);
    until(|| server.pipes().is_empty()).await;
}

#[tokio::test]
async fn a_call_that_waits_goes_to_one_that_is_named_meanwhile() {
    let ledger = Ledger::default();
    let (_gone, client, replicas) = all_gone(2, &ledger).await;
    let waiting = [client.who(1), client.who(2)];
    let there = sites(1, &ledger).await;
    name(&replicas, &there, &[0]);
    for call in waiting {
        assert_eq!(soon(call).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn a_list_that_cannot_be_meant_changes_nothing() {
    let ledger = Ledger::default();
    let sites = sites(1, &ledger).await;
    let (client, replicas) = client_of(replicas_of(&sites)).await;
    let url = &*sites[0].proxy.url;
    for wrong in [vec![], vec![url, "no url"], vec![url, "nowhere://here"]] {
        let error = replicas.set_urls(&wrong).unwrap_err();
        println!("{wrong:?}: {error}");
        let ConnectError::Pipe(Error::Misuse(_)) = error else {
            panic!("{error:?}");
        };
        assert_eq!(names(&replicas, &sites), [0]);
    }
    assert_eq!(soon(client.who(1)).await.unwrap(), 0);
    replicas.close().await.unwrap();
    let error = replicas.set_urls([url]).unwrap_err();
    assert!(
        matches!(&error, ConnectError::Pipe(Error::Misuse(Misuse::Other(text))) if text.contains("closed")),
        "{error:?}"
    );
    assert_eq!(states(&replicas), [ReplicaState::Closed]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_list_changes_no_call_fails_and_nothing_piles_up() {
    let ledger = Ledger::default();
    let sites = sites(4, &ledger).await;
    let (client, replicas) = client_made_elsewhere(&sites).await;
    let (done, made) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let callers = (0..4).map(|_| {
        let (client, done, made) = (client.clone(), done.clone(), made.clone());
        tokio::spawn(async move {
            while !done.load(Ordering::SeqCst) {
                let id = made.fetch_add(1, Ordering::SeqCst);
                client.add(id, id % 3).await.unwrap();
            }
        })
    });
    let callers: Vec<_> = callers.collect();
    for round in 0..100usize {
        // Each stays out for a while, and one is always there.
        let named = (0..4).filter(|index| index + 1 != round % 4 && (round / 4) % 3 != *index % 3);
        let mut named: Vec<_> = named.collect();
        named.push(round % 4);
        name(&replicas, &sites, &named);
        tokio::time::sleep(Duration::from_millis((round % 5) as u64)).await;
    }
    done.store(true, Ordering::SeqCst);
    for caller in callers {
        soon(caller).await.unwrap();
    }
    let made = made.load(Ordering::SeqCst);
    println!("{made} calls");
    assert!((0..made).all(|id| ledger.runs(id) == 1));
    name(&replicas, &sites, &[0]);
    let pipes = |site: &Site| site.server.as_ref().unwrap().pipes().len();
    until(|| sites.iter().map(pipes).eq([1, 0, 0, 1])).await;
}
