//! Figures of a call over replicas: which server answered, and which attempts came before.

use std::time::Duration;

use futures_util::stream;
use tensorpipe_rpc::CallStats;

use super::lab::{
    Ledger, all_gone, assert_unavailable, client_of, cut_the_busy, replicas_of, sites, soon, until,
};

#[tokio::test]
async fn a_call_says_which_server_answered() {
    let ledger = Ledger::default();
    let sites = sites(2, &ledger).await;
    let (client, _replicas) = client_of(replicas_of(&sites)).await;
    for id in 0..4 {
        let (who, stats) = soon(client.with_stats().who(id).stats()).await;
        let [attempt] = &stats.attempts[..] else {
            panic!("{stats:?}");
        };
        assert_eq!(
            attempt.url.as_ref(),
            Some(&sites[who.unwrap() as usize].proxy.url)
        );
        assert_eq!(attempt.error, None);
        assert!(attempt.took <= stats.round_trip);
        assert!(stats.handling().unwrap() <= attempt.took);
        assert_eq!(stats.bytes_copied(), Some(0));
    }
}

#[tokio::test]
async fn a_call_that_moved_says_where_it_had_been() {
    let ledger = Ledger::default();
    let sites = sites(2, &ledger).await;
    let (client, _replicas) = client_of(replicas_of(&sites)).await;
    let call = tokio::spawn(client.with_stats().second(1).stats());
    until(|| ledger.runs(1) == 1).await;
    let dead = cut_the_busy(&sites).await;
    let (runs, stats) = soon(call).await.unwrap();
    assert_eq!(runs.unwrap(), 2);
    let [first, last] = &stats.attempts[..] else {
        panic!("{stats:?}");
    };
    assert_eq!(first.url.as_ref(), Some(&sites[dead].proxy.url));
    assert!(first.error.is_some(), "{first:?}");
    assert_eq!(last.url.as_ref(), Some(&sites[1 - dead].proxy.url));
    assert_eq!(last.error, None);
    assert!(first.took + last.took <= stats.round_trip);
    let server = stats.server.unwrap();
    let parts = stats.queue + server.waiting + server.handling + stats.wire().unwrap();
    assert_eq!(parts, last.took, "of the one that was answered");
}

#[tokio::test]
async fn a_call_that_failed_everywhere_says_so_of_each() {
    let ledger = Ledger::default();
    let sites = sites(2, &ledger).await;
    let (client, _replicas) = client_of(replicas_of(&sites)).await;
    let call = tokio::spawn(client.with_stats().once(1).stats());
    until(|| ledger.runs(1) == 1).await;
    let dead = cut_the_busy(&sites).await;
    let (error, stats) = soon(call).await.unwrap();
    let error = error.unwrap_err();
    assert!(error.may_have_run());
    let [attempt] = &stats.attempts[..] else {
        panic!("{stats:?}");
    };
    assert_eq!(attempt.url.as_ref(), Some(&sites[dead].proxy.url));
    assert_eq!(attempt.error, Some(error.to_string()));
    assert_eq!((stats.server, stats.bytes_copied()), (None, None));
}

#[tokio::test]
async fn a_call_for_which_no_server_was_there_says_how_long_it_waited() {
    let ledger = Ledger::default();
    let (_sites, client, _replicas) = all_gone(2, &ledger).await;
    let deadline = Duration::from_millis(30);
    let client = client.with_stats().with_deadline(deadline);
    let (error, stats) = soon(client.who(1).stats()).await;
    assert_unavailable(&error.unwrap_err(), false);
    assert!(
        stats.is_measured() && stats.round_trip >= deadline,
        "{stats:?}"
    );
    assert!(stats.to_string().ends_with(", sent to nobody"), "{stats}");
    let mut nothing_else = CallStats::default();
    nothing_else.round_trip = stats.round_trip;
    assert_eq!(stats, nothing_else);
}

#[tokio::test]
async fn a_call_that_is_made_once_has_figures_too() {
    let ledger = Ledger::default();
    let sites = sites(2, &ledger).await;
    let (client, _replicas) = client_of(replicas_of(&sites)).await;
    let client = client.with_stats();
    let (sum, stats) = soon(client.sum(1, stream::iter(0..100)).stats()).await;
    assert_eq!(sum.unwrap(), 4950);
    assert_eq!(stats.argument.unwrap().items, 100);
    let url = stats.attempts[0].url.as_ref();
    assert!(sites.iter().any(|site| url == Some(&site.proxy.url)));
    let stays = soon(client.stays(2)).await.unwrap();
    let (both, stats) = soon(client.both(3, &stays).stats()).await;
    let (here, stayed) = both.unwrap();
    assert_eq!(here, stayed);
    assert_eq!(
        stats.attempts[0].url.as_ref(),
        Some(&sites[here as usize].proxy.url)
    );
}
