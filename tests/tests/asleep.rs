//! What a call costs after a pause, when both ends have fallen asleep: one wake-up each way, whatever it carries.
#![allow(missing_docs, reason = "a test")]

use std::sync::Arc;
use std::time::Duration;

use tensorpipe::channels::{BasicChannel, Channel, LeaseChannel};
use tensorpipe::conformance::pattern;
use tensorpipe::transports::{ShmTransport, TcpTransport, Transport};
use tensorpipe::{Context, Message, Pipe, Tensor, Timeouts};
use tokio::time::sleep;

/// Long enough for whoever polls to have given that up, and for answers that nobody waits for to have left.
const PAUSE: Duration = Duration::from_millis(20);

/// Two ends in this process, as if in two.
async fn pair(transport: Arc<dyn Transport>, url: &str) -> (Context, Pipe, Pipe) {
    let channels: [Arc<dyn Channel>; 2] = [
        Arc::new(LeaseChannel::also_within_process()),
        Arc::new(BasicChannel::new()),
    ];
    let builder = Context::builder()
        .transports([transport])
        .channels(channels);
    // Nor is anything said only to be heard.
    let mut timeouts = Timeouts::default();
    timeouts.silence = None;
    let context = builder.timeouts(timeouts).build().unwrap();
    let listener = context.listen([url]).await.unwrap();
    let (client, server) = tokio::join!(context.connect(listener.url()), listener.accept());
    (context, client.unwrap(), server.unwrap())
}

/// Answers each message, when it has looked at it.
async fn serve(server: Pipe) {
    while let Ok(message) = server.read().await {
        let tensors = message.tensors.iter();
        let bytes: usize = tensors.map(|part| part.tensor.byte_len()).sum();
        drop(message);
        server.send(Message::new(bytes.to_string())).unwrap();
    }
}

async fn call(client: &Pipe, len: usize) {
    let mut message = Message::new("call");
    if len > 0 {
        message = message.tensor(Tensor::from_vec(pattern(len, 1), [len as u64]).unwrap());
    }
    client.send(message).unwrap();
    let answer = client.read().await.unwrap();
    assert_eq!(answer.metadata, len.to_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_over_shm_wakes_each_end_once() {
    let url = format!("shm://asleep-{}", std::process::id());
    let (_context, client, server) = pair(Arc::new(ShmTransport::new()), &url).await;
    let served = server.clone();
    let serving = tokio::spawn(serve(server));
    for len in [0, 4 << 10, 64 << 10, 256 << 10, 1 << 20] {
        // Segments are exchanged, and polling is given up.
        for _ in 0..8 {
            sleep(PAUSE).await;
            call(&client, len).await;
        }
        const CALLS: u64 = 20;
        let before = (client.stats().wakes, served.stats().wakes);
        for _ in 0..CALLS {
            sleep(PAUSE).await;
            call(&client, len).await;
        }
        sleep(PAUSE).await;
        let wakes = (
            client.stats().wakes - before.0,
            served.stats().wakes - before.1,
        );
        println!("{len} bytes: {wakes:?} wake-ups of {CALLS} calls, there and back");
        assert!(
            wakes.0 <= CALLS && wakes.1 <= CALLS,
            "{len} bytes: {wakes:?}"
        );
    }
    serving.abort();
}

/// Over a socket the kernel wakes: what is counted are the writes, each of which may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_over_tcp_is_one_write_each_way() {
    let (_context, client, server) = pair(Arc::new(TcpTransport::new()), "tcp://127.0.0.1:0").await;
    let served = server.clone();
    let serving = tokio::spawn(serve(server));
    for len in [0, 4 << 10, 64 << 10, 256 << 10, 1 << 20] {
        for _ in 0..8 {
            sleep(PAUSE).await;
            call(&client, len).await;
        }
        const CALLS: u64 = 20;
        let before = (client.stats().writes, served.stats().writes);
        for _ in 0..CALLS {
            sleep(PAUSE).await;
            call(&client, len).await;
        }
        sleep(PAUSE).await;
        let writes = (
            client.stats().writes - before.0,
            served.stats().writes - before.1,
        );
        println!("{len} bytes: {writes:?} writes of {CALLS} calls, there and back");
        assert!(
            writes.0 <= CALLS && writes.1 <= CALLS,
            "{len} bytes: {writes:?}"
        );
    }
    serving.abort();
}
