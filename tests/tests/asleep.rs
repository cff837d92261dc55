//! The cost of a call after a pause, when both ends are asleep: one wake-up each way, whatever the call carries. Of an answer that is lent
//! the server hears once more.
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

/// What carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Upload,
    Download,
}

fn message(len: usize) -> Message {
    let message = Message::new(len.to_string());
    match len {
        0 => message,
        _ => message.tensor(Tensor::from_vec(pattern(len, 1), [len as u64]).unwrap()),
    }
}

fn bytes_of(message: &Message) -> usize {
    let tensors = message.tensors.iter();
    tensors.map(|part| part.tensor.byte_len()).sum()
}

/// Answers each message, when it has looked at it: with how many bytes it has, or with as many as it wants.
async fn serve(server: Pipe) {
    while let Ok(asked) = server.read().await {
        let (wanted, bytes) = (asked.metadata.clone(), bytes_of(&asked));
        drop(asked);
        let wanted = std::str::from_utf8(&wanted).unwrap();
        let answer = match wanted.strip_prefix("download ") {
            Some(wanted) => message(wanted.parse().unwrap()),
            None => Message::new(bytes.to_string()),
        };
        server.send(answer).unwrap();
    }
}

async fn call(client: &Pipe, len: usize, way: Way) {
    let request = match way {
        Way::Upload => message(len),
        Way::Download => Message::new(format!("download {len}")),
    };
    client.send(request).unwrap();
    let answer = client.read().await.unwrap();
    assert_eq!(answer.metadata, len.to_string());
    assert_eq!(bytes_of(&answer), if way == Way::Upload { 0 } else { len });
}

const CALLS: u64 = 10;

/// Makes [`CALLS`] calls. Returns how much `count` grew at both ends together.
async fn counted(ends: [&Pipe; 2], len: usize, way: Way, count: fn(&PipeStats) -> u64) -> [u64; 2] {
    let counts = || ends.map(|end| count(&end.stats()));
    // Segments are exchanged, and polling is given up.
    for _ in 0..8 {
        sleep(PAUSE).await;
        call(ends[0], len, way).await;
    }
    let before = counts();
    for _ in 0..CALLS {
        sleep(PAUSE).await;
        call(ends[0], len, way).await;
    }
    sleep(PAUSE).await;
    let after = counts();
    std::array::from_fn(|end| after[end] - before[end])
}

async fn once_each_way(transport: Arc<dyn Transport>, url: &str, count: fn(&PipeStats) -> u64) {
    let (_context, client, server) = pair(transport, url).await;
    let served = server.clone();
    let serving = tokio::spawn(serve(server));
    for (len, way) in [0, 4 << 10, 64 << 10, 256 << 10, 1 << 20]
        .into_iter()
        .flat_map(|len| [(len, Way::Upload), (len, Way::Download)])
    {
        // If no call follows soon, the client has a word of its own for what it was lent.
        let is_lent = way == Way::Download && len >= 64 << 10;
        let words = if is_lent { CALLS + 1 } else { 0 };
        // A busy machine may keep an end from its answer for longer than what goes with it waits: not in each round.
        let mut rounds = Vec::new();
        let mut once = 0;
        while once < 2 {
            let counted = counted([&client, &served], len, way, count).await;
            rounds.push(counted);
            // Fewer where an end had not fallen asleep yet.
            let most = [CALLS + words, CALLS];
            once +=
                usize::from((counted.iter().zip(most)).all(|(end, most)| (1..=most).contains(end)));
            let disturbed = rounds.len() - once;
            assert!(
                disturbed <= 4,
                "{way:?} of {len} bytes: {rounds:?} for {CALLS} calls"
            );
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
