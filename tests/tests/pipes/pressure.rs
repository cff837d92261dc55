//! Back-pressure: what is in flight is bounded, a slow reader slows its writer and nobody else, nothing starves.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::*;

const SMALL: usize = 32 << 10;

#[tokio::test]
async fn a_slow_reader_slows_its_writer_and_nobody_else() {
    let context = over_tcp().build().unwrap();
    let reading = over_tcp().build().unwrap();
    let (slow_client, slow_server) = pair(&context, &reading).await;
    let (client, server) = pair(&context, &reading).await;
    let written = Arc::new(AtomicU64::new(0));
    let count = written.clone();
    let writer = tokio::spawn(async move {
        for number in 0..1000 {
            slow_client.write(message(number, SMALL)).await.unwrap();
            count.fetch_add(1, Ordering::SeqCst);
        }
        slow_client
    });
    for number in 0..50 {
        exchange(&client, &server, number, 200_000).await;
        exchange(&server, &client, number, 10).await;
    }
    let mut before = u64::MAX;
    while before != written.load(Ordering::SeqCst) {
        before = written.load(Ordering::SeqCst);
        pause(100).await;
    }
    // The window is 4 MiB: 128 messages and their heads.
    assert!(
        (64..=128).contains(&before),
        "{before} messages without a reader"
    );
    let held = reading.pool().stats().outstanding_bytes;
    assert!(held <= 6 << 20, "{held} bytes are held");
    for number in 0..1000 {
        comes(&slow_server, number, SMALL).await;
    }
    soon("the writer", writer).await.unwrap();
}

#[tokio::test]
async fn large_tensors_wait_at_the_writer() {
    let sending = over_tcp().build().unwrap();
    let reading = over_tcp().build().unwrap();
    let (client, server) = pair(&sending, &reading).await;
    let writes: Vec<_> = (0..20)
        .map(|number| client.write(message(number, 3 << 20)))
        .collect();
    pause(200).await;
    assert_eq!(reading.pool().stats().outstanding_bytes, 0);
    assert!(client.stats().bytes_out < 64 << 10, "{:?}", client.stats());
    for number in 0..20 {
        comes(&server, number, 3 << 20).await;
    }
    for write in writes {
        soon("a write", write).await.unwrap();
    }
}

#[tokio::test]
async fn many_writes_before_reads_keep_their_order() {
    every_way(async |_, client, server| {
        for number in 0..3000 {
            client
                .send(message(number, (number % 50) as usize * 3000))
                .unwrap();
        }
        for number in 0..3000 {
            let read = soon("a read", server.read()).await.unwrap();
            check(&read, number, (number % 50) as usize * 3000);
        }
    })
    .await;
}

#[tokio::test]
async fn reads_complete_independently() {
    let (client, server) = tcp_pair().await;
    let large = client.write(message(0, 96 << 20));
    let small = client.write(message(1, 100_000));
    let tiny = client.write(message(2, 10));
    let (a, b, c) = (
        server.read_descriptor().await.unwrap().read(),
        server.read_descriptor().await.unwrap().read(),
        server.read_descriptor().await.unwrap().read(),
    );
    let mut order = Vec::new();
    let (mut a, mut b, mut c) = (Box::pin(a), Box::pin(b), Box::pin(c));
    while order.len() < 3 {
        tokio::select! {
            read = &mut a, if !order.contains(&0) => { check(&read.unwrap(), 0, 96 << 20); order.push(0); }
            read = &mut b, if !order.contains(&1) => { check(&read.unwrap(), 1, 100_000); order.push(1); }
            read = &mut c, if !order.contains(&2) => { check(&read.unwrap(), 2, 10); order.push(2); }
        }
    }
    assert_eq!(order.last(), Some(&0), "the large one was in the way");
    for write in [large, small, tiny] {
        soon("a write", write).await.unwrap();
    }
}

#[tokio::test]
async fn small_messages_pass_a_large_tensor_in_both_directions() {
    let (client, server) = tcp_pair().await;
    let sender = client.clone();
    let large = tokio::spawn(async move { sender.write(message(0, 256 << 20)).await });
    let reading = server.read_descriptor().await.unwrap().read();
    let reading = tokio::spawn(reading);
    let mut rounds = 0;
    let mut slowest = Duration::ZERO;
    while !reading.is_finished() {
        let begun = Instant::now();
        rounds += 1;
        exchange(&client, &server, rounds, 1000).await;
        exchange(&server, &client, rounds, 1000).await;
        slowest = slowest.max(begun.elapsed());
    }
    check(&reading.await.unwrap().unwrap(), 0, 256 << 20);
    large.await.unwrap().unwrap();
    assert!(
        rounds > 3,
        "{rounds} round trips during the transfer, the slowest took {slowest:?}"
    );
}

#[tokio::test]
async fn a_queue_of_writes_is_bounded() {
    let limits = limits(|limits| limits.queued_writes = 10);
    let context = over_tcp().limits(limits).build().unwrap();
    let (client, server) = pair(&context, &context).await;
    let writes: Vec<_> = (0..10)
        .map(|number| client.write(message(number, 1 << 20)))
        .collect();
    let refused = client.send(message(10, 1 << 20)).unwrap_err();
    assert!(
        refused.to_string().contains("10 writes are queued"),
        "{refused}"
    );
    for number in 0..10 {
        comes(&server, number, 1 << 20).await;
    }
    for write in writes {
        soon("a write", write).await.unwrap();
    }
    exchange(&client, &server, 11, 1 << 20).await;
}
