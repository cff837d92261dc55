//! Which tensors `cma` moves, and which threads move them.

use super::scene::{Peer, Takes, alone, bounded, check, context, degraded, eventually, made, soon};

use tensorpipe::engine::EnginePipe;
use tensorpipe::{Allocation, BufferMut, Error, Limits, Message, Place, route::Degraded};

const MIB: usize = 1 << 20;

/// Around a piece, around where a second thread helps, and more.
const SIZES: [usize; 6] = [
    MIB,
    2 * MIB - 1,
    2 * MIB + 1,
    4 * MIB - 1,
    4 * MIB,
    9 * MIB + 5,
];

#[test]
fn every_byte_arrives_and_none_over_the_connection() {
    alone(async || {
        let context = context("parent");
        let peer = Peer::start(&context, &[]).await;
        let (mut there, mut back) = (0, 0);
        for (seed, len) in SIZES.into_iter().enumerate() {
            there += len as u64;
            assert_eq!(peer.takes(len, seed as u64).await, there);
            peer.gives(len, 100 + seed as u64).await;
            back += len as u64;
            assert_eq!(peer.pipe.stats().bytes_copied, back);
        }
        let stats = peer.pipe.stats();
        assert!(
            stats.bytes_out < 10_000 && stats.bytes_in < 10_000,
            "{stats:?}"
        );
        assert_eq!(degraded(&peer.pipe), Degraded::default());
        let route = peer.pipe.route().to_string();
        assert!(route.contains("channel cma: cpu:0 <-> cpu:0\n"), "{route}");
    });
}

#[test]
fn what_is_small_goes_another_way() {
    alone(async || {
        let context = context("parent");
        let peer = Peer::start(&context, &[]).await;
        let len = MIB - 1;
        peer.takes(len, 1).await;
        assert!(peer.pipe.stats().bytes_out > len as u64);
        peer.takes(MIB, 2).await;
        assert!(peer.pipe.stats().bytes_out < (len + MIB) as u64);
    });
}

#[test]
fn memory_of_the_readers_is_filled() {
    alone(async || {
        let context = context("parent");
        let peer = Peer::start(&context, &[]).await;
        let ask = Message::new(format!("give {} 5", 5 * MIB));
        peer.pipe.send(ask).unwrap();
        let incoming = soon("a descriptor", peer.pipe.read_descriptor())
            .await
            .unwrap();
        let allocation = Allocation {
            tensors: vec![Place::Into(BufferMut::zeroed(5 * MIB))],
            ..Allocation::default()
        };
        let message = soon("a read", incoming.read_into(allocation))
            .await
            .unwrap();
        check(&message.tensors[0].tensor, 5);
        assert_eq!(peer.pipe.stats().bytes_copied, 5 * MIB as u64);
    });
}

#[test]
fn the_source_is_free_when_the_write_ends() {
    alone(async || {
        let context = context("parent");
        let peer = Peer::start(&context, &[]).await;
        let mut tensor = made(3 * MIB, 1);
        let at = tensor.as_bytes().unwrap().as_ptr();
        let write = peer
            .pipe
            .write(Message::new("take 1").tensor(tensor.clone()));
        soon("a write", write).await.unwrap();
        eventually("the memory is mine again", || {
            // A copy would lie elsewhere.
            tensor.make_mut::<u8>().is_ok() && tensor.as_bytes().unwrap().as_ptr() == at
        })
        .await;
        peer.answer("take").await;
    });
}

#[test]
fn what_is_read_counts_while_it_comes() {
    alone(async || {
        let mut limits = Limits::default();
        limits.receive_budget = 10 << 20;
        let context = bounded("parent", limits);
        let peer = Peer::start(&context, &[]).await;
        let others = peer.pipe.hold(7 << 20).unwrap();
        let ask = Message::new(format!("give {} 5", 5 * MIB));
        peer.pipe.send(ask).unwrap();
        let error = soon("a refusal", peer.pipe.read()).await.unwrap_err();
        let Error::OutOfMemory { reason, .. } = &error else {
            panic!("{error:?}");
        };
        assert!(reason.contains("receive_budget"), "{reason}");
        drop(others);
        peer.gives(5 * MIB, 6).await;
        assert_eq!(peer.pipe.stats().bytes_copied, 5 * MIB as u64);
        // What it took is free again.
        peer.pipe.hold(10 << 20).unwrap();
    });
}
