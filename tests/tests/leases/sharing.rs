//! Tensors that two processes, or three, see at once.

use tensorpipe::engine::EnginePipe;
use tensorpipe::{
    Allocation, BufferMut, Context, Message, MessageTensor, Place, ResetCode, Tensor,
};

use super::scene::{
    Keeps, Peer, alone, check, context, eventually, lendable, made, over_tcp, seed_of, soon,
};

/// Bytes of a tensor that nobody would copy by accident.
const LEN: usize = 5 << 20;

#[test]
fn nothing_is_copied_either_way_whatever_carries_the_pipe() {
    nothing_is_copied(context("parent", 64 << 20), "transport shm");
    nothing_is_copied(over_tcp("parent", 64 << 20), "transport tcp");
}

fn nothing_is_copied(context: Context, transport: &str) {
    alone(async || {
        let peer = Peer::start(&context, &[]).await;
        let route = peer.pipe.route().to_string();
        println!("{route}");
        assert!(route.starts_with(transport), "{route}");
        assert!(route.contains("channel lease: cpu:0 <-> cpu:0"), "{route}");
        for round in 0..3 {
            let given = peer.gives(LEN, round).await;
            check(&given, round);
            peer.keeps(&made(context.pool(), LEN, round + 7), round + 7)
                .await;
        }
        assert_eq!(peer.told("check").await, "3 are the same");
        let stats = peer.pipe.stats();
        let all = 3 * LEN as u64;
        assert_eq!((stats.bytes_borrowed, stats.bytes_lent), (all, all));
        assert_eq!(stats.bytes_copied, 0);
        assert!(stats.bytes_in + stats.bytes_out < 8192, "{stats:?}");
        assert_eq!(peer.told("stats").await, format!("{all} 0"));
        assert_eq!(lendable(context.pool()).fallbacks, 0);
    });
}

#[test]
fn a_leased_tensor_is_some_hundred_bytes_whatever_its_size() {
    alone(async || {
        let context = context("parent", 64 << 20);
        let peer = Peer::start(&context, &[]).await;
        for (round, len) in [5000, 500_000, 50 << 20].into_iter().enumerate() {
            let tensor = made(context.pool(), len, 1);
            peer.keeps(&tensor, 1).await;
            let before = peer.pipe.stats();
            peer.keeps(&tensor, 1).await;
            let after = peer.pipe.stats();
            assert_eq!(after.writes - before.writes, 1, "round {round}");
            assert!(after.bytes_out - before.bytes_out < 300);
            // "Taken", and nothing else.
            assert!(after.bytes_in - before.bytes_in < 30);
        }
    });
}

#[test]
fn memory_comes_back_and_is_used_again() {
    alone(async || {
        let context = context("parent", 64 << 20);
        let peer = Peer::start(&context, &[]).await;
        peer.keeps(&made(context.pool(), LEN, 1), 1).await;
        let stats = lendable(context.pool());
        assert_eq!((stats.outstanding_bytes, stats.lent_bytes), (0, 6 << 20));
        assert_eq!(peer.told("forget 1").await, "0 are kept");
        assert_eq!(lendable(context.pool()).lent_bytes, 0);
        for round in 0..20 {
            peer.keeps(&made(context.pool(), LEN, round), round).await;
            peer.told("forget 1").await;
        }
        let stats = lendable(context.pool());
        assert_eq!((stats.segments, stats.recycled), (1, 20));
    });
}

#[test]
fn small_tensors_go_another_way() {
    alone(async || {
        let context = context("parent", 64 << 20);
        let peer = Peer::start(&context, &[]).await;
        let heap = Tensor::from_vec(vec![7u8; 15_000], [15_000]).unwrap();
        let small = made(context.pool(), 4096, 3);
        let shared = made(context.pool(), LEN, 4);
        let message = Message::new("keep")
            .tensor(heap)
            .tensor(small)
            .tensor(shared);
        soon("a write", peer.pipe.write(message)).await.unwrap();
        let borrowed = peer.told("stats").await;
        assert!(borrowed.starts_with(&format!("{LEN} ")), "{borrowed}");
        let stats = peer.pipe.stats();
        assert_eq!(stats.bytes_lent, LEN as u64);
        assert!(stats.bytes_out > 19_096, "the others");
    });
}

/// What the peer gives when it is asked so: a tensor of `len` bytes, read into memory of this side's.
async fn given_into(peer: &Peer, ask: &str, len: usize) -> Tensor {
    peer.pipe.send(Message::new(ask.to_owned())).unwrap();
    let incoming = soon("a descriptor", peer.pipe.read_descriptor()).await;
    let allocation = Allocation {
        tensors: vec![Place::Into(BufferMut::zeroed(len))],
        ..Allocation::default()
    };
    let message = soon("a read", incoming.unwrap().read_into(allocation)).await;
    message.unwrap().tensors.remove(0).tensor
}

#[test]
fn into_memory_of_the_readers_is_one_copy() {
    alone(async || {
        let context = context("parent", 64 << 20);
        let peer = Peer::start(&context, &[]).await;
        for len in [100_000, LEN] {
            check(&given_into(&peer, &format!("give {len} 9"), len).await, 9);
        }
        let stats = peer.pipe.stats();
        assert_eq!(stats.bytes_copied, 100_000 + LEN as u64);
        assert_eq!(stats.bytes_borrowed, 0);
    });
}

/// What its channel has at once is counted when the application decides.
#[test]
fn what_is_copied_or_not_wanted_is_not_borrowed() {
    alone(async || {
        let context = context("parent", 64 << 20);
        let peer = Peer::start(&context, &[]).await;
        for len in [100_000, LEN] {
            // Its memory is known here from then on.
            drop(peer.gives(len, 1).await);
            let before = peer.pipe.stats();
            let since = || {
                let now = peer.pipe.stats();
                let borrowed = now.bytes_borrowed - before.bytes_borrowed;
                (borrowed, now.bytes_copied - before.bytes_copied)
            };
            let ask = format!("give {len} 2");
            check(&given_into(&peer, &ask, len).await, 2);
            assert_eq!(since(), (0, len as u64));
            peer.pipe.send(Message::new(ask)).unwrap();
            let incoming = soon("a descriptor", peer.pipe.read_descriptor()).await;
            let incoming = incoming.unwrap();
            assert!(incoming.is_whole(), "its channel does not have it yet");
            incoming.skip();
            assert_eq!(since(), (0, len as u64));
            check(&peer.gives(len, 3).await, 3);
            assert_eq!(since(), (len as u64, len as u64));
        }
    });
}

/// Whoever hears that a tensor was read may close at once: then the copy is made.
#[test]
fn a_copy_is_made_when_its_writer_hears_of_it() {
    alone(async || {
        const LEN: usize = 16 << 20;
        let context = context("parent", 64 << 20);
        for seed in 0..5 {
            let peer = Peer::start(&context, &[]).await;
            // Its memory is known here from then on.
            drop(peer.gives(LEN, seed).await);
            let ask = format!("give {LEN} {seed} and leave");
            check(&given_into(&peer, &ask, LEN).await, seed);
        }
    });
}

/// The first of two messages in which a tensor goes back is taken back on its way. It must not end the loan that the second one
/// counts on.
#[test]
fn what_goes_back_twice_and_is_taken_back_once_arrives() {
    alone(async || {
        let context = context("parent", 64 << 20);
        let peer = Peer::start(&context, &[]).await;
        let given = peer.gives(LEN, 3).await;
        let keep = |tensor| {
            let tensor = MessageTensor::from(tensor).with_metadata(seed_of(3));
            peer.pipe.send(Message::new("keep").tensor(tensor)).unwrap()
        };
        // It looks at the first one when the second one is on its way, too.
        peer.child.suspend();
        let first = keep(given.clone());
        peer.pipe.reset(first, ResetCode::Cancelled, "a whim");
        keep(given);
        peer.child.resume();
        assert_eq!(peer.told("check").await, "1 are the same");
        let stats = peer.pipe.stats();
        assert_eq!((stats.bytes_lent, stats.bytes_diverted), (LEN as u64, 0));
    });
}

#[test]
fn writing_to_a_lent_tensor_leaves_its_reader_what_it_has() {
    alone(async || {
        let context = context("parent", 64 << 20);
        let peer = Peer::start(&context, &[]).await;
        let mut tensor = made(context.pool(), LEN, 1);
        let first = tensor.as_bytes().unwrap().as_ptr();
        peer.keeps(&tensor, 1).await;
        tensor.make_mut::<u8>().unwrap().fill(0);
        assert_ne!(tensor.as_bytes().unwrap().as_ptr(), first, "a copy");
        assert_eq!(peer.told("check").await, "1 are the same");
        // The copy can be lent, too, and is written in place once it is back.
        let copy = tensor.as_bytes().unwrap().as_ptr();
        tensor
            .make_mut::<u8>()
            .unwrap()
            .copy_from_slice(&tensorpipe::conformance::pattern(LEN, 2));
        peer.keeps(&tensor, 2).await;
        assert_eq!(peer.told("check").await, "2 are the same");
        assert_eq!(peer.told("forget 2").await, "0 are kept");
        eventually("exclusive again", || {
            tensor.make_mut::<u8>().unwrap().as_ptr() == copy
        })
        .await;
        assert_eq!(peer.pipe.stats().bytes_lent, 2 * LEN as u64);
    });
}

#[test]
fn two_readers_of_one_tensor_give_it_back_one_after_the_other() {
    alone(async || {
        let context = context("parent", 64 << 20);
        let (one, two) = (
            Peer::start(&context, &[]).await,
            Peer::start(&context, &[]).await,
        );
        let tensor = made(context.pool(), LEN, 5);
        one.keeps(&tensor, 5).await;
        two.keeps(&tensor, 5).await;
        // The same one again, over the same pipe.
        one.keeps(&tensor, 5).await;
        drop(tensor);
        assert_eq!(one.told("check").await, "2 are the same");
        assert_eq!(two.told("check").await, "1 are the same");
        assert_eq!(one.told("forget 2").await, "0 are kept");
        assert_eq!(lendable(context.pool()).lent_bytes, 6 << 20, "two has it");
        assert_eq!(two.told("check").await, "1 are the same");
        assert_eq!(two.told("forget 1").await, "0 are kept");
        assert_eq!(lendable(context.pool()).lent_bytes, 0);
    });
}

#[test]
fn a_part_of_a_tensor_is_lent_and_sent_back_as_a_part() {
    alone(async || {
        let context = context("parent", 64 << 20);
        let peer = Peer::start(&context, &[]).await;
        let whole = made(context.pool(), LEN, 5);
        let part = Tensor::from_bytes(whole.buffer().slice(1 << 20..3 << 20));
        let echo = peer.echoes(&part).await;
        assert_eq!(echo.as_bytes().unwrap(), part.as_bytes().unwrap());
        let stats = peer.pipe.stats();
        assert_eq!((stats.bytes_lent, stats.bytes_borrowed), (2 << 20, 2 << 20));
        assert_eq!(peer.told("stats").await, format!("{} 0", 2 << 20));
    });
}

#[test]
fn what_comes_back_is_the_memory_that_was_sent_and_is_kept_while_it_is_read() {
    alone(async || {
        let context = context("parent", 64 << 20);
        let mut peer = Peer::start(&context, &[]).await;
        let mut tensor = made(context.pool(), LEN, 5);
        let at = tensor.as_bytes().unwrap().as_ptr();
        for _ in 0..3 {
            let echo = peer.echoes(&tensor).await;
            assert_eq!(echo.as_bytes().unwrap().as_ptr(), at, "nothing moved");
        }
        let echo = peer.echoes(&tensor).await;
        // Whoever writes gets a copy while it is read here, as with any second handle.
        tensor.make_mut::<u8>().unwrap().fill(0);
        assert_ne!(tensor.as_bytes().unwrap().as_ptr(), at);
        check(&echo, 5);
        drop(tensor);
        // The pool does not use it either, not even when its borrower is gone.
        peer.child.kill();
        soon("the end", peer.pipe.ended()).await;
        for seed in 0..4 {
            let other = made(context.pool(), LEN, seed);
            assert_ne!(other.as_bytes().unwrap().as_ptr(), at);
        }
        check(&echo, 5);
        drop(echo);
        let stats = lendable(context.pool());
        assert_eq!((stats.lent_bytes, stats.outstanding_bytes), (0, 0));
    });
}

#[test]
fn to_others_what_was_borrowed_is_copied() {
    alone(async || {
        let context = context("parent", 64 << 20);
        let (one, two) = (
            Peer::start(&context, &[]).await,
            Peer::start(&context, &[]).await,
        );
        let given = one.gives(LEN, 3).await;
        two.keeps(&given, 3).await;
        assert_eq!(two.told("check").await, "1 are the same");
        assert_eq!(two.pipe.stats().bytes_lent, 0);
        let echo = one.pipe.stats().bytes_lent;
        one.keeps(&given, 3).await;
        assert_eq!(one.told("check").await, "1 are the same");
        assert_eq!(
            one.pipe.stats().bytes_lent - echo,
            LEN as u64,
            "to its lender"
        );
    });
}

#[test]
fn who_hoards_makes_the_pool_fall_back_to_copies() {
    alone(async || {
        let context = context("parent", 12 << 20);
        let peer = Peer::start(&context, &[]).await;
        for seed in 0..6 {
            peer.keeps(&made(context.pool(), 4 << 20, seed), seed).await;
        }
        let stats = lendable(context.pool());
        assert_eq!((stats.fallbacks, stats.lent_bytes), (3, 12 << 20));
        // The others are copied, and the copies are lent.
        let stats = peer.pipe.stats();
        assert_eq!((stats.bytes_lent, stats.bytes_copied), (24 << 20, 12 << 20));
        assert_eq!(peer.told("check").await, "6 are the same");
        assert_eq!(peer.told("forget 6").await, "0 are kept");
        peer.keeps(&made(context.pool(), 4 << 20, 9), 9).await;
        let stats = peer.pipe.stats();
        assert_eq!((stats.bytes_lent, stats.bytes_copied), (28 << 20, 12 << 20));
        assert_eq!(lendable(context.pool()).fallbacks, 3);
    });
}

#[test]
fn without_descriptors_a_tensor_is_copied_and_not_lost() {
    alone(async || {
        let context = context("parent", 64 << 20);
        let peer = Peer::start(&context, &[]).await;
        assert_eq!(peer.told("eat descriptors").await, "eaten");
        peer.keeps(&made(context.pool(), LEN, 3), 3).await;
        assert_eq!(peer.told("check").await, "1 are the same");
        assert_eq!(peer.pipe.stats().bytes_lent, 0);
        assert!(peer.told("stats").await.starts_with("0 "));
        eventually("the offer withdrawn", || {
            lendable(context.pool()).lent_bytes == 0
        })
        .await;
    });
}

/// As a cache that keeps its blocks for good, each of which is lent again and again.
#[test]
fn tensors_that_their_owner_keeps_are_lent_however_many_there_are() {
    alone(async || {
        const MANY: u64 = 5000;
        let context = context("parent", 256 << 20);
        let peer = Peer::start(&context, &[]).await;
        let made = |seed| made(context.pool(), 16 << 10, seed);
        let cache: Vec<Tensor> = (0..MANY).map(made).collect();
        for (seed, tensor) in (0..).zip(&cache) {
            peer.keeps(tensor, seed).await;
            if seed % 100 == 99 {
                assert_eq!(peer.told("check").await, "100 are the same");
                assert_eq!(peer.told("forget 100").await, "0 are kept");
            }
        }
        let stats = peer.pipe.stats();
        assert_eq!(stats.bytes_lent, MANY * (16 << 10));
        assert_eq!((stats.bytes_copied, stats.bytes_diverted), (0, 0));
        assert_eq!(lendable(context.pool()).ledger_full, 0);
    });
}

#[test]
fn what_is_more_than_a_process_can_have_is_copied_and_counted() {
    alone(async || {
        // As the channel's documentation says.
        const LOANS: u64 = 4096;
        let context = context("parent", 256 << 20);
        let peer = Peer::start(&context, &[]).await;
        for seed in 0..LOANS + 4 {
            peer.keeps(&made(context.pool(), 16 << 10, seed), seed)
                .await;
        }
        let stats = peer.pipe.stats();
        assert_eq!(stats.bytes_lent, LOANS * (16 << 10));
        assert_eq!(stats.bytes_diverted, 4 * (16 << 10));
        let route = peer.pipe.route();
        let lease = route.channels.iter().find(|one| one.name == "lease");
        let diverted = lease.unwrap().diverted.all();
        let found = diverted
            .iter()
            .map(|one| (&*one.over, one.parts, one.bytes));
        assert!(found.eq([("basic", 4, 4 * (16 << 10))]), "{diverted:?}");
        assert_eq!(lendable(context.pool()).ledger_full, 4);
        assert_eq!(
            peer.told("check").await,
            format!("{} are the same", LOANS + 4)
        );
    });
}
