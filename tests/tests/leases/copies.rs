//! Tensors in ordinary memory: the writer copies them once, into memory that the reader has mapped.

use std::sync::{Arc, Mutex};

use tensorpipe::channels::{BasicChannel, Channel, LeaseChannel};
use tensorpipe::conformance::pattern;
use tensorpipe::engine::{EnginePipe, Handler, Held};
use tensorpipe::{
    Buffer, Context, DType, Error, Incoming, Message, MessageStats, Pipe, Tensor, Write,
    device::MemoryKind,
};
use tensorpipe_tests::pair;

use super::scene::{
    Keeps, Peer, alone, builder, check, context, eventually, lendable, made, mappings, over_tcp,
    runtime, soon,
};

const MIB: usize = 1 << 20;

/// A share of what one process may lend, as `LeaseChannel` says.
const SHARE: usize = 256 * MIB;

fn of_heap(len: usize, seed: u64) -> Tensor {
    Tensor::from_vec(pattern(len, seed), [len as u64]).unwrap()
}

/// The same in memory of a hostile peer's, who may have mapped it from a file.
fn of_hostile_peer(len: usize, seed: u64) -> Tensor {
    let memory = Buffer::from_owner(pattern(len, seed));
    Tensor::from_buffer(memory, DType::U8, [len as u64]).unwrap()
}

/// What the peer gives, copied out of ordinary memory of its own.
async fn given(peer: &Peer, len: usize, seed: u64) -> Tensor {
    let ask = Message::new(format!("give heap {len} {seed}"));
    peer.pipe.send(ask).unwrap();
    let mut message = soon("a copy", peer.pipe.read()).await.unwrap();
    message.tensors.remove(0).tensor
}

fn is_borrowed(tensor: &Tensor) -> bool {
    tensor.buffer().memory().kind() == MemoryKind::Borrowed
}

/// Bytes of shared memory that a process has mapped.
fn shared_bytes(process: u32) -> u64 {
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    let segments = maps
        .lines()
        .filter(|line| line.ends_with("memfd:tensorpipe (deleted)"));
    let range = |line: &str| {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let number = |hex| u64::from_str_radix(hex, 16).unwrap();
        number(end) - number(start)
    };
    segments.map(range).sum()
}

#[test]
fn they_are_copied_once_and_read_where_the_copy_is() {
    copied_once(context("parent", 64 << 20));
    copied_once(over_tcp("parent", 64 << 20));
}

fn copied_once(context: Context) {
    alone(async || {
        let peer = Peer::start(&context, &[]).await;
        let (mut kept, mut sent) = (0, 0);
        // In one go, in pieces, in pieces when the reader has asked; and of a hostile peer's memory.
        for len in [40_000, 300_000, 9 * MIB + 5] {
            for tensor in [of_heap(len, kept), of_hostile_peer(len, kept)] {
                let before = peer.pipe.stats();
                peer.keeps(&tensor, kept).await;
                let after = peer.pipe.stats();
                assert_eq!(after.bytes_lent - before.bytes_lent, len as u64);
                assert_eq!(after.bytes_copied - before.bytes_copied, len as u64);
                assert!(after.bytes_out - before.bytes_out < 500, "{len}");
            }
            kept += 1;
            sent += 2 * len;
        }
        assert_eq!(peer.told("check").await, "6 are the same");
        assert_eq!(peer.told("stats").await, format!("{sent} 0"));
        assert_eq!(
            lendable(context.pool()).taken,
            0,
            "its own pool lends nothing"
        );
    });
}

#[test]
fn a_large_one_is_copied_when_its_reader_wants_it() {
    alone(async || {
        let context = context("parent", 64 << 20);
        let peer = Peer::start(&context, &[]).await;
        check(&given(&peer, 40_000, 1).await, 1);
        let before = shared_bytes(peer.child.id());
        let ask = Message::new(format!("give heap {} 2", 24 * MIB));
        peer.pipe.send(ask).unwrap();
        let incoming = soon("a descriptor", peer.pipe.read_descriptor())
            .await
            .unwrap();
        assert_eq!(shared_bytes(peer.child.id()), before);
        let message = soon("the read", incoming.read()).await.unwrap();
        check(&message.tensors[0].tensor, 2);
        assert_eq!(shared_bytes(peer.child.id()), before + 24 * MIB as u64);
        // One that it does not want is not copied at all.
        let ask = Message::new(format!("give heap {} 3", 48 * MIB));
        peer.pipe.send(ask).unwrap();
        soon("a descriptor", peer.pipe.read_descriptor())
            .await
            .unwrap()
            .skip();
        assert_eq!(peer.told("stats").await.split(' ').count(), 2);
        assert_eq!(shared_bytes(peer.child.id()), before + 24 * MIB as u64);
    });
}

/// Who keeps what it is sent has a share of its own. Beyond it tensors come by another channel, and all of them come.
#[test]
fn a_hoarder_uses_up_its_own_share_and_nothing_else() {
    alone(async || {
        let context = context("parent", 64 << 20);
        let (hoarder, other) = (
            Peer::start(&context, &[]).await,
            Peer::start(&context, &[]).await,
        );
        const LEN: usize = 8 * MIB;
        let tensor = of_heap(LEN, 1);
        let many = (SHARE / LEN) as u64;
        for _ in 0..many + 4 {
            hoarder.keeps(&tensor, 1).await;
        }
        let told = hoarder.told("check").await;
        assert_eq!(told, format!("{} are the same", many + 4));
        let lent = |peer: &Peer| peer.pipe.stats().bytes_lent / LEN as u64;
        assert_eq!(lent(&hoarder), many, "the rest came otherwise");
        other.keeps(&tensor, 1).await;
        assert_eq!(lent(&other), 1, "another one has its own");
        hoarder.keeps(&made(context.pool(), LEN, 2), 2).await;
        assert_eq!(
            lent(&hoarder),
            many + 1,
            "what an application has lies elsewhere"
        );
        hoarder.told("forget 4").await;
        hoarder.keeps(&tensor, 1).await;
        assert_eq!(lent(&hoarder), many + 2, "there is room again");
    });
}

#[test]
fn a_copy_outlives_the_process_that_made_it() {
    alone(async || {
        let context = context("parent", 64 << 20);
        for len in [100_000, 5 * MIB] {
            let mut peer = Peer::start(&context, &[]).await;
            let copy = given(&peer, len, 7).await;
            assert!(is_borrowed(&copy));
            peer.child.kill();
            let error = soon("the end", peer.pipe.ended()).await;
            assert!(matches!(error, Error::Lost { .. }), "{error:?}");
            drop(peer);
            check(&copy, 7);
        }
    });
}

#[test]
fn copies_for_a_process_that_was_killed_are_freed() {
    alone(async || {
        let context = context("parent", 64 << 20);
        let mut peer = Peer::start(&context, &[]).await;
        for len in [100_000, 5 * MIB] {
            peer.keeps(&of_heap(len, 1), 1).await;
        }
        assert!(mappings() > 2);
        peer.child.kill();
        soon("the end", peer.pipe.ended()).await;
        eventually("nothing is mapped", || mappings() == 0).await;
    });
}

#[test]
fn copies_are_freed_when_none_was_made_for_a_while() {
    alone(async || {
        let context = context("parent", 64 << 20);
        let peer = Peer::start(&context, &[]).await;
        let before = mappings();
        peer.keeps(&of_heap(5 * MIB, 1), 1).await;
        peer.keeps(&of_heap(100_000, 2), 2).await;
        peer.told("forget 1").await;
        assert_eq!(mappings(), before + 3);
        // The ledger stays, and what the reader keeps.
        eventually("the large one is unmapped", || mappings() == before + 2).await;
        assert_eq!(peer.told("check").await, "1 are the same");
        peer.keeps(&of_heap(5 * MIB, 3), 3).await;
        assert_eq!(peer.told("check").await, "2 are the same");
    });
}

#[test]
fn what_is_taken_back_at_any_moment_is_let_go_of() {
    alone(async || {
        let context = context("parent", 64 << 20);
        let peer = Peer::start(&context, &[]).await;
        peer.keeps(&of_heap(100_000, 1), 1).await;
        // Copied in pieces before the message leaves, and when the reader asks.
        for len in [MIB, 64 * MIB] {
            for micros in [0u64, 20, 50, 100, 200, 500, 1000, 3000, 10_000] {
                let tensor = of_heap(len, 2);
                let memory = Arc::downgrade(tensor.buffer().memory());
                let write = peer.pipe.write(Message::new("keep").tensor(tensor));
                tokio::time::sleep(std::time::Duration::from_micros(micros)).await;
                write.cancel();
                eventually("the source is free", || memory.strong_count() == 0).await;
            }
        }
        peer.keeps(&of_heap(3 * MIB, 3), 3).await;
        peer.told("forget 1").await;
        assert!(peer.told("stats").await.ends_with(" 0"), "it goes on");
    });
}

/// Writing to borrowed memory copies it into warm memory of the reader's pool.
#[test]
fn who_writes_to_a_copy_gets_memory_of_the_pool() {
    alone(async || {
        let context = context("parent", 64 << 20);
        let peer = Peer::start(&context, &[]).await;
        for round in 0..3 {
            let mut copy = given(&peer, 300_000, round).await;
            assert!(is_borrowed(&copy));
            copy.make_mut::<u8>().unwrap()[0] ^= 0xff;
            assert!(!is_borrowed(&copy));
            let (first, rest) = copy.as_bytes().unwrap().split_first().unwrap();
            let expected = pattern(300_000, round);
            assert_eq!((*first, rest), (expected[0] ^ 0xff, &expected[1..]));
        }
        let stats = context.pool().stats();
        assert_eq!((stats.fresh, stats.recycled), (1, 2));
    });
}

/// Whoever parses bytes has them where no other process can change them.
#[test]
fn payloads_come_in_private_memory() {
    alone(async || {
        let context = context("parent", 64 << 20);
        let peer = Peer::start(&context, &[]).await;
        for len in [20_000, 3 * MIB] {
            let ask = Message::new(format!("give payload {len} 4"));
            peer.pipe.send(ask).unwrap();
            let message = soon("a payload", peer.pipe.read()).await.unwrap();
            let data = &message.payloads[0].data;
            assert!(data.memory().is_private());
            assert!(data.as_bytes().unwrap() == pattern(len, 4));
        }
        assert_eq!(peer.pipe.stats().bytes_borrowed, 0);
    });
}

/// Who borrows nothing is offered nothing, and still gets back what it has lent itself.
#[test]
fn whoever_only_lends_has_what_it_receives_for_itself() {
    alone(async || {
        let context = builder("parent", 64 << 20).prefer_channel(LeaseChannel::lends_only());
        let context = context.build().unwrap();
        let peer = Peer::start(&context, &[]).await;
        let lent = made(context.pool(), 3 * MIB, 9);
        for len in [100_000, 3 * MIB] {
            let copied = given(&peer, len, 5).await;
            peer.pipe
                .send(Message::new(format!("give {len} 6")))
                .unwrap();
            let mut message = soon("pool memory", peer.pipe.read()).await.unwrap();
            let pooled = message.tensors.remove(0).tensor;
            for (tensor, seed) in [(&copied, 5), (&pooled, 6)] {
                assert!(tensor.buffer().memory().is_private());
                check(tensor, seed);
            }
            let back = peer.echoes(&lent).await;
            let at = |tensor: &Tensor| tensor.as_bytes().unwrap().as_ptr();
            assert_eq!(at(&back), at(&lent), "nothing moved");
        }
        assert_eq!(peer.told("diverted").await, "0");
        assert_eq!(peer.pipe.stats().bytes_lent, 2 * 3 * MIB as u64);
    });
}

/// Two ends in this process, as if in two; the client's process is known to the server, and the server's to the client.
async fn within_process() -> (Context, Pipe, Pipe) {
    let channels: Vec<Arc<dyn Channel>> = vec![
        Arc::new(LeaseChannel::also_within_process()),
        Arc::new(BasicChannel::new()),
    ];
    let context = Context::builder().channels(channels).build().unwrap();
    let (client, server) = pair(&context, &context, "tcp://127.0.0.1:0").await;
    for (from, to) in [(&client, &server), (&server, &client)] {
        from.send(Message::new("first").tensor(of_heap(40_000, 1)))
            .unwrap();
        soon("the first", to.read()).await.unwrap();
    }
    (context, client, server)
}

#[test]
fn small_messages_pass_while_much_is_copied() {
    runtime().block_on(async {
        let (_context, client, server) = within_process().await;
        let tensor = of_heap(200 * MIB, 2);
        // A thread of its own may copy all of it while this one does not run at all.
        for tries_left in (0..5).rev() {
            let write = client.write(Message::new("large").tensor(tensor.clone()));
            let large = soon("its descriptor", server.read_descriptor()).await;
            let mut read = Box::pin(large.unwrap().read());
            assert!(futures_util::poll!(&mut read).is_pending());
            client.send(Message::new("small")).unwrap();
            let small = soon("a small one", server.read()).await.unwrap();
            assert_eq!(small.metadata, "small");
            let passed = futures_util::poll!(&mut read).is_pending();
            if !passed {
                assert!(tries_left > 0, "it never passes the large one");
                continue;
            }
            let (written, read) = soon("the large one", async { tokio::join!(write, read) }).await;
            written.unwrap();
            return check(&read.unwrap().tensors[0].tensor, 2);
        }
    });
}

/// Sends what has to be copied, and then a small message of which somebody wants to know how it ends.
struct Answers {
    pipe: Pipe,
    write: Mutex<Option<Write>>,
}

impl Handler for Answers {
    fn incoming(&self, incoming: Incoming) {
        drop(incoming);
        let large = Message::new("large").tensor(of_heap(MIB, 2));
        self.pipe.send(large).unwrap();
        *self.write.lock().unwrap() = Some(self.pipe.write(Message::new("small")));
    }
    fn message(&self, _: u64, _: Result<Message, Error>, _: MessageStats, _: Held) {}
    fn closed(&self, _: &Error) {}
}

#[test]
fn whoever_writes_behind_a_copy_hears_how_it_ended() {
    runtime().block_on(async {
        let (_context, client, server) = within_process().await;
        let handler = Arc::new(Answers {
            pipe: server.clone(),
            write: Mutex::default(),
        });
        server.set_handler(handler.clone()).unwrap();
        client.send(Message::new("go")).unwrap();
        for expected in ["large", "small"] {
            let message = soon("an answer", client.read()).await.unwrap();
            assert_eq!(message.metadata, expected);
        }
        let write = handler.write.lock().unwrap().take().unwrap();
        soon("its end", write).await.unwrap();
    });
}
