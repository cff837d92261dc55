//! On this transport: tarpc's hooks, and requests whose handler or serde code panics.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tarpc::client::{self, RpcError};
use tarpc::context::{self, Context};
use tarpc::server::request_hook::{AfterRequest, BeforeRequest, RequestHook};
use tarpc::server::{BaseChannel, Channel};
use tarpc::{ClientMessage, Response, ServerError};
use tensorpipe::{Pipe, Tensor};
use tensorpipe_rpc::tarpc::{PipeTransport, transport};

use super::{over_each, pipes, soon, spawn, tcp, until, within_ms};

/// Panics where it is told to.
#[derive(Debug)]
pub(crate) struct Fragile(u8);

const SENT: u8 = 1;
const ARRIVES: u8 = 2;

thread_local! {
    /// Debug builds read back what they have written.
    static SENDING: std::cell::Cell<u8> = const { std::cell::Cell::new(0) };
}

impl Serialize for Fragile {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        assert!(self.0 != SENT, "on the way out");
        SENDING.set(SENDING.get() + u8::from(cfg!(debug_assertions)));
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Fragile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let kind = u8::deserialize(deserializer)?;
        match SENDING.get().checked_sub(1) {
            Some(sending) => SENDING.set(sending),
            None => assert!(kind != ARRIVES, "on arrival"),
        }
        Ok(Self(kind))
    }
}

#[tarpc::service]
pub(crate) trait Plain {
    async fn length(x: Tensor) -> u64;
    async fn left() -> Duration;
    async fn panic() -> ();
    async fn take(fragile: Fragile) -> u8;
    async fn give(kind: u8) -> Fragile;
}

#[derive(Clone)]
struct Server;

impl Plain for Server {
    async fn length(self, _: Context, x: Tensor) -> u64 {
        x.byte_len() as u64
    }
    async fn left(self, cx: Context) -> Duration {
        cx.deadline.saturating_duration_since(Instant::now())
    }
    async fn panic(self, _: Context) {
        panic!("in a handler");
    }
    async fn take(self, _: Context, fragile: Fragile) -> u8 {
        fragile.0
    }
    async fn give(self, _: Context, kind: u8) -> Fragile {
        Fragile(kind)
    }
}

type Served = PipeTransport<ClientMessage<PlainRequest>, Response<PlainResponse>>;

fn connect(pipe: Pipe) -> PlainClient {
    PlainClient::new(client::Config::default(), transport(pipe)).spawn()
}

/// Counts answers.
#[derive(Clone)]
struct Count(Arc<AtomicUsize>);

impl<T> AfterRequest<T> for Count {
    async fn after(&mut self, _: &mut Context, _: &mut Result<T, ServerError>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Refuses `panic`, and gives nothing more than two seconds.
#[derive(Clone)]
struct Strict;

impl BeforeRequest<PlainRequest> for Strict {
    async fn before(
        &mut self,
        cx: &mut Context,
        request: &PlainRequest,
    ) -> Result<(), ServerError> {
        if matches!(request, PlainRequest::Panic {}) {
            let no = "not here".to_owned();
            return Err(ServerError::new(ErrorKind::PermissionDenied, no));
        }
        cx.deadline = cx.deadline.min(Instant::now() + Duration::from_secs(2));
        Ok(())
    }
}

#[tokio::test]
async fn hooks_see_every_request_may_refuse_it_and_may_shorten_its_time() {
    over_each(async |client, server| {
        let ended = Arc::new(AtomicUsize::new(0));
        let serve = Server.serve().before(Strict).after(Count(ended.clone()));
        let channel = BaseChannel::with_defaults(transport(server));
        tokio::spawn(channel.execute(serve).for_each(spawn));
        let client = connect(client);
        let large = Tensor::from(vec![1f32; 200_000]);
        let length = client.length(context::current(), large).await.unwrap();
        assert_eq!(length, 800_000);
        match client.panic(context::current()).await {
            Err(RpcError::Server(error)) => {
                assert_eq!(error.kind, ErrorKind::PermissionDenied);
                assert_eq!(error.detail, "not here");
            }
            other => panic!("{other:?}"),
        }
        let left = client.left(within_ms(60_000)).await.unwrap();
        assert!(left <= Duration::from_secs(2), "{left:?}");
        assert_eq!(ended.load(Ordering::SeqCst), 3);
    })
    .await;
}

#[tokio::test]
async fn a_handler_that_panics_leaves_its_request_to_the_deadline_and_the_others_alone() {
    over_each(async |client, server| {
        let channel = BaseChannel::with_defaults(transport(server));
        tokio::spawn(channel.execute(Server.serve()).for_each(spawn));
        let client = connect(client);
        // As tarpc has it: it sends no answer.
        let error = client.panic(within_ms(100)).await.unwrap_err();
        assert!(matches!(error, RpcError::DeadlineExceeded), "{error:?}");
        client.left(context::current()).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn what_panics_on_its_way_out_fails_its_request_alone() {
    over_each(async |client, server| {
        let channel = BaseChannel::with_defaults(transport(server));
        tokio::spawn(channel.execute(Server.serve()).for_each(spawn));
        let client = connect(client);
        match client.give(context::current(), SENT).await {
            Err(RpcError::Server(error)) => {
                assert!(error.detail.contains("on the way out"), "{error}")
            }
            other => panic!("{other:?}"),
        }
        match client.take(context::current(), Fragile(SENT)).await {
            Err(RpcError::Send(error)) => {
                assert!(error.to_string().contains("on the way out"), "{error}")
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(client.give(context::current(), 5).await.unwrap().0, 5);
        assert_eq!(
            client.take(context::current(), Fragile(6)).await.unwrap(),
            6
        );
    })
    .await;
}

/// It may be the peer's doing, who makes no sense then: the transport ends with an error, not with a panic.
#[tokio::test]
async fn what_panics_on_arrival_ends_the_transport_with_an_error() {
    let context = tcp().build().unwrap();
    let (client, server) = pipes(&context).await;
    let client = connect(client);
    let call = tokio::spawn(async move {
        let call = client.take(context::current(), Fragile(ARRIVES));
        call.await
    });
    let mut served: Served = transport(server);
    let error = soon(served.next()).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("on arrival"), "{error}");
    assert!(soon(served.next()).await.is_none());
    soon(call).await.unwrap().unwrap_err();
    until(|| served.pipe().has_ended()).await;
}
