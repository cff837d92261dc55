//! Hostile peers that send nonsense: the transport returns one error and then ends. It never panics and never hangs.

use std::time::Duration;

use futures_util::StreamExt;
use tarpc::client::{self, RpcError};
use tarpc::server::BaseChannel;
use tarpc::{ClientMessage, Response, context};
use tensorpipe::{Context, DType, Limits, Message, Payload, Tensor};
use tensorpipe_rpc::tarpc::{LONGEST_DEADLINE, PipeTransport, TransportError, transport};
use tensorpipe_rpc::{Connection, tensor_service};

use super::common::serve;
use super::service::{Work, WorkClient, WorkRequest, WorkResponse, Worker};
use super::{over_each, soon, tcp};

type ClientEnd = PipeTransport<Response<WorkResponse>, ClientMessage<WorkRequest>>;
type ServerEnd = PipeTransport<ClientMessage<WorkRequest>, Response<WorkResponse>>;

const REQUEST: u8 = 6;
const CANCEL: u8 = 7;
const RESPONSE: u8 = 8;

/// A call header, then `body`.
fn message(kind: u8, flags: u8, body: &[u8]) -> Message {
    let mut metadata = vec![kind, 12, flags, 0];
    metadata.extend_from_slice(&77u64.to_le_bytes());
    metadata.extend_from_slice(body);
    Message::new(metadata)
}

fn hostile() -> Vec<Message> {
    let mut messages = vec![
        Message::default(),
        Message::new("GET / HTTP/1.1\r\n\r\n"),
        Message::new(vec![REQUEST]),
        Message::new(vec![REQUEST, 200, 0, 0]),
        // A body that is said to be in a payload, and is not.
        message(REQUEST, 1, &[]),
        message(REQUEST, 0, &[0; 3]).tensor(Tensor::scalar(1f32)),
        // Left over behind a whole one.
        message(CANCEL, 0, &[0, 0, 0, 9]),
        message(CANCEL, 0, &[0, 0, 0]).payload(Payload::new(vec![1])),
        message(RESPONSE, 0, &[0, 200]),
        message(RESPONSE, 0, &[9]),
        message(1, 0, &[0; 40]),
        message(5, 0, &[0; 40]),
        message(99, 0, &[]),
    ];
    for len in 0..40 {
        for byte in [0x80, 0xff] {
            messages.push(message(REQUEST, 0, &vec![byte; len]));
            messages.push(message(RESPONSE, 0, &vec![byte; len]));
        }
    }
    messages
}

#[tokio::test]
async fn a_server_ends_the_transport_with_one_error() {
    let context = Context::new();
    for hostile in hostile() {
        let (peer, server) = super::pipes(&context).await;
        let mut server: ServerEnd = transport(server);
        let text = format!("{hostile:?}");
        peer.send(hostile).unwrap();
        let error = soon(server.next()).await.expect("an error");
        assert!(
            matches!(
                error,
                Err(TransportError::Foreign { .. } | TransportError::Decode { .. })
            ),
            "{text}: {error:?}"
        );
        assert!(soon(server.next()).await.is_none());
        soon(peer.ended()).await;
    }
}

#[tokio::test]
async fn a_client_fails_its_calls() {
    let context = Context::new();
    for hostile in hostile() {
        let (client, peer) = super::pipes(&context).await;
        let client = WorkClient::new(client::Config::default(), transport(client)).spawn();
        let text = format!("{hostile:?}");
        peer.send(hostile).unwrap();
        let error = soon(client.add(context::current(), 1, 2))
            .await
            .unwrap_err();
        assert!(
            matches!(error, RpcError::Channel(_) | RpcError::Shutdown),
            "{text}: {error:?}"
        );
        soon(peer.ended()).await;
    }
}

#[tokio::test]
async fn a_deadline_beyond_all_clocks_is_cut() {
    over_each(async |peer, server| {
        let mut server: ServerEnd = transport(server);
        // Time left, trace, then the first method with its two arguments.
        let mut body = vec![0xff; 9];
        body.push(1);
        body.extend_from_slice(&[0, 0, 0, 0, 2, 4]);
        peer.send(message(REQUEST, 0, &body)).unwrap();
        peer.send(message(REQUEST, 0, &body)).unwrap();
        let Some(Ok(ClientMessage::Request(request))) = server.next().await else {
            panic!("no request");
        };
        assert!(request.context.deadline <= std::time::Instant::now() + LONGEST_DEADLINE);
        assert!(matches!(request.message, WorkRequest::Add { a: 1, b: 2 }));
        // tarpc's own machinery takes it, too.
        let channel = BaseChannel::with_defaults(server);
        tokio::spawn(
            tarpc::server::Channel::execute(channel, Worker::default().serve())
                .for_each(|request| request),
        );
        let answer = peer.read().await.unwrap();
        assert_eq!(answer.metadata[0], RESPONSE);
    })
    .await;
}

#[tokio::test]
async fn a_peer_that_vanishes_is_an_error() {
    let context = tcp().build().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let relay = listener.local_addr().unwrap();
    let server = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let to = server.urls()[0].to_string().replace("tcp://", "");
    let carrying = tokio::spawn(async move {
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let (mut from, _) = listener.accept().await.unwrap();
        let mut to = tokio::net::TcpStream::connect(to).await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
    });
    let url = format!("tcp://{relay}");
    let (client, accepted) = tokio::join!(context.connect(&url), server.accept());
    let mut client: ClientEnd = transport(client.unwrap());
    let _accepted = accepted.unwrap();
    carrying.abort();
    let end = soon(client.next()).await;
    assert!(matches!(end, Some(Err(TransportError::Pipe(_)))), "{end:?}");
    assert!(soon(client.next()).await.is_none());
}

#[tensor_service]
pub(crate) trait Other {
    async fn add(&self, a: i32, b: i32) -> i32;
}

struct Adder;

impl Other for Adder {
    async fn add(&self, a: i32, b: i32) -> i32 {
        a + b
    }
}

#[tokio::test]
async fn the_two_protocols_do_not_mistake_each_other() {
    let context = tcp().build().unwrap();
    let server = serve(&context, OtherService::new(Adder)).await;
    let pipe = context.connect(server.url()).await.unwrap();
    let client = WorkClient::new(client::Config::default(), transport(pipe)).spawn();
    let error = soon(client.add(context::current(), 1, 2))
        .await
        .unwrap_err();
    assert!(matches!(error, RpcError::Channel(_)), "{error:?}");

    let (client, served) = super::pipes(&context).await;
    let mut served: ServerEnd = transport(served);
    let connection = Connection::over(client).unwrap();
    let (client, end) =
        soon(async { tokio::join!(OtherClient::on(&connection), served.next()) }).await;
    let error = client.unwrap_err().to_string();
    println!("{error}");
    assert!(
        matches!(end, Some(Err(TransportError::Foreign { .. }))),
        "{end:?}"
    );
}

/// Its requests do not fit into our memory, and it does not read that they do not.
#[tokio::test]
async fn answers_that_a_client_does_not_read_are_bounded() {
    let mut limits = Limits::default();
    limits.receive_budget = 1 << 16;
    let far = tcp().limits(limits).build().unwrap();
    let mut limits = Limits::default();
    limits.window_messages = 4;
    let near = tcp().limits(limits).build().unwrap();
    let listener = far.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let url = listener.url().to_string();
    let (client, server) = tokio::join!(near.connect(&url), listener.accept());
    let (client, mut server) = (client.unwrap(), transport(server.unwrap()) as ServerEnd);
    let large = Tensor::zeros(DType::U8, [1 << 20]).unwrap();
    for call in 0..400u64 {
        let mut metadata = vec![6, 12, 0, 0];
        metadata.extend_from_slice(&call.to_le_bytes());
        let request = Message::new(metadata).tensor(large.clone());
        client.send(request).unwrap();
        let looked = tokio::time::timeout(Duration::from_millis(1), server.next());
        assert!(looked.await.is_err(), "no request is complete");
    }
    let state = format!("{server:?}");
    let writing = state.split("writing: ").nth(1).unwrap();
    let writing: usize = writing.split([',', ' ']).next().unwrap().parse().unwrap();
    assert!((64..=128).contains(&writing), "{state}");
}
