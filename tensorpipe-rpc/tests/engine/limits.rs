//! An overloaded server refuses calls before their tensors move, and recovers.

use std::collections::BTreeMap;
use std::time::Duration;

use tensorpipe::Limits;
use tensorpipe_rpc::{CallError, ServerLimits};

use super::lab::{Both, LabClient, MIB, both, over_each_with, tcp, tensor, until};
use super::raw::{FAILURE, VALUE, call_id, raw_call};

fn limits(calls: usize, calls_per_connection: usize) -> ServerLimits {
    let mut limits = ServerLimits::default();
    limits.calls = calls;
    limits.calls_per_connection = calls_per_connection;
    limits
}

/// Its server may queue fewer messages than it may handle calls. The answers that find no room are failures, and come later.
#[tokio::test]
async fn a_caller_that_does_not_read_for_a_while_gets_all_answers() {
    const CALLS: u64 = 60;
    const MS_2000: [u8; 2] = [0xd0, 0x0f];
    let (mut few, mut many) = (Limits::default(), Limits::default());
    few.window_messages = 4;
    many.queued_writes = 16;
    let both = both(tcp().limits(few), tcp().limits(many), Default::default()).await;
    let url = both.server.url().to_string();
    let pipe = both.near.connect(url).await.unwrap();
    for call in 0..CALLS {
        pipe.send(raw_call("sleep", call, &MS_2000)).unwrap();
    }
    until(|| both.at_it() == CALLS as usize).await;
    until(|| both.server.calls_in_flight() == 0).await;
    let mut answers = BTreeMap::new();
    for _ in 0..CALLS {
        let answer = tokio::time::timeout(Duration::from_secs(20), pipe.read()).await;
        let answer = answer.expect("an answer was lost").unwrap();
        answers.insert(call_id(&answer.metadata), answer.metadata[0]);
    }
    assert_eq!(answers.len(), CALLS as usize);
    let values = answers.values().filter(|kind| **kind == VALUE).count();
    let failures = answers.values().filter(|kind| **kind == FAILURE).count();
    assert!(values >= 16 && failures > 0 && values + failures == answers.len());
}

#[tokio::test]
async fn none_at_all() {
    let mut limits = limits(usize::MAX, usize::MAX);
    limits.references = usize::MAX;
    limits.drain = Duration::MAX;
    limits.longest_call = Duration::MAX;
    over_each_with(limits, async |both| {
        let running = both.client.sleep(2);
        until(|| both.at_it() == 1).await;
        let Both { server, client, .. } = both;
        let (given_up, ended) = tokio::join!(server.shutdown(), running);
        assert_eq!((given_up, ended.unwrap()), (0, 2));
        drop(client);
    })
    .await;
}

async fn is_overloaded(both: &Both, client: &LabClient) {
    let pool = both.far.pool().stats();
    let before = client.connection().pipe().stats().bytes_out;
    for len in [10, 10 << 20] {
        let error = client.length(tensor(len, 1)).await.unwrap_err();
        assert!(matches!(error, CallError::Overloaded(_)), "{error}");
        assert!(!error.may_have_run());
        assert!(
            error
                .to_string()
                .contains("the limit (`ServerLimits::calls"),
            "{error}"
        );
    }
    let moved = client.connection().pipe().stats().bytes_out - before;
    assert!(moved < 1 << 20, "{moved} bytes");
    assert_eq!(
        both.far.pool().stats().outstanding_bytes,
        pool.outstanding_bytes
    );
}

#[tokio::test]
async fn of_one_connection() {
    over_each_with(limits(100, 3), async |both| {
        let running: Vec<_> = (0..3).map(|_| both.client.sleep(60_000)).collect();
        until(|| both.at_it() == 3).await;
        is_overloaded(&both, &both.client).await;
        // Others are not affected.
        let other = LabClient::connect_with(&both.near, both.server.url())
            .await
            .unwrap();
        assert_eq!(other.length(tensor(1 << 20, 1)).await.unwrap(), 1 << 20);
        drop(running);
        both.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn of_all_connections() {
    over_each_with(limits(3, 100), async |both| {
        let other = LabClient::connect_with(&both.near, both.server.url())
            .await
            .unwrap();
        let running: Vec<_> = (0..3).map(|_| both.client.sleep(60_000)).collect();
        until(|| both.at_it() == 3).await;
        is_overloaded(&both, &other).await;
        is_overloaded(&both, &both.client).await;
        drop(running);
        both.is_clean().await;
        assert_eq!(other.length(tensor(1 << 20, 1)).await.unwrap(), 1 << 20);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_has_its_answer_has_its_place_back() {
    for limits in [limits(100, 1), limits(1, 100)] {
        over_each_with(limits, async |both| {
            for i in 0..500 {
                // On tasks of their own, and on the connection's.
                both.client.sleep(0).await.unwrap();
                let len: usize = 10 + i % 2 * 10_000;
                assert_eq!(
                    both.client.length(tensor(len, 1)).await.unwrap(),
                    len as u64
                );
            }
            both.is_clean().await;
        })
        .await;
    }
}

#[tokio::test]
async fn one_connection_does_not_take_the_places_of_another() {
    over_each_with(limits(12, 100), async |both| {
        let connect = async || {
            let url = both.server.url().to_string();
            LabClient::connect_with(&both.near, url).await.unwrap()
        };
        // As long as it is alone all are its.
        let running: Vec<_> = (0..12).map(|_| both.client.sleep(60_000)).collect();
        until(|| both.at_it() == 12).await;
        is_overloaded(&both, &both.client).await;
        drop(running);
        until(|| both.server.calls_in_flight() == 0).await;
        // Two others have asked for nothing: a sixth each is kept for them.
        let (second, third) = (connect().await, connect().await);
        until(|| both.server.pipes().len() == 3).await;
        let greedy: Vec<_> = (0..8).map(|_| both.client.sleep(60_000)).collect();
        until(|| both.at_it() == 8).await;
        is_overloaded(&both, &both.client).await;
        let late: Vec<_> = [&second, &second, &third, &third]
            .map(|client| client.sleep(60_000))
            .into();
        until(|| both.at_it() == 12).await;
        is_overloaded(&both, &second).await;
        // What they have had is anybody's, beyond what they may still ask for.
        drop(late);
        until(|| both.server.calls_in_flight() == 8).await;
        is_overloaded(&both, &both.client).await;
        drop((second, third));
        until(|| both.server.pipes().len() == 1).await;
        let more: Vec<_> = (0..4).map(|_| both.client.sleep(60_000)).collect();
        until(|| both.at_it() == 12).await;
        drop((greedy, more));
        both.is_clean().await;
    })
    .await;
}

/// It speaks just enough of the calls' protocol to ask for much and take nothing.
#[tokio::test]
async fn replies_that_their_caller_does_not_take_are_bounded() {
    over_each_with(limits(1000, 8), async |both| {
        let pipe = both
            .near
            .connect(both.server.url().to_string())
            .await
            .unwrap();
        let server = || {
            let pipes = both.server.pipes();
            pipes.into_iter().map(|pipe| pipe.unwritten()).max()
        };
        for call in 0..500u64 {
            pipe.send(raw_call("zeros", call, &MIB)).unwrap();
            if call % 16 == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        // Replies wait for a read that never comes: not five hundred.
        until(|| server().is_some_and(|waiting| waiting > 8)).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let waiting = server().unwrap();
        assert!(waiting <= 8 + 64 + 8, "{waiting} replies wait");
        drop(pipe);
        both.is_clean().await;
    })
    .await;
}
