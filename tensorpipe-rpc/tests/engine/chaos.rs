//! Peers that do anything that the calls' protocol can say, in any order: every call ends, and nothing is left behind.

use std::time::Duration;

use tensorpipe::engine::EnginePipe;
use tensorpipe::{DType, Incoming, Message, Pipe, ResetCode, Tensor};
use tensorpipe_rpc::{Connection, ServerLimits};

use super::common::Numbers;
use super::lab::{LabClient, MIB, both, tcp, until};
use super::raw::raw_call;

fn noise(numbers: &mut Numbers, len: u64) -> Vec<u8> {
    (0..numbers.next() % len)
        .map(|_| numbers.next() as u8)
        .collect()
}

/// A header that is nearly right, of any kind.
fn nearly(numbers: &mut Numbers, call: u64) -> Message {
    let kind = numbers.next() % 11;
    let len = [0, 4, 12, 28, 52, 255][numbers.next() as usize % 6];
    let mut metadata = vec![
        kind as u8,
        len,
        numbers.next() as u8 & 3,
        numbers.next() as u8 % 11,
    ];
    metadata.extend_from_slice(&call.to_le_bytes());
    metadata.extend(noise(numbers, 60));
    let message = Message::new(metadata);
    match numbers.next() % 4 {
        0 => message.tensor(Tensor::zeros(DType::U8, [300_000]).unwrap()),
        1 => message.tensor(Tensor::scalar(1f32)),
        _ => message,
    }
}

/// Takes a message in one of the ways that there are.
async fn take(numbers: &mut Numbers, incoming: Incoming) {
    match numbers.next() % 5 {
        0 => incoming.skip(),
        1 => incoming.refuse("no"),
        2 => drop(incoming.read()),
        _ => {
            let read = tokio::time::timeout(Duration::from_millis(5), incoming.read());
            let _ = read.await;
        }
    }
}

/// One client does anything to a server, and hears what it likes.
async fn any_client(pipe: &Pipe, numbers: &mut Numbers) {
    let mut sent = Vec::new();
    let small = Tensor::from(vec![1u8; 100]);
    let large = Tensor::zeros(DType::U8, [1 << 20]).unwrap();
    for _ in 0..400 {
        let id = numbers.next() % 20;
        let message = match numbers.next() % 9 {
            0 => raw_call("echo", id, b"\x03abc"),
            1 => raw_call("zeros", id, &MIB),
            2 => raw_call("length", id, &[0]).tensor(small.clone()),
            3 => raw_call("length", id, &[0]).tensor(large.clone()),
            // A minute, or until it is told.
            4 => raw_call("sleep", id, &[0xe0, 0xd4, 0x03]),
            5 => raw_call("delegate", id, &[]),
            6 => Message::new(noise(numbers, 80)),
            _ => nearly(numbers, id),
        };
        let Ok(number) = pipe.send(message) else {
            return;
        };
        sent.push(number);
        match numbers.next() % 6 {
            0 => {
                let number = sent[numbers.next() as usize % sent.len()];
                let code = [ResetCode::Cancelled, ResetCode::Failed, ResetCode::Deadline];
                pipe.reset(number, code[numbers.next() as usize % 3], "a whim");
            }
            1 => tokio::task::yield_now().await,
            2 | 3 => {
                let next = tokio::time::timeout(Duration::from_millis(1), pipe.read_descriptor());
                if let Ok(Ok(incoming)) = next.await {
                    take(numbers, incoming).await;
                }
            }
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_client() {
    let mut limits = ServerLimits::default();
    limits.calls_per_connection = 64;
    let both = both(tcp(), tcp(), limits).await;
    let url = both.server.url().to_string();
    for seed in 1..=6 {
        let pipe = both.near.connect(&url).await.unwrap();
        let mut numbers = Numbers(seed * 0x9e37_79b9);
        any_client(&pipe, &mut numbers).await;
        match seed % 3 {
            0 => drop(pipe.close().await),
            1 => {
                pipe.go_away("enough");
                drop(pipe);
            }
            _ => drop(pipe),
        }
        until(|| both.server.pipes().len() == 1).await;
        both.is_clean().await;
    }
}

/// One server answers anything to its clients.
async fn any_server(pipe: Pipe, mut numbers: Numbers) {
    let mut seen = vec![0];
    loop {
        let next = tokio::time::timeout(Duration::from_millis(2), pipe.read_descriptor());
        match next.await {
            Ok(Ok(incoming)) => {
                let metadata = &incoming.descriptor().metadata;
                if let Some(id) = metadata.get(4..12) {
                    seen.push(u64::from_le_bytes(id.try_into().unwrap()));
                }
                if metadata[0] == 5 {
                    let mut service = vec![2, 12, 0, 0];
                    service.extend_from_slice(&metadata[4..12]);
                    service.push(0);
                    drop(incoming.read().await);
                    let _ = pipe.send(Message::new(service));
                    continue;
                }
                take(&mut numbers, incoming).await;
            }
            Ok(Err(_)) => return,
            Err(_) => {}
        }
        for _ in 0..numbers.next() % 4 {
            let call = seen[numbers.next() as usize % seen.len()];
            let Ok(number) = pipe.send(nearly(&mut numbers, call)) else {
                return;
            };
            if numbers.next().is_multiple_of(4) {
                pipe.reset(number, ResetCode::Failed, "a whim");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_server() {
    let context = tcp().build().unwrap();
    let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let url = listener.url().to_string();
    for seed in 1..=6 {
        let (near, far) = tokio::join!(context.connect(&url), listener.accept());
        let numbers = Numbers(seed * 0x9e37_79b9);
        let server = tokio::spawn(any_server(far.unwrap(), numbers));
        let connection = Connection::over(near.unwrap()).unwrap();
        let client = LabClient::on(&connection).await.unwrap();
        let hurried = client.with_deadline(Duration::from_millis(30));
        let large = Tensor::zeros(DType::U8, [1 << 20]).unwrap();
        for _ in 0..10 {
            let echoes: Vec<_> = (0..6).map(|_| hurried.echo("abc")).collect();
            let lengths: Vec<_> = (0..6).map(|_| hurried.length(&large)).collect();
            let bounced = [hurried.bounce(&large), hurried.zeros(5)];
            drop(hurried.bounce(&large));
            let all = async {
                // Whatever they say.
                for echo in echoes {
                    let _ = echo.await;
                }
                for length in lengths {
                    let _ = length.await;
                }
                for tensor in bounced {
                    let _ = tensor.await;
                }
            };
            let ended = tokio::time::timeout(Duration::from_secs(20), all);
            ended.await.expect("within their deadlines");
        }
        assert_eq!(connection.calls_under_way(), 0, "seed {seed}");
        // The server may have broken what a pipe is; if not, what was sent is not held any more.
        let pipe = connection.pipe().clone();
        until(|| pipe.has_ended() || pipe.unwritten() == 0).await;
        drop((client, hurried, connection, pipe));
        server.await.unwrap();
        until(|| context.pool().stats().outstanding_bytes == 0).await;
    }
}
