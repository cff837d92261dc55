//! A reader that stalls holds up its own stream, and nothing else.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt, poll, stream};
use tensorpipe::Limits;
use tensorpipe_rpc::ServerLimits;
use tokio::sync::mpsc::unbounded_channel;

use super::flow::{Banks, assert_numbered, numbered, over_each};
use crate::lab::{tcp, until};

/// Waits until the number has stayed as it is for a while: more than it takes to send what may be sent.
pub(super) async fn settled(number: impl Fn() -> usize) -> usize {
    loop {
        let before = number();
        tokio::time::sleep(Duration::from_millis(150)).await;
        if number() == before {
            return before;
        }
    }
}

/// What a stream may be ahead of its reader, in items: what is allowed, and a message that is being put together.
fn most(bytes: usize) -> usize {
    (1024 + 256).min((4 << 20) / bytes + 256).max(2)
}

#[tokio::test]
async fn a_stalled_reader_stops_its_stream_and_no_other_call() {
    over_each(async |banks| {
        for bytes in [64, 4096, 1 << 20] {
            let before = banks.made();
            let mut tensors = banks.client.forever(bytes as u64);
            // So much that the reader has said how much it takes.
            for seed in 0..200 {
                let tensor = tensors.next().await.unwrap().unwrap();
                assert_numbered(&tensor, bytes as u64, seed);
            }
            let made = settled(|| banks.made() - before).await;
            assert!(
                made >= 200 && made <= 200 + most(bytes),
                "{made} of {bytes}"
            );
            calls_go_on(&banks).await;
            // It goes on where it stopped.
            for seed in 200..400 {
                let tensor = tensors.next().await.unwrap().unwrap();
                assert_numbered(&tensor, bytes as u64, seed);
            }
            drop(tensors);
            banks.is_clean().await;
        }
    })
    .await;
}

/// As many messages are queued as may be, which other calls have written. Their own answer says so.
#[tokio::test]
async fn calls_that_fill_the_queue_end_no_stream() {
    let (mut near, mut far) = (Limits::default(), Limits::default());
    near.queued_writes = 16;
    far.window_messages = 4;
    let build = |limits| tcp().limits(limits).build().unwrap();
    let banks = Banks::new(build(near), build(far), ServerLimits::default()).await;
    let (put, mut numbers) = unbounded_channel();
    let numbers = stream::poll_fn(move |cx| numbers.poll_recv(cx));
    let sum = tokio::spawn(banks.client.sum(numbers).into_future());
    until(|| banks.at_it() == 1).await;
    // The peer does not run until this task waits.
    let calls = (0..32).map(|_| banks.lab.echo("full").into_future());
    let mut calls: Vec<_> = calls.map(|call| Box::pin(call.fuse())).collect();
    let mut refused = 0;
    for call in &mut calls {
        refused += usize::from(matches!(poll!(call), Poll::Ready(Err(_))));
    }
    // At most four are read ahead, and sixteen wait.
    assert!(refused >= 32 - 4 - 16, "{refused}");
    for number in 1..=100 {
        put.send(number).unwrap();
    }
    drop(put);
    assert_eq!(sum.await.unwrap().unwrap(), 5050);
    drop(calls);
    banks.is_clean().await;
}

#[tokio::test]
async fn a_handler_that_stalls_stops_the_callers_stream_and_no_other_call() {
    over_each(async |banks| {
        for bytes in [64, 4096, 1 << 20] {
            let made = Arc::new(AtomicUsize::new(0));
            let counted = made.clone();
            let tensors = stream::repeat_with(move || {
                counted.fetch_add(1, Ordering::SeqCst);
                numbered(bytes as u64, 0)
            });
            let call = banks.client.ignores_it(tensors);
            until(|| made.load(Ordering::SeqCst) > 0).await;
            let made = settled(|| made.load(Ordering::SeqCst)).await;
            // It has read nothing, and said nothing.
            let most = 64.min((256 << 10) / bytes + 64);
            assert!(made <= most + 1, "{made} of {bytes}");
            calls_go_on(&banks).await;
            drop(call);
            banks.is_clean().await;
        }
    })
    .await;
}

pub(super) async fn calls_go_on(banks: &Banks) {
    for _ in 0..20 {
        assert_eq!(banks.lab.echo("meanwhile").await.unwrap(), "meanwhile");
    }
    let other: Vec<_> = banks.client.count(2000).collect().await;
    assert_eq!(other.len(), 2000);
    let back = banks.lab.bounce(numbered(2 << 20, 7)).await.unwrap();
    assert_numbered(&back, 2 << 20, 7);
}

#[tokio::test]
async fn hundreds_of_stalled_streams_leave_the_connection_free() {
    over_each(async |banks| {
        let mut stalled = Vec::new();
        for _ in 0..200 {
            let mut tensors = banks.client.forever(512);
            tensors.next().await.unwrap().unwrap();
            stalled.push(tensors);
        }
        calls_go_on(&banks).await;
        drop(stalled);
        banks.is_clean().await;
    })
    .await;
}

/// Sizes of items of which the first ones leave this much of what may be sent unasked, in bytes.
fn nearly_all(left: usize) -> Vec<u64> {
    // Each goes alone, behind a header and with a few bytes that say what it is.
    let (alone, many) = (20_000, (256 << 10) / 20_100);
    let rest = (256 << 10) - many * 20_040 - left;
    let mut sizes = vec![alone; many];
    sizes.push(rest as u64);
    sizes
}

#[tokio::test]
async fn a_large_item_behind_a_small_one_is_not_more_than_the_reader_takes() {
    over_each(async |banks| {
        for left in [100, 400, 1000] {
            // The small one is ready, and takes what is left; the large one does not go with it.
            let sizes = [nearly_all(left), vec![3000, 20_000, 3000, 20_000]].concat();
            let mut tensors = banks.client.tensors(&sizes);
            tokio::time::sleep(Duration::from_millis(50)).await;
            for (seed, bytes) in sizes.iter().enumerate() {
                let tensor = tensors.next().await.unwrap().unwrap();
                assert_numbered(&tensor, *bytes, seed);
            }
            assert!(tensors.next().await.is_none());
            // The same to a handler that has not said anything.
            let given = sizes.clone().into_iter().enumerate();
            let given = given.map(|(seed, bytes)| numbered(bytes, seed));
            let call = banks.client.ignores_it(stream::iter(given));
            let ended = tokio::time::timeout(Duration::from_millis(100), call).await;
            assert!(ended.is_err(), "{ended:?}");
        }
        banks.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn a_reader_whose_items_are_there_leaves_other_tasks_their_turn() {
    over_each(async |banks| {
        let mut items = banks.client.count(100_000);
        // So many that the next thousand comes at once.
        for _ in 0..100 {
            items.next().await.unwrap().unwrap();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        let others = Arc::new(AtomicUsize::new(0));
        let other = others.clone();
        tokio::spawn(async move { other.fetch_add(1, Ordering::SeqCst) });
        let mut before = 0;
        while others.load(Ordering::SeqCst) == 0 {
            items.next().await.unwrap().unwrap();
            before += 1;
        }
        assert!(before <= 256, "{before} items");
    })
    .await;
}

/// What the reader takes ends within a small item, behind which a large one is ready: that one waits, and is not sent along.
#[tokio::test]
async fn a_large_item_behind_the_last_small_one_that_there_is_room_for_waits() {
    over_each(async |banks| {
        let sizes = [(256 << 10) - 600, 1000, 1 << 20, 4 << 20, 10];
        let mut tensors = banks.client.tensors(&sizes);
        // Nothing has been read yet, so nothing more is allowed.
        settled(|| banks.client.connection().pipe().stats().bytes_in as usize).await;
        for (seed, bytes) in sizes.iter().enumerate() {
            let tensor = tensors.next().await.unwrap().unwrap();
            assert_numbered(&tensor, *bytes, seed);
        }
        assert!(tensors.next().await.is_none());
        drop(tensors);
        banks.is_clean().await;
    })
    .await;
}
