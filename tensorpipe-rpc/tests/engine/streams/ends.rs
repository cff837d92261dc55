//! How streams end before their time: dropped, late, cut off, drained.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use tensorpipe::DType;
use tensorpipe::Tensor;
use tensorpipe_rpc::{CallError, Connection, ServerLimits};

use super::flow::{Banks, FlowClient, over_each};
use crate::lab::{AtIt, tcp, until};

/// Numbers without end, and whether somebody still has them.
fn numbers() -> (impl Stream<Item = u64> + Send, Arc<AtomicUsize>) {
    let held = Arc::new(AtomicUsize::new(0));
    let guard = AtIt::new(&held);
    let numbers = stream::iter(0..).map(move |i| {
        let _guard = &guard;
        i
    });
    (numbers, held)
}

#[tokio::test]
async fn dropping_a_stream_ends_the_one_behind_it() {
    over_each(async |banks| {
        for (bytes, items) in [(8, 0), (8, 1), (8, 500), (1 << 20, 1), (1 << 20, 6)] {
            let mut tensors = banks.client.forever(bytes);
            for _ in 0..items {
                tensors.next().await.unwrap().unwrap();
            }
            drop(tensors);
            banks.is_clean().await;
        }
    })
    .await;
}

#[tokio::test]
async fn dropping_the_call_drops_the_stream_that_it_was_given() {
    over_each(async |banks| {
        let (numbers, held) = numbers();
        let call = banks.client.sum(numbers);
        until(|| banks.at_it() == 1).await;
        assert_eq!(held.load(Ordering::SeqCst), 1);
        drop(call);
        until(|| held.load(Ordering::SeqCst) == 0).await;
        banks.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn a_deadline_ends_a_stream_at_both_ends() {
    over_each(async |banks| {
        let client = banks.client.with_deadline(Duration::from_millis(150));
        let mut items = client.slow(1_000_000, 5);
        let mut seen = 0;
        let error = loop {
            match items.next().await {
                Some(Ok(item)) => assert_eq!(item, seen),
                Some(Err(error)) => break error,
                None => panic!("it has a million items"),
            }
            seen += 1;
        };
        let CallError::Deadline {
            items: Some(come), ..
        } = error
        else {
            panic!("{error}")
        };
        assert_eq!(come, seen);
        let said = error.to_string();
        assert!(said.contains("for the whole stream"), "{said}");
        assert!(items.next().await.is_none());
        // And one whose argument never ends.
        let (numbers, held) = numbers();
        let error = client.sum(numbers).await.unwrap_err();
        assert!(matches!(error, CallError::Deadline { .. }), "{error}");
        until(|| held.load(Ordering::SeqCst) == 0).await;
        banks.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn a_handler_that_has_enough_answers_and_the_rest_is_not_sent() {
    over_each(async |banks| {
        let tensors = stream::repeat_with(|| Tensor::zeros(DType::U8, [300_000]).unwrap());
        assert_eq!(banks.client.first(tensors, 5).await.unwrap(), 1_500_000);
        banks.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_the_handler_drops_ends_while_the_call_goes_on() {
    over_each(async |banks| {
        let (numbers, held) = numbers();
        let mut call = banks.client.drops_it(numbers, 60_000);
        let dropped = until(|| held.load(Ordering::SeqCst) == 0);
        tokio::select! {
            ended = &mut call => panic!("{ended:?}"),
            () = dropped => {}
        }
        drop(call);
        banks.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn a_stream_given_as_an_argument_that_panics_is_the_callers_error() {
    over_each(async |banks| {
        let numbers = stream::iter(0..).inspect(|i: &u64| assert!(*i < 3, "no further"));
        let error = banks.client.sum(numbers).await.unwrap_err();
        assert!(error.to_string().contains("no further"), "{error}");
        banks.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn a_caller_that_sleeps_hears_that_the_stream_it_gave_is_broken() {
    over_each(async |banks| {
        let (tell, told) = tokio::sync::oneshot::channel::<()>();
        let numbers = stream::once(async { 1 }).chain(stream::once(async {
            let _ = told.await;
            panic!("no further")
        }));
        let call = banks.client.sum(numbers);
        let call = tokio::spawn(call);
        until(|| banks.at_it() == 1).await;
        tokio::time::sleep(Duration::from_millis(30)).await;
        tell.send(()).unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(5), call).await;
        let error = ended.expect("it is told").unwrap().unwrap_err();
        assert!(error.to_string().contains("no further"), "{error}");
        banks.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn a_server_that_goes_away_ends_streams_with_an_error() {
    over_each(async |banks| {
        let mut items = banks.client.slow(1_000_000, 1);
        items.next().await.unwrap().unwrap();
        let (numbers, held) = numbers();
        let call = banks.client.sum(numbers);
        for pipe in banks.server.pipes() {
            pipe.close().await.unwrap();
        }
        let error = loop {
            if let Err(error) = items.next().await.unwrap() {
                break error;
            }
        };
        assert!(error.may_have_run(), "{error}");
        assert!(
            matches!(
                error,
                CallError::Connection { .. } | CallError::ShuttingDown
            ),
            "{error}"
        );
        call.await.unwrap_err();
        until(|| held.load(Ordering::SeqCst) == 0).await;
        until(|| banks.at_it() == 0).await;
    })
    .await;
}

#[tokio::test]
async fn a_drain_lets_streams_end_and_takes_no_new_calls() {
    over_each(async |banks| {
        let Banks {
            client,
            server,
            river,
            ..
        } = banks;
        // More than may be sent without the reader's word: credit still gets through.
        let mut items = client.slow(300, 1);
        let (give, mut given) = tokio::sync::mpsc::unbounded_channel();

        let sum = client.sum(stream::poll_fn(move |cx| given.poll_recv(cx)));
        give.send(1).unwrap();
        items.next().await.unwrap().unwrap();
        until(|| river.at_it.load(Ordering::SeqCst) == 2).await;
        let shutdown = tokio::spawn(server.shutdown());
        let refused = async {
            loop {
                match client.count(1).next().await {
                    Some(Err(CallError::ShuttingDown)) => break,
                    Some(Ok(_)) => tokio::task::yield_now().await,
                    other => panic!("{other:?}"),
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(5), refused)
            .await
            .unwrap();
        // An argument goes on, too.
        give.send(2).unwrap();
        drop(give);
        assert_eq!(sum.await.unwrap(), 3);
        let mut seen = 1;
        while let Some(item) = items.next().await {
            assert_eq!(item.unwrap(), seen);
            seen += 1;
        }
        assert_eq!(seen, 300);
        assert_eq!(shutdown.await.unwrap(), 0);
    })
    .await;
}

#[tokio::test]
async fn a_stream_counts_as_a_call_until_it_ends() {
    let mut limits = ServerLimits::default();
    limits.calls_per_connection = 2;
    let build = || tcp().build().unwrap();
    let banks = Banks::new(build(), build(), limits).await;
    let mut first = banks.client.forever(8);
    let second = banks.client.forever(8);
    first.next().await.unwrap().unwrap();
    let refused = banks.client.count(1).next().await;
    assert!(
        matches!(refused, Some(Err(CallError::Overloaded(_)))),
        "{refused:?}"
    );
    drop((first, second));
    until(|| banks.server.calls_in_flight() == 0).await;
    banks.is_clean().await;
}

/// What a handler's own task learns of a stream whose call is over.
#[tokio::test]
async fn a_task_that_reads_a_stream_learns_that_its_call_is_over() {
    over_each(async |banks| {
        let read = async || {
            until(|| !banks.river.elsewhere.lock().unwrap().is_empty()).await;
            banks.river.elsewhere.lock().unwrap().remove(0)
        };
        let broken_off = |end: Option<String>| end.is_some_and(|end| end.contains("is over"));
        let endless = || stream::iter(0..10).chain(stream::pending());
        // The caller gives it up, its time is up, or the handler has returned.
        let call = banks.client.reads_elsewhere(endless(), false);
        until(|| banks.at_it() == 1).await;
        drop(call);
        assert!(broken_off(read().await.1));
        let brief = banks.client.with_deadline(Duration::from_millis(500));
        let error = brief.reads_elsewhere(endless(), false).await.unwrap_err();
        assert!(matches!(error, CallError::Deadline { .. }), "{error}");
        assert!(broken_off(read().await.1));
        banks.client.reads_elsewhere(endless(), true).await.unwrap();
        assert!(broken_off(read().await.1));
        // A stream at its end is none of these.
        let call = banks.client.reads_elsewhere(stream::iter(0..10), false);
        assert_eq!(read().await, (10, None));
        drop(call);
        banks.is_clean().await;
        // The connection breaks.
        let other = banks.near.connect(banks.server.url().to_string()).await;
        let other = Connection::over(other.unwrap()).unwrap();
        let client = FlowClient::on(&other).await.unwrap();
        let call = client.reads_elsewhere(endless(), false);
        until(|| banks.at_it() == 1).await;
        other.close().await.unwrap();
        call.await.unwrap_err();
        assert!(broken_off(read().await.1));
    })
    .await;
}
