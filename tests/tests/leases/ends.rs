//! A pipe or a process ends: the borrower still holds lent memory, and the memory still comes back.

use std::time::Duration;

use tensorpipe::{Error, Message, MessageTensor};
use tensorpipe_tests::descriptors;

use super::scene::{
    Keeps, Peer, alone, check, context, eventually, lendable, made, mappings, seed_of, soon,
};

const LEN: usize = 3 << 20;

#[test]
fn a_lease_outlives_its_senders_process() {
    alone(async || {
        let context = context("parent", 64 << 20);
        let mut peer = Peer::start(&context, &[]).await;
        let given = peer.gives(LEN, 11).await;
        assert_eq!(peer.pipe.stats().bytes_borrowed, LEN as u64);
        peer.child.kill();
        let error = soon("the end", peer.pipe.ended()).await;
        assert!(matches!(error, Error::Lost { .. }), "{error:?}");
        drop(peer);
        for _ in 0..20 {
            check(&given, 11);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let row = given.rows(100..200).unwrap();
        drop(given);
        assert_eq!(row.as_bytes().unwrap().len(), 100);
    });
}

#[test]
fn a_lease_outlives_its_pipe_while_the_pool_is_hammered() {
    alone(async || {
        let context = context("parent", 64 << 20);
        let peer = Peer::start(&context, &[]).await;
        let (one, two) = (peer.gives(LEN, 21).await, peer.gives(LEN, 22).await);
        peer.pipe.send(Message::new("leave")).unwrap();
        let error = soon("the end", peer.pipe.ended()).await;
        assert!(matches!(error, Error::Closed { .. }), "{error:?}");
        let Peer { child, pipe } = peer;
        drop(pipe);
        assert_eq!(child.hear("left"), (8 << 20).to_string());
        let recycled: u64 = child.hear("hammered").parse().unwrap();
        assert!(recycled > 50, "{recycled}");
        check(&one, 21);
        drop(one);
        check(&two, 22);
        drop(two);
        // By a word in shared memory: there is no pipe that could carry it.
        child.hear("back");
    });
}

#[test]
fn a_killed_reader_gives_everything_back_and_leaves_no_mapping_and_no_descriptor() {
    alone(async || {
        let context = context("parent", 64 << 20);
        let mut before = None;
        // The first round opens what stays for the life of a process.
        for round in 0..3 {
            let mut peer = Peer::start(&context, &[]).await;
            let given = peer.gives(LEN, 1).await;
            for seed in 0..4 {
                peer.keeps(&made(context.pool(), LEN, seed), seed).await;
            }
            let mut kept = made(context.pool(), LEN, 9);
            peer.keeps(&kept, 9).await;
            assert_eq!(lendable(context.pool()).lent_bytes, 16 << 20);
            peer.child.kill();
            eventually("memory back", || lendable(context.pool()).lent_bytes == 0).await;
            let at = kept.as_bytes().unwrap().as_ptr();
            assert_eq!(kept.make_mut::<u8>().unwrap().as_ptr(), at, "exclusive");
            check(&given, 1);
            soon("the end", peer.pipe.ended()).await;
            drop((given, kept, peer));
            let mut held = (0, 0);
            let settled = || {
                let last = held;
                held = (mappings(), descriptors());
                last == held && before.is_none_or(|before| held <= before)
            };
            tokio::time::sleep(Duration::from_millis(50)).await;
            eventually("mappings and descriptors", settled).await;
            println!("round {round}: {held:?} mappings and descriptors");
            before = before.or(Some(held));
        }
    });
}

#[test]
fn pipes_that_end_in_good_order_leave_nothing_mapped() {
    alone(async || {
        let context = context("parent", 64 << 20);
        for _ in 0..2 {
            let peer = Peer::start(&context, &[]).await;
            check(&peer.gives(LEN, 1).await, 1);
            let kept = peer.gives(300_000, 2).await;
            let _ = soon("the end", peer.pipe.close()).await;
            let Peer { child, pipe } = peer;
            drop(pipe);
            // What is held keeps everything of its lender.
            check(&kept, 2);
            assert!(mappings() > 0);
            drop(kept);
            eventually("nothing is mapped", || mappings() == 0).await;
            drop(child);
        }
    });
}

#[test]
fn a_segment_that_its_owner_frees_is_unmapped_by_its_readers() {
    alone(async || {
        let context = context("parent", 64 << 20);
        let small = [("TEST_LENDABLE", "16777216")];
        let peer = Peer::start(&context, &small).await;
        let held = mappings();
        // 4, 6 and 8 MiB are more than the child's 16: the oldest has to go.
        for (seed, len) in [(1, 4 << 20), (2, 6 << 20), (3, 8 << 20)] {
            check(&peer.gives(len, seed).await, seed);
        }
        // Its ledger, and two segments.
        eventually("one is unmapped", || mappings() == held + 3).await;
    });
}

#[test]
fn a_stopped_process_keeps_what_it_has_and_gives_it_back_later() {
    alone(async || {
        let context = context("parent", 64 << 20);
        let peer = Peer::start(&context, &[]).await;
        peer.keeps(&made(context.pool(), LEN, 1), 1).await;
        peer.child.suspend();
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(lendable(context.pool()).lent_bytes, 4 << 20);
        let other = made(context.pool(), LEN, 2);
        check(&other, 2);
        peer.child.resume();
        assert_eq!(peer.told("check").await, "1 are the same");
        assert_eq!(peer.told("forget 1").await, "0 are kept");
        assert_eq!(lendable(context.pool()).lent_bytes, 0);
    });
}

#[test]
fn killed_at_any_moment_a_process_leaves_no_memory_out_and_nothing_mapped() {
    alone(async || {
        let context = context("parent", 64 << 20);
        for millis in [0, 1, 2, 3, 5, 8, 13, 21, 34, 55] {
            let mut peer = Peer::start(&context, &[]).await;
            let pipe = peer.pipe.clone();
            let pool = context.pool().clone();
            // Both lend and give back as fast as they can, with some loans always out.
            let traffic = tokio::spawn(async move {
                let mut held = std::collections::VecDeque::new();
                for seed in 0u64.. {
                    let tensor = made(&pool, 70_000, seed % 5);
                    let keep = MessageTensor::from(tensor).with_metadata(seed_of(seed % 5));
                    let ask = Message::new(format!("swap 300000 {}", seed % 7)).tensor(keep);
                    pipe.send(ask)?;
                    let given = pipe.read().await?.tensors.remove(0).tensor;
                    check(&given, seed % 7);
                    held.push_back(given);
                    if held.len() > 3 {
                        held.pop_front();
                    }
                }
                Ok::<(), Error>(())
            });
            tokio::time::sleep(Duration::from_millis(millis)).await;
            peer.child.kill();
            let error = soon("the end", traffic).await.unwrap().unwrap_err();
            assert!(matches!(error, Error::Lost { .. }), "{error:?}");
            drop(peer);
            eventually("memory back", || {
                let stats = lendable(context.pool());
                (stats.lent_bytes, stats.outstanding_bytes) == (0, 0)
            })
            .await;
        }
        context.pool().trim(0);
        eventually("nothing is mapped", || mappings() == 0).await;
    });
}

/// The process lives on as another program, which has nothing of it mapped.
#[test]
fn a_reader_that_becomes_another_program_gives_everything_back() {
    alone(async || {
        let context = context("parent", 64 << 20);
        let mut peer = Peer::start(&context, &[]).await;
        for seed in 0..4 {
            peer.keeps(&made(context.pool(), LEN, seed), seed).await;
        }
        assert_eq!(peer.told("check").await, "4 are the same");
        assert_eq!(lendable(context.pool()).lent_bytes, 16 << 20);
        peer.pipe.send(Message::new("become sleep 100")).unwrap();
        eventually("memory back", || lendable(context.pool()).lent_bytes == 0).await;
        assert!(peer.child.is_alive(), "it sleeps");
    });
}
