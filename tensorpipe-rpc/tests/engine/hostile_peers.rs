//! Hostile peers that speak the protocol of calls and break its rules.

use std::time::Duration;

use tensorpipe::{DType, Limits, Payload, Pipe, Tensor};
use tensorpipe_rpc::{CallError, ServerLimits};

use super::lab::{LabClient, both, tcp, until};
use super::raw::{self, BIND, FAILURE, VALUE, call_id, message, raw_call, take_bind};

const TARPC: u8 = 6;

async fn by_hand() -> (LabClient, Pipe) {
    let (connection, pipe) = raw::by_hand().await;
    let (client, ()) = tokio::join!(LabClient::on(&connection), take_bind(&pipe));
    (client.unwrap(), pipe)
}

#[tokio::test]
async fn a_server_that_answers_what_it_has_not_read_does_not_make_its_client_keep_it() {
    let (client, pipe) = by_hand().await;
    let large = Tensor::zeros(DType::U8, [1 << 20]).unwrap();
    let text = "x".repeat(1 << 20);
    let ways: [(_, u8, &[u8]); 2] = [
        (client.length(&large), VALUE, &[7]),
        (client.length(&large), FAILURE, b"no"),
    ];
    let unread = client.connection().pipe().clone();
    for (call, kind, body) in ways {
        let incoming = pipe.read_descriptor().await.unwrap();
        let id = call_id(&incoming.descriptor().metadata);
        pipe.send(message(kind, 1, id, body)).unwrap();
        match call.await {
            Ok(length) => assert_eq!((length, kind), (7, VALUE)),
            Err(error) => assert!(matches!(error, CallError::Panicked { .. }), "{error}"),
        }
        // Held here, and not asked for.
        until(|| unread.unwritten() <= 1).await;
        drop(incoming);
    }
    // A large body is a payload, too.
    let call = client.echo(&text);
    let incoming = pipe.read_descriptor().await.unwrap();
    let id = call_id(&incoming.descriptor().metadata);
    pipe.send(message(VALUE, 0, id, &[1, b'y'])).unwrap();
    assert_eq!(call.await.unwrap(), "y");
    until(|| unread.unwritten() == 0).await;
    // The pipe goes on.
    let call = client.echo("last");
    let last = pipe.read().await.unwrap();
    pipe.send(message(VALUE, 0, call_id(&last.metadata), &[1, b'z']))
        .unwrap();
    assert_eq!(call.await.unwrap(), "z");
}

#[tokio::test]
async fn answers_that_nobody_waits_for_change_nothing() {
    let (client, pipe) = by_hand().await;
    let large = || Tensor::zeros(DType::U8, [1 << 20]).unwrap();
    for round in 0..3 {
        let call = client.bounce(large());
        let id = call_id(&pipe.read().await.unwrap().metadata);
        // To nobody, small and large; to this call, twice.
        for other in [id + 1000, u64::MAX, id.wrapping_sub(1)] {
            pipe.send(message(VALUE, 0, other, b"?")).unwrap();
            pipe.send(message(VALUE, 0, other, &[0]).tensor(large()))
                .unwrap();
        }
        let first = Tensor::from(vec![round; 100_000]);
        pipe.send(message(VALUE, 0, id, &[0]).tensor(first))
            .unwrap();
        pipe.send(message(VALUE, 0, id, &[0]).tensor(large()))
            .unwrap();
        pipe.send(message(FAILURE, 1, id, b"after all")).unwrap();
        let answer = call.await.unwrap();
        assert_eq!(answer.as_slice::<u32>().unwrap(), vec![round; 100_000]);
        // Cancelled, and answered all the same.
        let call = client.bounce(large());
        let id = call_id(&pipe.read().await.unwrap().metadata);
        drop(call);
        pipe.send(message(VALUE, 0, id, &[0]).tensor(large()))
            .unwrap();
    }
    pipe.flush().await.unwrap();
    until(|| pipe.unwritten() == 0).await;
    assert_eq!(client.connection().calls_in_flight(), 0);
    let pool = client.connection().pipe().pool().clone();
    until(|| pool.stats().outstanding_bytes == 0).await;
}

#[tokio::test]
async fn two_calls_of_one_id_are_two_calls() {
    let both = both(tcp(), tcp(), ServerLimits::default()).await;
    let url = both.server.url().to_string();
    let pipe = both.near.connect(&url).await.unwrap();
    for text in ["one", "two"] {
        let mut argument = vec![3];
        argument.extend_from_slice(text.as_bytes());
        pipe.send(raw_call("echo", 5, &argument)).unwrap();
    }
    let mut answers = Vec::new();
    for _ in 0..2 {
        let reply = pipe.read().await.unwrap();
        assert_eq!((reply.metadata[0], call_id(&reply.metadata)), (VALUE, 5));
        answers.push(reply.metadata[13..].to_vec());
    }
    answers.sort();
    assert_eq!(answers, [b"one", b"two"]);
    both.is_clean().await;
}

#[tokio::test]
async fn a_servers_words_do_not_move_the_cursor() {
    let (client, pipe) = by_hand().await;
    let call = client.echo("x");
    let id = call_id(&pipe.read().await.unwrap().metadata);
    let words = "left: 1\n\tright: \u{1b}[2J\u{9b}1;31m\r\u{7}2";
    pipe.send(message(FAILURE, 1, id, words.as_bytes()))
        .unwrap();
    let error = call.await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "`Lab::echo` panicked: left: 1\n\tright: \\u{1b}[2J\\u{9b}1;31m\\r\\u{7}2"
    );
}

/// Whatever is wrong with its messages, the answers that it does not read are bounded.
#[tokio::test]
async fn answers_to_what_is_no_call_are_bounded_too() {
    let mut limits = ServerLimits::default();
    limits.calls_per_connection = 8;
    let mut small = Limits::default();
    small.window_messages = 16;
    let both = both(tcp().limits(small), tcp(), limits).await;
    let url = both.server.url().to_string();
    for strange in [
        message(TARPC, 0, 1, b""),
        message(BIND, 0, 1, b""),
        raw_call("no_such_thing", 1, b""),
    ] {
        let pipe = both.near.connect(&url).await.unwrap();
        until(|| both.server.pipes().len() == 2).await;
        let waiting = || both.server.pipes().iter().map(Pipe::unwritten).max();
        for _ in 0..2000 {
            pipe.send(strange.clone()).unwrap();
        }
        until(|| waiting() > Some(64)).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(waiting() <= Some(8 + 64 + 8), "{:?} answers", waiting());
        drop(pipe);
        until(|| both.server.pipes().len() == 1).await;
    }
    both.is_clean().await;
}

#[tokio::test]
async fn a_description_of_more_than_4_mib_is_not_looked_at() {
    let both = both(tcp(), tcp(), ServerLimits::default()).await;
    let url = both.server.url().to_string();
    let pipe = both.near.connect(&url).await.unwrap();
    let mut bind = message(BIND, 0, 3, b"");
    bind.metadata = [&[BIND, 12, 1, 0], &bind.metadata[4..]].concat().into();
    let most = (4 << 20) - bind.metadata.len();
    // Zeros describe a service without a name, which is not there.
    for (len, is_looked_at) in [(most, true), (most + 1, false), (64 << 20, false)] {
        let large = tensorpipe::Buffer::from_vec(vec![0u8; len]);
        let before = pipe.stats().bytes_out;
        pipe.send(bind.clone().payload(Payload::from(large)))
            .unwrap();
        let reply = pipe.read().await.unwrap();
        let text = String::from_utf8_lossy(&reply.metadata[12..]);
        let code = if is_looked_at { 9 } else { 4 };
        assert_eq!((reply.metadata[0], reply.metadata[3]), (FAILURE, code));
        assert_eq!(!text.contains("longer than"), is_looked_at, "{text}");
        let went = pipe.stats().bytes_out - before;
        assert!(is_looked_at || went < 1 << 20, "none of it went");
    }
    both.is_clean().await;
}
