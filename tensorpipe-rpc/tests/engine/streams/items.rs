//! Each sent item arrives once and in order.

use futures_util::{StreamExt, stream};
use tensorpipe_rpc::CallError;

use super::flow::{assert_numbered, numbered, over_each};

#[tokio::test]
async fn items_come_in_order_and_the_stream_ends() {
    over_each(async |banks| {
        for to in [0, 1, 2, 63, 64, 65, 255, 256, 10_000] {
            let items: Vec<_> = banks.client.count(to).map(Result::unwrap).collect().await;
            assert!(items.iter().copied().eq(0..to), "{to}: {items:?}");
        }
        banks.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn tensors_of_any_size_come_in_order_whichever_is_complete_first() {
    over_each(async |banks| {
        let sizes = [1, 3 << 20, 0, 17, 1 << 20, 5000, 20_000, 4, 700_000, 8];
        let mut tensors = banks.client.tensors(&sizes);
        for (seed, bytes) in sizes.iter().enumerate() {
            let tensor = tensors.next().await.unwrap().unwrap();
            assert_numbered(&tensor, *bytes, seed);
        }
        assert!(tensors.next().await.is_none());
        assert!(tensors.next().await.is_none(), "asked again");
        drop(tensors);
        banks.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn a_stream_as_an_argument_comes_whole() {
    over_each(async |banks| {
        for to in [0u64, 1, 64, 65, 5000] {
            let sum = banks.client.sum(stream::iter(0..to)).await.unwrap();
            assert_eq!(sum, (0..to).sum::<u64>());
        }
        // Made bit by bit, as by a loader of data.
        let slow = stream::iter(0..5).then(async |i| {
            tokio::task::yield_now().await;
            i
        });
        assert_eq!(banks.client.sum(slow).await.unwrap(), 10);
        banks.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn both_ways_at_once_each_item_comes_back_while_the_next_is_made() {
    over_each(async |banks| {
        let (give, mut given) = tokio::sync::mpsc::unbounded_channel();
        let given = stream::poll_fn(move |cx| given.poll_recv(cx));
        let mut back = banks.client.back(given);
        for seed in 0..20 {
            give.send(numbered(1 << (seed + 3), seed)).unwrap();
            let tensor = back.next().await.unwrap().unwrap();
            assert_numbered(&tensor, 1 << (seed + 3), seed);
        }
        drop(give);
        assert!(back.next().await.is_none());
        drop(back);
        banks.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn many_streams_share_a_connection() {
    over_each(async |banks| {
        let streams = (0..40u64).map(|i| {
            let client = banks.client.clone();
            async move {
                let counted = client.count(500 + i).map(Result::unwrap);
                assert_eq!(counted.count().await as u64, 500 + i);
                let sum = client.sum(stream::iter(0..300 + i)).await.unwrap();
                assert_eq!(sum, (0..300 + i).sum::<u64>());
            }
        });
        futures_util::future::join_all(streams).await;
        banks.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn an_error_ends_the_stream_behind_the_items_before_it() {
    over_each(async |banks| {
        for at in [0, 1, 64, 300] {
            let mut items = banks.client.fails_at(at);
            for i in 0..at {
                assert_eq!(items.next().await.unwrap().unwrap(), i);
            }
            match items.next().await {
                Some(Err(CallError::Service(words))) => assert_eq!(words, format!("at {at}")),
                other => panic!("{other:?}"),
            }
            assert!(items.next().await.is_none());
        }
        banks.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn a_panic_ends_the_stream_and_nothing_else() {
    over_each(async |banks| {
        let items: Vec<_> = banks.client.panics_at(3).collect().await;
        let [.., Err(CallError::Panicked { message: words, .. })] = items.as_slice() else {
            panic!("{items:?}");
        };
        assert!(words.contains("at 3"), "{words}");
        banks.is_clean().await;
    })
    .await;
}
