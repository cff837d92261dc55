//! The transport itself, message by message: order, duplicates, cancellation of transfers, back-pressure, the end.

use std::pin::pin;
use std::time::Duration;

use futures_util::{FutureExt, SinkExt, StreamExt};
use tarpc::server::{BaseChannel, Channel};
use tarpc::{ClientMessage, Request, Response, context, trace};
use tensorpipe::{Pipe, Tensor};
use tensorpipe_rpc::tarpc::{Incoming, MAX_WRITING, PipeTransport, TransportError, transport};

use super::{over_each, soon};

type Received = ClientMessage<Tensor>;
type Answer = Response<Tensor>;
type ClientEnd = PipeTransport<Answer, Received>;
type ServerEnd = PipeTransport<Received, Answer>;

fn ends(client: Pipe, server: Pipe) -> (ClientEnd, ServerEnd) {
    (transport(client), transport(server))
}

fn request(id: u64, len: u64) -> Received {
    ClientMessage::Request(Request {
        context: context::current(),
        id,
        message: Tensor::from_vec(vec![id as f32; len as usize], [len]).unwrap(),
    })
}

fn cancel(id: u64) -> Received {
    ClientMessage::Cancel {
        trace_context: trace::Context::default(),
        request_id: id,
    }
}

fn answer(id: u64, len: u64) -> Answer {
    Response {
        request_id: id,
        message: Ok(Tensor::from_vec(vec![1f32; len as usize], [len]).unwrap()),
    }
}

/// The id of a request, negative for a cancellation.
fn id(message: Option<Result<Received, TransportError>>) -> i64 {
    match message.expect("a message").expect("no error") {
        ClientMessage::Request(request) => {
            let values = request.message.as_slice::<f32>().unwrap().iter();
            assert!(values.into_iter().all(|value| *value == request.id as f32));
            request.id as i64
        }
        ClientMessage::Cancel { request_id, .. } => -(request_id as i64),
        _ => panic!("tarpc has a new kind of message"),
    }
}

/// Lets descriptors arrive at a side that is not polled.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

const LARGE: u64 = 2 << 20;

#[tokio::test]
async fn small_messages_keep_their_order() {
    over_each(async |client, server| {
        let (mut client, mut server) = ends(client, server);
        for i in 1..=100 {
            client.send(request(i, 3)).await.unwrap();
        }
        client.send(cancel(5)).await.unwrap();
        for i in 1..=100 {
            assert_eq!(id(server.next().await), i);
        }
        assert_eq!(id(server.next().await), -5);
    })
    .await;
}

#[tokio::test]
async fn context_and_trace_come_with_a_request() {
    over_each(async |client, server| {
        let (mut client, mut server) = ends(client, server);
        let mut context = context::current();
        context.trace_context = trace::Context {
            trace_id: (7u128 << 100 | 3).into(),
            span_id: 9.into(),
            sampling_decision: trace::SamplingDecision::Sampled,
        };
        let message = Request {
            context,
            id: u64::MAX,
            message: Tensor::scalar(1f32),
        };
        client.send(ClientMessage::Request(message)).await.unwrap();
        let Some(Ok(ClientMessage::Request(got))) = server.next().await else {
            panic!("no request");
        };
        assert_eq!(got.id, u64::MAX);
        assert_eq!(got.context.trace_context, context.trace_context);
        assert!(got.context.deadline <= std::time::Instant::now() + Duration::from_secs(10));
    })
    .await;
}

#[tokio::test]
async fn a_small_request_overtakes_a_large_one() {
    over_each(async |client, server| {
        let (mut client, mut server) = ends(client, server);
        client.feed(request(1, LARGE)).await.unwrap();
        client.feed(request(2, 3)).await.unwrap();
        settle().await;
        assert_eq!(id(server.next().await), 2);
        let (flushed, first) = tokio::join!(client.flush(), server.next());
        flushed.unwrap();
        assert_eq!(id(first), 1);
    })
    .await;
}

#[tokio::test]
async fn a_cancelled_transfer_is_abandoned() {
    over_each(async |client, server| {
        let (mut client, mut server) = ends(client, server);
        client.feed(request(1, LARGE)).await.unwrap();
        client.feed(request(2, LARGE)).await.unwrap();
        settle().await;
        // Both are being read.
        assert!(server.next().now_or_never().is_none());
        client.feed(cancel(1)).await.unwrap();
        client.feed(request(3, 3)).await.unwrap();
        let mut seen = Vec::new();
        let both = async {
            tokio::join!(client.flush(), async {
                while !(seen.contains(&2) && seen.contains(&3)) {
                    seen.push(id(server.next().await));
                }
            })
        };
        both.await.0.unwrap();
        assert!(!seen.contains(&1), "{seen:?}");
        client.send(request(4, 3)).await.unwrap();
        while id(server.next().await) != 4 {}
    })
    .await;
}

#[tokio::test]
async fn a_reader_that_does_not_read_slows_its_writer() {
    over_each(async |client, server| {
        let (mut client, mut server) = ends(client, server);
        let mut queued = 0;
        while futures_util::future::poll_fn(|cx| client.poll_ready_unpin(cx))
            .now_or_never()
            .is_some()
        {
            queued += 1;
            client.start_send_unpin(request(queued, 1 << 15)).unwrap();
        }
        // A few have left ahead of their reader.
        let queued = queued as usize;
        assert!((MAX_WRITING..MAX_WRITING + 8).contains(&queued), "{queued}");
        assert!(client.flush().now_or_never().is_none());
        let reader = async {
            let mut ids = Vec::new();
            while ids.len() < queued {
                ids.push(id(server.next().await));
            }
            ids.sort_unstable();
            ids
        };
        let (flushed, ids) = tokio::join!(client.flush(), reader);
        flushed.unwrap();
        assert!(ids.into_iter().eq(1..=queued as i64));
        client.send(request(1000, 3)).await.unwrap();
        assert_eq!(id(server.next().await), 1000);
    })
    .await;
}

#[tokio::test]
async fn a_request_id_in_use_is_ignored() {
    over_each(async |client, server| {
        let (mut client, server) = ends(client, server);
        let mut channel = BaseChannel::with_defaults(server);
        for i in [1, 1, 2] {
            client.send(request(i, 3)).await.unwrap();
        }
        assert_eq!(channel.next().await.unwrap().unwrap().request.id, 1);
        assert_eq!(channel.next().await.unwrap().unwrap().request.id, 2);
        assert_eq!(channel.in_flight_requests(), 2);
        channel.send(answer(1, 3)).await.unwrap();
        assert_eq!(channel.in_flight_requests(), 1);
        // Nobody waits for this one.
        channel.send(answer(7, 3)).await.unwrap();
        channel.send(answer(2, 3)).await.unwrap();
        assert_eq!(client.next().await.unwrap().unwrap().request_id, 1);
        assert_eq!(client.next().await.unwrap().unwrap().request_id, 2);
    })
    .await;
}

#[tokio::test]
async fn a_channel_stays_for_its_requests_after_the_client_closed() {
    over_each(async |client, server| {
        let (mut client, server) = ends(client, server);
        let mut channel = pin!(BaseChannel::with_defaults(server));
        client.send(request(1, 3)).await.unwrap();
        let tracked = channel.next().await.unwrap().unwrap();
        client.close().await.unwrap();
        drop(client);
        settle().await;
        assert!(channel.next().now_or_never().is_none(), "a request is open");
        channel.send(answer(tracked.request.id, 3)).await.ok();
        assert!(channel.next().await.is_none());
    })
    .await;
}

#[tokio::test]
async fn what_was_sent_is_delivered_after_the_end() {
    over_each(async |client, server| {
        let (mut client, mut server) = ends(client, server);
        server.send(answer(1, 3)).await.unwrap();
        server.feed(answer(2, LARGE)).await.unwrap();
        drop(server);
        let mut ids = Vec::new();
        while let Some(answer) = client.next().await {
            ids.push(answer.unwrap().request_id);
        }
        assert_eq!(ids, [1, 2]);
        assert!(client.next().await.is_none());
        assert!(soon(client.send(request(1, 3))).await.is_err());
    })
    .await;
}

#[tokio::test]
async fn the_peers_stream_ends_after_what_was_sent_and_answers_still_come() {
    over_each(async |client, server| {
        let (mut client, mut server) = ends(client, server);
        client.feed(request(1, LARGE)).await.unwrap();
        client.feed(request(2, 3)).await.unwrap();
        let (closed, mut came) = tokio::join!(client.close(), async {
            let mut came = Vec::new();
            while let Some(message) = server.next().await {
                came.push(id(Some(message)) as u64);
            }
            came
        });
        closed.unwrap();
        came.sort_unstable();
        assert_eq!(came, [1, 2]);
        for id in came {
            server.send(answer(id, 3)).await.unwrap();
            assert_eq!(client.next().await.unwrap().unwrap().request_id, id);
        }
        server.close().await.unwrap();
        assert!(client.next().await.is_none());
    })
    .await;
}

#[tokio::test]
async fn what_is_sent_after_closing_is_an_error_and_does_not_arrive() {
    over_each(async |client, server| {
        let (mut client, mut server) = ends(client, server);
        client.close().await.unwrap();
        client.close().await.unwrap();
        let error = client.send(request(1, 3)).await.unwrap_err();
        assert!(error.to_string().contains("closed by this side"), "{error}");
        assert!(server.next().await.is_none());
        server.send(answer(7, 3)).await.unwrap();
        assert_eq!(client.next().await.unwrap().unwrap().request_id, 7);
    })
    .await;
}

/// What is in a message does not decide whether a transport is `Sync`.
#[test]
fn a_transport_is_send_and_sync_whatever_it_carries() {
    fn assert_send_and_sync<T: Send + Sync + Unpin>() {}
    type NotSync = std::cell::Cell<u32>;
    assert_send_and_sync::<PipeTransport<Response<NotSync>, ClientMessage<NotSync>>>();
    assert_send_and_sync::<Incoming<ClientMessage<NotSync>, Response<NotSync>>>();
}
