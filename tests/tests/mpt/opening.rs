//! Extra connections are opened when they are needed, and the pipe works without them.

use std::sync::Arc;
use std::time::Duration;

use tensorpipe::channels::{MptChannel, Pays, Threshold};
use tensorpipe::transports::TcpTransport;
use tensorpipe::{Error, Message, Misuse, Pipe, Tensor};
use tensorpipe_tests::eventually;

use crate::proxy::Proxy;
use crate::scene::{builder, carry, numbers, pair, soon};

const MIB: usize = 1 << 20;

#[tokio::test]
async fn a_pipe_of_small_tensors_has_one_connection_and_the_first_large_one_brings_the_others() {
    let proxy = Proxy::default();
    let pair = pair(3, TcpTransport::new(), |port| proxy.start(port)).await;
    for _ in 0..3 {
        carry(&pair.client, &pair.server, 3 * MIB).await;
        carry(&pair.server, &pair.client, 3 * MIB).await;
    }
    assert_eq!(proxy.seen(), 1);
    carry(&pair.server, &pair.client, 9 * MIB).await;
    // One may be enough for the first tensor; the others are on their way.
    eventually("all connections", || proxy.seen() == 4).await;
    carry(&pair.client, &pair.server, 9 * MIB).await;
    assert_eq!(proxy.seen(), 4);
    // What is late is sent by another, too.
    assert!(pair.sent().iter().sum::<u64>() >= 18);
    // They end with the pipe.
    pair.client.close().await.unwrap();
    drop(pair);
    eventually("the end of all connections", || proxy.alive() == 0).await;
}

#[tokio::test]
async fn without_its_listener_a_pipe_goes_on_with_one_connection() {
    for by_client in [true, false] {
        let mut pair = pair(4, TcpTransport::new(), async |port| port).await;
        drop(pair.listener.take());
        for _ in 0..2 {
            if by_client {
                carry(&pair.client, &pair.server, 9 * MIB).await;
                carry(&pair.server, &pair.client, 5 * MIB).await;
            } else {
                carry(&pair.server, &pair.client, 9 * MIB).await;
                carry(&pair.client, &pair.server, 5 * MIB).await;
            }
        }
        assert_eq!(pair.sent(), [0; 4]);
        // Both ends have found out, choose otherwise, and say why.
        for pipe in [&pair.client, &pair.server] {
            let route = pipe.route().to_string();
            assert!(route.contains("; sends nothing: "), "{route}");
            assert!(route.contains("64 KiB, basic above"), "{route}");
        }
    }
}

/// What each end says of each tensor does not grow with how many there are: the peer bounds what it takes.
#[tokio::test]
async fn many_tensors_each_way_at_once_do_without_connections() {
    const TENSORS: usize = 400;
    let end = |name| {
        let builder = builder(name, Arc::new(MptChannel::new()), TcpTransport::new());
        let always = Threshold::new(Pays::BeyondFrame);
        builder.threshold("mpt", always).build().unwrap()
    };
    let (server, client) = (end("server"), end("client"));
    let listener = server.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let (client, server) = tokio::join!(client.connect(listener.url()), listener.accept());
    let (client, server) = (client.unwrap(), server.unwrap());
    drop(listener);
    let tensor = Tensor::from(numbers(300 << 10));
    for pipe in [&client, &server] {
        for _ in 0..TENSORS {
            pipe.send(Message::new("").tensor(tensor.clone())).unwrap();
        }
    }
    let read_all = async |pipe: &Pipe| {
        let mut reads = Vec::new();
        for _ in 0..TENSORS {
            reads.push(pipe.read_descriptor().await.unwrap().read());
        }
        for read in reads {
            let message = read.await.unwrap();
            assert_eq!(message.tensors[0].tensor.byte_len(), 300 << 10);
        }
    };
    let all = async { tokio::join!(read_all(&client), read_all(&server)) };
    soon("all tensors", all).await;
}

/// `mpt` was chosen, and finds out later that it has no connections.
#[tokio::test]
async fn what_has_to_go_over_it_does_not_go_otherwise_either() {
    let mut pair = pair(2, TcpTransport::new(), async |port| port).await;
    drop(pair.listener.take());
    let message = Message::new("").tensor(Tensor::from(numbers(9 * MIB)));
    let required = message.require(["mpt"]);
    let (written, read) = soon("an end", async {
        tokio::join!(pair.client.write(required), pair.server.read())
    })
    .await;
    let Err(Error::Misuse(Misuse::NotAsRequired {
        required,
        instead,
        reason,
        ..
    })) = &written
    else {
        panic!("{written:?}");
    };
    assert_eq!((&**required, &**instead), ("mpt", "basic"));
    assert_eq!(&**reason, "there are no connections of its own");
    let read = read.unwrap_err();
    assert!(!read.ends_pipe(), "{read}");
    // Nothing of it has left, and what has no such wish goes.
    assert!(pair.client.stats().bytes_out < MIB as u64);
    assert_eq!(pair.client.stats().bytes_diverted, 0);
    carry(&pair.client, &pair.server, 9 * MIB).await;
}

#[tokio::test]
async fn a_connection_that_ends_idle_is_done_without() {
    let proxy = Proxy::default();
    let pair = pair(3, TcpTransport::new(), |port| proxy.start(port)).await;
    carry(&pair.client, &pair.server, 8 * MIB).await;
    eventually("all connections", || proxy.seen() == 4).await;
    for number in 1..4 {
        // Confirmed, and seen to be gone, before the next tensor.
        tokio::time::sleep(Duration::from_millis(100)).await;
        proxy.cut(number);
        eventually("its end", || proxy.alive() == 4 - number).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let before: u64 = pair.sent().iter().sum();
        carry(&pair.client, &pair.server, 8 * MIB).await;
        carry(&pair.server, &pair.client, 8 * MIB).await;
        let chunks = if number < 3 { 16 } else { 0 };
        let sent = pair.sent().iter().sum::<u64>() - before;
        assert!(sent >= chunks && (sent == 0) == (chunks == 0), "{sent}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_connection_carries_less() {
    const SLOW: u64 = 2 << 20;
    let transport = TcpTransport::paced(|number| (number == 1).then_some(SLOW));
    let pair = pair(4, transport, async |port| port).await;
    // All of them are there.
    soon("a chunk on each", async {
        while pair.sent().contains(&0) {
            carry(&pair.client, &pair.server, 8 * MIB).await;
        }
    })
    .await;
    let before = pair.sent();
    carry(&pair.client, &pair.server, 96 * MIB).await;
    let sent: Vec<u64> = pair
        .sent()
        .iter()
        .zip(before)
        .map(|(now, then)| now - then)
        .collect();
    assert!(sent.iter().sum::<u64>() >= 192);
    let least = sent.iter().min().unwrap();
    let others = (192 - least) / 3;
    assert!(2 * least < others, "{sent:?}");
}
