//! The unread bytes of all streams of a connection are bounded, and no stream stalls or fails because of that bound.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use futures_util::stream;
use tensorpipe::{Context, Limits};
use tensorpipe_rpc::{CallError, Connection, ServerLimits};

use super::bounds::{calls_go_on, settled};
use super::flow::{Banks, FlowClient, assert_numbered, numbered};
use crate::lab::{in_time, shm, tcp, until};

const ITEM: usize = 2 << 20;

const MOST: usize = 8 << 20;

/// What each stream has to itself.
const OWN: usize = 256 << 10;

const STREAMS: usize = 24;

fn limits() -> ServerLimits {
    let mut limits = ServerLimits::default();
    limits.unread_items = MOST as u64;
    limits
}

/// Tells a story over what goes through the kernel and through rings in shared memory: there the reader has memory of its own.
async fn over_both(test: impl AsyncFn(Banks)) {
    for context in [tcp, shm] {
        let build = || context().build().unwrap();
        let banks = Banks::new(build(), build(), limits());
        in_time(async { test(banks.await).await }).await;
    }
}

/// Bytes of tensors that have come and are kept.
fn kept(context: &Context) -> usize {
    context.pool().stats().outstanding_bytes as usize
}

#[tokio::test]
async fn handlers_that_stall_keep_so_much_together_and_no_more() {
    over_both(async |banks| {
        let made = Arc::new(AtomicUsize::new(0));
        let items = || {
            let made = made.clone();
            stream::repeat_with(move || numbered(ITEM as u64, made.fetch_add(1, Ordering::SeqCst)))
        };
        let calls: Vec<_> = (0..STREAMS)
            .map(|_| banks.client.ignores_it(items()))
            .collect();
        until(|| banks.at_it() == STREAMS).await;
        let most = settled(|| kept(&banks.far)).await;
        assert!(most >= MOST / 2, "{most} bytes: some of it is used");
        assert!(most <= MOST + STREAMS * OWN, "{most} bytes");
        // Each has one on its way, or waiting: none was lost, and none more was made.
        let made = made.load(Ordering::SeqCst);
        assert!((STREAMS..=2 * STREAMS).contains(&made), "{made} items");
        calls_go_on(&banks).await;
        // Whoever reads gets what it reads.
        let eight = stream::iter((0..8).map(|seed| numbered(ITEM as u64, seed)));
        let read = banks.client.first(eight, 8).await.unwrap();
        assert_eq!(read, 8 * ITEM as u64);
        drop(calls);
        banks.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn readers_that_stall_keep_so_much_and_go_on_later_one_after_another() {
    over_both(async |banks| {
        let builder = Connection::builder().context(&banks.near).limits(limits());
        let connection = builder.connect(banks.server.url()).await.unwrap();
        let client = FlowClient::on(&connection).await.unwrap();
        let sizes = vec![ITEM as u64; 3];
        let mut calls: Vec<_> = (0..STREAMS).map(|_| client.tensors(&sizes)).collect();
        until(|| kept(&banks.near) > 0).await;
        let most = settled(|| kept(&banks.near)).await;
        assert!(
            (MOST / 2..=MOST + STREAMS * OWN).contains(&most),
            "{most} bytes"
        );
        calls_go_on(&banks).await;
        for items in &mut calls {
            for seed in 0..3 {
                let item = items.next().await.unwrap().unwrap();
                assert_numbered(&item, ITEM as u64, seed);
            }
            assert!(items.next().await.is_none());
            let most = kept(&banks.near);
            assert!(most <= MOST + STREAMS * OWN + ITEM, "{most} bytes");
        }
        // And all at once: each waits for its own.
        let calls = (0..STREAMS).map(async |_| {
            let mut items = client.tensors(&sizes);
            while let Some(item) = items.next().await {
                assert_eq!(item.unwrap().byte_len(), ITEM);
            }
        });
        join_all(calls).await;
        drop((client, connection));
        banks.is_clean().await;
    })
    .await;
}

/// A server at which four items may wait at once, beside 1 MiB of unread ones.
async fn with_little_room() -> Banks {
    let mut small = Limits::default();
    small.window_messages = 16;
    let (near, far) = (tcp().build().unwrap(), tcp().limits(small).build().unwrap());
    let mut little = ServerLimits::default();
    little.unread_items = 1 << 20;
    Banks::new(near, far, little).await
}

/// Each item that waits at its sender costs some of what the pipe takes in all: not all of it.
#[tokio::test]
async fn where_too_many_wait_further_ones_are_refused_and_calls_go_on() {
    let banks = with_little_room().await;
    let item = numbered(2 << 20, 0);
    let items = || stream::iter(vec![item.clone(); 2]);
    let calls = (0..STREAMS).map(|_| banks.client.ignores_it(items()));
    let mut calls: Vec<_> = calls.map(|call| tokio::spawn(call)).collect();
    // One is read, four wait.
    until(|| calls.iter().filter(|call| call.is_finished()).count() == STREAMS - 5).await;
    calls_go_on(&banks).await;
    let (over, under_way): (Vec<_>, Vec<_>) = calls.drain(..).partition(|call| call.is_finished());
    for call in over {
        let error = call.await.unwrap().unwrap_err();
        assert!(error.to_string().contains("too many streams"), "{error}");
        assert!(matches!(error, CallError::Other(_)), "{error:?}");
        assert!(error.may_have_run(), "its handler had begun");
    }
    assert_eq!(under_way.len(), 5);
    under_way.iter().for_each(tokio::task::JoinHandle::abort);
    join_all(under_way).await;
    banks.is_clean().await;
}

/// Asked for or not, and however often.
#[tokio::test]
async fn an_item_for_which_there_was_no_room_comes_when_there_is_some() {
    let banks = with_little_room().await;
    let pipe = banks.client.connection().pipe().clone();
    let (first, second) = (numbered(2 << 20, 0), numbered(5 << 20, 1));
    for _ in 0..6 {
        let takes_all = banks.client.ignores_it(stream::iter([first.clone()]));
        until(|| kept(&banks.far) >= first.byte_len()).await;
        let waits = banks.client.ignores_it(stream::iter([second.clone()]));
        until(|| banks.at_it() == 2 && pipe.unwritten() == 1).await;
        assert!(kept(&banks.far) < second.byte_len());
        drop(takes_all);
        until(|| kept(&banks.far) >= second.byte_len()).await;
        drop(waits);
        banks.is_clean().await;
    }
}

/// What a stream may send before anybody reads is its own, so there may not be any number of them.
#[tokio::test]
async fn streams_too_many_to_have_room_are_refused_before_they_send() {
    let mut little = ServerLimits::default();
    little.unread_items = 1 << 20;
    let build = || tcp().build().unwrap();
    let banks = Banks::new(build(), build(), little).await;
    let items = || stream::repeat_with(|| numbered(30 << 10, 0));
    const ROOM: usize = 64;
    let calls = (0..ROOM + 40).map(|_| banks.client.ignores_it(items()));
    let calls: Vec<_> = calls.map(|call| tokio::spawn(call)).collect();
    until(|| calls.iter().filter(|call| call.is_finished()).count() == 40).await;
    let most = settled(|| kept(&banks.far)).await;
    println!("{} KiB", most >> 10);
    // A quarter more for blocks of the pool.
    assert!(most <= (ROOM * OWN + (1 << 20)) * 5 / 4, "{most} bytes");
    calls_go_on(&banks).await;
    let (over, under_way): (Vec<_>, Vec<_>) =
        calls.into_iter().partition(|call| call.is_finished());
    for call in over {
        let error = call.await.unwrap().unwrap_err();
        assert!(matches!(error, CallError::Overloaded(_)), "{error:?}");
        assert!(!error.may_have_run());
        assert!(error.to_string().contains("unread_items"), "{error}");
    }
    under_way.iter().for_each(tokio::task::JoinHandle::abort);
    join_all(under_way).await;
    banks.is_clean().await;
}
