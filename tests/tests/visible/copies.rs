//! Exact counts of the bytes of a call that each side copied, whatever else goes over the pipe.

use tensorpipe::Tensor;
use tensorpipe_rpc::CallStats;

use super::scene::{ModelClient, client, of_heap, of_pool, runtime, soon};

const LEN: usize = 64 << 20;
const ALL: Option<u64> = Some(LEN as u64);
const NOTHING: Option<u64> = Some(0);

/// The figures of a call with this tensor.
async fn takes(client: &ModelClient, tensor: &Tensor) -> CallStats {
    let (taken, stats) = soon("a call", client.with_stats().take(tensor).stats()).await;
    assert_eq!(taken.unwrap(), tensor.byte_len() as u64);
    assert!(stats.request.bytes > tensor.byte_len() as u64);
    assert!(stats.request.bytes < tensor.byte_len() as u64 + 256);
    assert!(stats.reply.bytes < 256 && stats.reply.channels.is_empty());
    stats
}

/// The figures of a call that is answered with a tensor.
async fn gives(client: &ModelClient, len: usize, pooled: bool) -> CallStats {
    let call = client.with_stats().give(len as u64, pooled);
    let (given, stats) = soon("a call", call.stats()).await;
    assert_eq!(given.unwrap().byte_len(), len);
    assert!(stats.reply.bytes > len as u64);
    assert!(stats.request.bytes < 256 && stats.request.channels.is_empty());
    stats
}

/// Copied here, and there.
fn copied(stats: &CallStats) -> (Option<u64>, Option<u64>) {
    (stats.bytes_copied_here(), stats.bytes_copied_there())
}

#[test]
fn a_tensor_of_the_pool_is_copied_by_nobody() {
    runtime().block_on(async {
        let (client, context, _server) = client("defaults").await;
        let ours = of_pool(context.pool(), LEN);
        for _ in 0..3 {
            let stats = takes(&client, &ours).await;
            assert_eq!(stats.request.channels, ["lease"]);
            assert_eq!(stats.bytes_copied(), NOTHING);
            let stats = gives(&client, LEN, true).await;
            assert_eq!(stats.reply.channels, ["lease"]);
            assert_eq!(stats.bytes_copied(), NOTHING);
        }
    });
}

#[test]
fn several_tensors_of_a_call_are_accounted_for_each_by_its_way() {
    runtime().block_on(async {
        let (client, context, _server) = client("defaults").await;
        let (pooled, heap, small) = (of_pool(context.pool(), LEN), of_heap(8 << 20), of_heap(100));
        for _ in 0..2 {
            let call = client.with_stats().mix(&pooled, &heap, &small);
            let (mixed, stats) = soon("a call", call.stats()).await;
            assert_eq!(mixed.unwrap().len(), 3);
            // The small one rides in its message, which is written and read, too; of the other one a copy is lent.
            let came = (Some(100), NOTHING, Some(8 << 20));
            for way in [&stats.request, &stats.reply] {
                assert_eq!(way.channels, ["lease"]);
                assert_eq!((way.streamed, way.copied, way.copied_by_writer), came);
                assert!(way.bytes > (LEN + (8 << 20) + 100) as u64);
            }
        }
    });
}

#[test]
fn nor_while_other_calls_beside_it_copy_a_lot() {
    runtime().block_on(async {
        let (client, context, _server) = client("defaults").await;
        let (ours, heap) = (of_pool(context.pool(), LEN), of_heap(8 << 20));
        let beside: Vec<_> = (0..8).map(|_| client.take(&heap)).collect();
        let asked: Vec<_> = (0..4)
            .map(|_| client.with_stats().take(&heap).stats())
            .collect();
        assert_eq!(takes(&client, &ours).await.bytes_copied(), NOTHING);
        for call in beside {
            soon("a call", call).await.unwrap();
        }
        for call in asked {
            let (taken, stats) = soon("a call", call).await;
            taken.unwrap();
            assert_eq!(copied(&stats), (Some(8 << 20), NOTHING));
        }
    });
}

#[test]
fn one_of_the_heap_is_copied_once_by_who_sends_it() {
    runtime().block_on(async {
        let (client, _context, _server) = client("defaults").await;
        assert_eq!(client.connection().route().transport, "shm");
        let stats = takes(&client, &of_heap(LEN)).await;
        assert_eq!(stats.request.channels, ["lease"]);
        assert_eq!(copied(&stats), (ALL, NOTHING));
        let stats = gives(&client, LEN, false).await;
        assert_eq!(stats.reply.channels, ["lease"]);
        assert_eq!(copied(&stats), (NOTHING, ALL));
        assert_eq!(stats.reply.copied_by_writer, ALL);
    });
}

#[test]
fn over_a_socket_likewise_on_one_connection_or_several() {
    runtime().block_on(async {
        for way in ["basic", "mpt"] {
            let (client, context, _server) = client(way).await;
            for tensor in [of_heap(LEN), of_pool(context.pool(), LEN)] {
                let stats = takes(&client, &tensor).await;
                assert_eq!(stats.request.channels, [way]);
                assert_eq!(copied(&stats), (ALL, ALL), "{way}");
            }
            let stats = gives(&client, LEN, false).await;
            assert_eq!(stats.reply.channels, [way]);
            assert_eq!(copied(&stats), (ALL, ALL), "{way}");
        }
    });
}

#[test]
fn what_its_reader_fetches_is_copied_by_the_reader_alone() {
    runtime().block_on(async {
        let (client, _context, _server) = client("cma").await;
        let stats = takes(&client, &of_heap(LEN)).await;
        assert_eq!(stats.request.channels, ["cma"]);
        // Where the system forbids it, the bytes come as ever, and that shows.
        match stats.request.streamed {
            NOTHING => assert_eq!(copied(&stats), (NOTHING, ALL)),
            _ => assert_eq!(copied(&stats), (ALL, ALL)),
        }
        let stats = gives(&client, LEN, false).await;
        match stats.reply.streamed {
            NOTHING => assert_eq!(copied(&stats), (ALL, NOTHING)),
            _ => assert_eq!(copied(&stats), (ALL, ALL)),
        }
    });
}

#[test]
fn a_small_tensor_rides_in_its_message_and_has_no_channel() {
    runtime().block_on(async {
        for way in ["defaults", "basic"] {
            let (client, context, _server) = client(way).await;
            for tensor in [of_heap(4096), of_pool(context.pool(), 4096)] {
                let stats = takes(&client, &tensor).await;
                assert!(stats.request.channels.is_empty());
                assert_eq!(copied(&stats), (Some(4096), Some(4096)), "{way}");
            }
            let stats = gives(&client, 4096, true).await;
            assert_eq!(copied(&stats), (Some(4096), Some(4096)), "{way}");
        }
    });
}
