//! The cost of a call after a pause, when both ends are asleep: one wake-up each way, whatever the call carries.
#![allow(missing_docs, reason = "a test")]

use std::sync::Arc;
use std::time::Duration;

use tensorpipe::channels::{BasicChannel, Channel, LeaseChannel};
use tensorpipe::conformance::pattern;
use tensorpipe::transports::{ShmTransport, TcpTransport, Transport};
use tensorpipe::{Context, Message, Pipe, PipeStats, Tensor, Timeouts};
use tokio::time::sleep;

/// Long enough for all busy-polling to have stopped, and for delayed acknowledgements to have left.
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

const CALLS: u64 = 10;

/// Makes [`CALLS`] calls. Returns how much `count` grew at both ends together.
async fn counted(ends: [&Pipe; 2], len: usize, count: fn(&PipeStats) -> u64) -> [u64; 2] {
    let counts = || ends.map(|end| count(&end.stats()));
    // Segments are exchanged, and polling is given up.
    for _ in 0..8 {
        sleep(PAUSE).await;
        call(ends[0], len).await;
    }
    let before = counts();
    for _ in 0..CALLS {
        sleep(PAUSE).await;
        call(ends[0], len).await;
    }
    sleep(PAUSE).await;
    let after = counts();
    std::array::from_fn(|end| after[end] - before[end])
}

async fn once_each_way(transport: Arc<dyn Transport>, url: &str, count: fn(&PipeStats) -> u64) {
    let (_context, client, server) = pair(transport, url).await;
    let served = server.clone();
    let serving = tokio::spawn(serve(server));
    for len in [0, 4 << 10, 64 << 10, 256 << 10, 1 << 20] {
        // A busy machine may keep an end from its answer for longer than what goes with it waits: not in each round.
        let mut rounds = Vec::new();
        let mut once = 0;
        while once < 2 {
            let counted = counted([&client, &served], len, count).await;
            rounds.push(counted);
            // Fewer where an end had not fallen asleep yet.
            once += usize::from(counted.iter().all(|end| (1..=CALLS).contains(end)));
            let disturbed = rounds.len() - once;
            assert!(disturbed <= 4, "{len} bytes: {rounds:?} for {CALLS} calls");
        }
    }
    serving.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_over_shm_wakes_each_end_once() {
    let url = format!("shm://asleep-{}", std::process::id());
    once_each_way(Arc::new(ShmTransport::new()), &url, |stats| stats.wakes).await;
}

/// Over a socket the kernel wakes: what is counted are the writes, each of which may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_over_tcp_is_one_write_each_way() {
    let tcp = Arc::new(TcpTransport::new());
    once_each_way(tcp, "tcp://127.0.0.1:0", |stats| stats.writes).await;
}
