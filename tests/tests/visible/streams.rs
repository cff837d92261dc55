//! Figures of whole streams: their items, bytes, channels and copies, also of those that end before their time.

use std::time::Duration;

use futures_util::stream;
use tensorpipe::Tensor;
use tensorpipe_rpc::observe::StreamStats;
use tensorpipe_rpc::{CallError, CallStats, CallStream};

use super::scene::{client, of_heap, of_pool, runtime, soon};

const MANY: u64 = 48;
const LEN: u64 = 1 << 20;
const ALL: u64 = MANY * LEN;
const NOTHING: Option<u64> = Some(0);

/// How many items come, and the figures when the stream has ended.
async fn drained<E>(mut items: CallStream<Tensor, E>) -> (u64, CallStats) {
    let mut came = 0;
    while let Some(Ok(_)) = soon("an item", items.next()).await {
        came += 1;
    }
    (came, items.stats())
}

/// Of a stream whose tensors these are.
#[track_caller]
fn is_whole(stream: &Option<StreamStats>, channel: &str) {
    let stream = stream.as_ref().unwrap();
    assert_eq!(stream.items, MANY);
    assert!(
        (ALL + 1..ALL + MANY * 128).contains(&stream.transfer.bytes),
        "{stream:?}"
    );
    assert_eq!(stream.transfer.channels, [channel]);
}

#[test]
fn a_stream_over_leases_copies_nothing() {
    runtime().block_on(async {
        let (client, context, _server) = client("defaults").await;
        let (came, stats) = drained(client.with_stats().pour(MANY, LEN, true)).await;
        assert_eq!(came, MANY);
        is_whole(&stats.result, "lease");
        assert_eq!(
            (stats.argument.is_none(), stats.bytes_copied()),
            (true, NOTHING)
        );

        let ours: Vec<_> = (0..MANY)
            .map(|_| of_pool(context.pool(), LEN as usize))
            .collect();
        let call = client.with_stats().drink(stream::iter(ours));
        let (drunk, stats) = soon("a call", call.stats()).await;
        assert_eq!(drunk.unwrap(), ALL);
        is_whole(&stats.argument, "lease");
        assert_eq!(
            (stats.result.is_none(), stats.bytes_copied()),
            (true, NOTHING)
        );
    });
}

#[test]
fn over_a_socket_each_byte_is_copied_once_at_each_end() {
    runtime().block_on(async {
        let (client, _context, _server) = client("basic").await;
        let (came, stats) = drained(client.with_stats().pour(MANY, LEN, false)).await;
        assert_eq!(came, MANY);
        is_whole(&stats.result, "basic");
        assert_eq!(
            (stats.bytes_copied_here(), stats.bytes_copied_there()),
            (Some(ALL), Some(ALL))
        );

        let heap = of_heap(LEN as usize);
        let ours = stream::iter(vec![heap; MANY as usize]);
        let (drunk, stats) = soon("a call", client.with_stats().drink(ours).stats()).await;
        assert_eq!(drunk.unwrap(), ALL);
        is_whole(&stats.argument, "basic");
        assert_eq!(
            (stats.bytes_copied_here(), stats.bytes_copied_there()),
            (Some(ALL), Some(ALL))
        );
    });
}

#[test]
fn the_parts_of_a_streams_time_make_the_whole() {
    runtime().block_on(async {
        let (client, _context, _server) = client("basic").await;
        let mut items = client.with_stats().pour(MANY, LEN, false);
        let _ = soon("an item", items.next()).await.unwrap().unwrap();
        let so_far = items.stats();
        assert!((1..=MANY).contains(&so_far.result.unwrap().items));
        assert_eq!(so_far.request.streamed, None, "it has not been answered");
        // Its reader is slow, and its handler waits for credit.
        tokio::time::sleep(Duration::from_millis(30)).await;
        let (_, stats) = drained(items).await;
        let server = stats.server.unwrap();
        assert!(server.handling >= Duration::from_millis(30), "{stats:?}");
        let there = server.waiting + server.handling + server.sending;
        let parts = stats.queue + there + stats.wire().unwrap();
        assert_eq!(parts, stats.round_trip, "{stats:?}");
    });
}

#[test]
fn the_queue_of_a_stream_ends_before_its_server_begins() {
    runtime().block_on(async {
        for way in ["defaults", "basic"] {
            let (client, _context, _server) = client(way).await;
            for _ in 0..300 {
                let (came, stats) = drained(client.with_stats().pour(1, 8, false)).await;
                assert_eq!(came, 1);
                let server = stats.server.unwrap();
                let there = server.receiving + server.waiting + server.handling + server.sending;
                assert!(stats.queue + there <= stats.round_trip, "{stats:?}");
            }
        }
    });
}

#[test]
fn a_stream_that_fails_has_figures_of_what_came_before() {
    runtime().block_on(async {
        let (client, _context, mut server) = client("basic").await;
        let ours = stream::iter(vec![of_heap(LEN as usize); MANY as usize]);
        let mut items = client.with_stats().sip(ours);
        for _ in 0..2 {
            let item = soon("an item", items.next()).await.unwrap();
            assert_eq!(item.unwrap().byte_len() as u64, LEN);
        }
        let refused = soon("an item", items.next()).await.unwrap();
        assert!(matches!(refused, Err(CallError::Service(_))));
        let stats = items.stats();
        assert_eq!(stats.result.as_ref().unwrap().items, 2);
        assert_eq!(
            stats.result.as_ref().unwrap().transfer.streamed,
            Some(2 * LEN)
        );
        assert!(stats.server.is_some());
        let sent = stats.argument.as_ref().unwrap().items;
        assert!((2..MANY).contains(&sent), "its reader took no more: {sent}");

        let mut items = client.with_stats().pour(MANY, LEN, false);
        let _ = soon("an item", items.next()).await.unwrap().unwrap();
        server.kill();
        let mut came = 1;
        let error = loop {
            match soon("an item", items.next()).await.unwrap() {
                Ok(_) => came += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, CallError::Connection { .. }), "{error:?}");
        let stats = items.stats();
        assert_eq!((stats.result.unwrap().items, stats.server), (came, None));
        assert!(came < MANY && stats.round_trip > Duration::ZERO);
    });
}
