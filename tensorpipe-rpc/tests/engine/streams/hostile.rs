//! Peers that know the words of streams and not the rules.

use std::sync::atomic::Ordering;

use futures_util::StreamExt;
use tensorpipe::{Message, Pipe};
use tensorpipe_rpc::{CallError, ServerLimits};

use super::flow::{Banks, FlowClient, FlowService, River};
use crate::lab::{tcp, until};
use crate::raw::{self, FAILURE, VALUE, call_id, message, raw_call_of, take_bind};

const ARGUMENT_ITEMS: u8 = 9;
const REPLY_ITEMS: u8 = 10;
const END: u8 = 11;
const CREDIT: u8 = 12;
const STOP: u8 = 13;

fn call(method: &str, call: u64, arguments: &[u8]) -> Message {
    raw_call_of(&FlowService::new(River::default()), method, call, arguments)
}

/// A server, and a pipe to it on which somebody writes what they like.
async fn served() -> (Banks, Pipe) {
    let build = || tcp().build().unwrap();
    let banks = Banks::new(build(), build(), ServerLimits::default()).await;
    let pipe = banks.near.connect(banks.server.url().to_string()).await;
    (banks, pipe.unwrap())
}

/// The next answer to a call, whatever streams say before it.
async fn answer(pipe: &Pipe) -> Vec<u8> {
    loop {
        let message = pipe.read().await.unwrap();
        if [VALUE, FAILURE].contains(&message.metadata[0]) {
            return message.metadata.to_vec();
        }
    }
}

#[tokio::test]
async fn more_items_than_allowed_end_the_call() {
    let (banks, pipe) = served().await;
    pipe.send(call("ignores_it", 1, &[])).unwrap();
    for _ in 0..2000 {
        // The pipe may refuse them: the call is over.
        if pipe.send(message(ARGUMENT_ITEMS, 1, 1, &[0])).is_err() {
            break;
        }
    }
    let answer = answer(&pipe).await;
    assert_eq!(answer[0], FAILURE);
    let words = String::from_utf8_lossy(&answer[12..]).into_owned();
    assert!(words.contains("more items"), "{words}");
    banks.is_clean().await;
}

#[tokio::test]
async fn words_that_make_no_sense_end_their_call_at_most() {
    let garbage: [&[Message]; 7] = [
        // No items; half an item; more than one says; no such thing as this tensor.
        &[message(ARGUMENT_ITEMS, 0, 1, &[])],
        &[message(ARGUMENT_ITEMS, 1, 1, &[0x80])],
        &[message(ARGUMENT_ITEMS, 1, 1, &[1, 2, 3])],
        &[message(ARGUMENT_ITEMS, 3, 1, &[1])],
        // After the end.
        &[message(END, 0, 1, &[]), message(ARGUMENT_ITEMS, 1, 1, &[1])],
        &[message(END, 0, 1, &[]), message(END, 0, 1, &[])],
        // A second call of the same number.
        &[call("sum", 1, &[])],
    ];
    let (banks, pipe) = served().await;
    for messages in garbage {
        pipe.send(call("sum", 1, &[])).unwrap();
        for message in messages {
            pipe.send(message.clone()).unwrap();
        }
        let answer = answer(&pipe).await;
        assert_eq!(&answer[4..12], &1u64.to_le_bytes());
        // Whatever is left of it.
        pipe.send(message(END, 0, 1, &[])).unwrap();
        until(|| banks.server.calls_in_flight() == 0).await;
    }
    banks.is_clean().await;
}

#[tokio::test]
async fn a_call_whose_stream_breaks_is_not_one_that_did_not_run() {
    let (banks, there) = served().await;
    there.send(call("sum", 1, &[])).unwrap();
    there
        .send(message(ARGUMENT_ITEMS, 1, 1, &[0x80; 20]))
        .unwrap();
    let answer = answer(&there).await;
    assert_eq!(answer[0], FAILURE);
    banks.is_clean().await;
    // What that answer is to a client.
    let (client, pipe) = by_hand().await;
    let call = client.sum(futures_util::stream::iter([1]));
    let number = call_id(&pipe.read().await.unwrap().metadata);
    pipe.send(message(FAILURE, answer[3], number, &answer[12..]))
        .unwrap();
    let error = call.await.unwrap_err();
    assert!(error.may_have_run(), "{error:?}");
    assert!(error.to_string().contains("run in part"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_stream_breaks_while_its_handler_returns_has_one_answer() {
    let (banks, pipe) = served().await;
    for number in 1..=20 {
        pipe.send(call("insists", number, &[])).unwrap();
        until(|| banks.river.at_it.load(Ordering::SeqCst) == 1).await;
        pipe.send(message(END, 0, number, &[])).unwrap();
        pipe.send(message(ARGUMENT_ITEMS, 1, number, &[1])).unwrap();
        let broken = answer(&pipe).await;
        assert_eq!((broken[0], call_id(&broken)), (FAILURE, number));
        until(|| banks.server.calls_in_flight() == 0).await;
    }
    // Nothing else was said about any of them.
    pipe.send(call("drops_it", 99, &[0])).unwrap();
    assert_eq!(call_id(&answer(&pipe).await), 99);
    banks.is_clean().await;
}

#[tokio::test]
async fn words_about_no_call_or_the_wrong_one_change_nothing() {
    let (banks, pipe) = served().await;
    for kind in [ARGUMENT_ITEMS, REPLY_ITEMS, END, CREDIT, STOP] {
        for id in [0, 7, u64::MAX] {
            for body in [&[][..], &[1], &[255; 16], &[255; 100]] {
                pipe.send(message(kind, 1, id, body)).unwrap();
            }
        }
    }
    // To a call that has no such stream.
    pipe.send(call("count", 9, &[3])).unwrap();
    pipe.send(message(ARGUMENT_ITEMS, 1, 9, &[1])).unwrap();
    pipe.send(message(STOP, 0, 9, &[])).unwrap();
    assert_eq!(answer(&pipe).await[..2], [VALUE, 12]);
    banks.is_clean().await;
}

#[tokio::test]
async fn a_credit_without_end_lets_a_stream_run_no_further_than_the_pipe_does() {
    let (banks, pipe) = served().await;
    pipe.send(call("forever", 1, &[64])).unwrap();
    pipe.send(message(CREDIT, 1, 1, &[255; 16])).unwrap();
    until(|| banks.made() > 0).await;
    // This peer reads nothing: what waits for it is bounded.
    let mut before = usize::MAX;
    while banks.made() != before {
        before = banks.made();
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    assert!(before < 200_000, "{before} items of 64 bytes wait");
    assert_eq!(banks.lab.echo("meanwhile").await.unwrap(), "meanwhile");
    drop(pipe);
    banks.is_clean().await;
}

async fn by_hand() -> (FlowClient, Pipe) {
    let (connection, pipe) = raw::by_hand().await;
    let (client, ()) = tokio::join!(FlowClient::on(&connection), take_bind(&pipe));
    (client.unwrap(), pipe)
}

#[tokio::test]
async fn a_server_that_breaks_the_rules_ends_that_stream_with_an_error() {
    type Break = fn(u64) -> Vec<Message>;
    let breaks: [Break; 4] = [
        |call| {
            (0..65)
                .map(|_| message(REPLY_ITEMS, 1, call, &[1]))
                .collect()
        },
        |call| vec![message(REPLY_ITEMS, 0, call, &[])],
        |call| vec![message(REPLY_ITEMS, 2, call, &[1])],
        |call| vec![message(REPLY_ITEMS, 1, call, &[0x80; 20])],
    ];
    let (client, pipe) = by_hand().await;
    for wrong in breaks {
        let items = client.count(9);
        let call = call_id(&pipe.read().await.unwrap().metadata);
        for message in wrong(call) {
            pipe.send(message).unwrap();
        }
        // A reader that has read nothing yet.
        pipe.flush().await.unwrap();
        let items: Vec<_> = items.collect().await;
        let Some(Err(error)) = items.last() else {
            panic!("{items:?}");
        };
        assert!(
            matches!(error, CallError::Other(_) | CallError::Decode(_)),
            "{error}"
        );
    }
    // The pipe goes on.
    let mut items = client.count(1);
    let call = call_id(&pipe.read().await.unwrap().metadata);
    pipe.send(message(REPLY_ITEMS, 1, call, &[7])).unwrap();
    pipe.send(message(VALUE, 0, call, &[])).unwrap();
    assert_eq!(items.next().await.unwrap().unwrap(), 7);
    assert!(items.next().await.is_none());
}
