//! What users of tarpc's own transports do with them, over each of ours.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, future, stream};
use serde::{Deserialize, Serialize};
use tarpc::client::stub::Stub;
use tarpc::client::stub::load_balance::RoundRobin;
use tarpc::client::stub::retry::Retry;
use tarpc::client::{self, RpcError};
use tarpc::context::{self, Context};
use tarpc::server::incoming::Incoming;
use tarpc::server::{BaseChannel, Channel, serve};
use tarpc::{ClientMessage, RequestName, Response};
use tensorpipe::Pipe;
use tensorpipe_rpc::tarpc::{PipeTransport, transport};

use super::{over_each, spawn};

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Side {
    Heads,
    Tails,
}

#[tarpc::service]
pub(crate) trait Coin {
    async fn sum(x: i32, y: i32) -> i32;
    async fn greet(name: String) -> String;
    async fn flip(side: Side) -> Side;
    async fn forever() -> ();
}

#[derive(Clone)]
struct Mint;

impl Coin for Mint {
    async fn sum(self, _: Context, x: i32, y: i32) -> i32 {
        x + y
    }
    async fn greet(self, _: Context, name: String) -> String {
        format!("hello {name}")
    }
    async fn flip(self, _: Context, side: Side) -> Side {
        match side {
            Side::Heads => Side::Tails,
            Side::Tails => Side::Heads,
        }
    }
    async fn forever(self, _: Context) {
        future::pending().await
    }
}

fn connect(pipe: Pipe) -> CoinClient {
    CoinClient::new(client::Config::default(), transport(pipe)).spawn()
}

#[tokio::test]
async fn a_client_and_a_closure_need_no_service() {
    over_each(async |client, server| {
        let channel = BaseChannel::with_defaults(transport(server));
        let next = serve(|_, number: u32| async move { Ok(number + 1) });
        tokio::spawn(channel.execute(next).for_each(|request| request));
        let channel = client::new(client::Config::default(), transport(client));
        let client: client::Channel<u32, u32> = channel.spawn();
        assert_eq!(client.call(context::current(), 41).await.unwrap(), 42);
    })
    .await;
}

#[tokio::test]
async fn a_dropped_channel_aborts_the_requests_that_it_gave_out() {
    over_each(async |client, server| {
        let client = connect(client);
        let caller = tokio::spawn(async move {
            let mut an_hour = context::current();
            an_hour.deadline = Instant::now() + Duration::from_secs(3600);
            client.forever(an_hour).await
        });
        let mut requests = BaseChannel::with_defaults(transport(server)).requests();
        let first = requests.next().await.unwrap().unwrap();
        drop(requests);
        first.execute(Mint.serve()).await;
        caller.await.unwrap().unwrap_err();
    })
    .await;
}

#[tokio::test]
async fn a_stream_of_transports_is_served_and_calls_run_side_by_side() {
    over_each(async |client, server| {
        let channels = stream::once(future::ready(transport(server)));
        let channels = channels
            .map(BaseChannel::with_defaults)
            .execute(Mint.serve())
            .map(|requests| requests.for_each(spawn));
        tokio::spawn(channels.for_each(spawn));
        let client = connect(client);
        let now = context::current;
        let (three, seven, hello) = tokio::join!(
            client.sum(now(), 1, 2),
            client.sum(now(), 3, 4),
            client.greet(now(), "Tim".to_owned())
        );
        assert_eq!((three.unwrap(), seven.unwrap()), (3, 7));
        assert_eq!(hello.unwrap(), "hello Tim");
        let all = future::join_all((0..8).map(|i| client.sum(now(), i, i))).await;
        for (i, sum) in all.into_iter().enumerate() {
            assert_eq!(sum.unwrap() as usize, 2 * i);
        }
        assert_eq!(client.flip(now(), Side::Heads).await.unwrap(), Side::Tails);
    })
    .await;
}

#[tarpc::service]
pub(crate) trait Counter {
    async fn count() -> u32;
}

struct Count(u32);

impl Counter for &mut Count {
    async fn count(self, _: Context) -> u32 {
        self.0 += 1;
        self.0
    }
}

#[tokio::test]
async fn a_service_may_borrow_its_state() {
    over_each(async |client, server| {
        tokio::spawn(async {
            let mut requests = BaseChannel::with_defaults(transport(server)).requests();
            let mut count = Count(0);
            while let Some(Ok(request)) = requests.next().await {
                request.execute(count.serve()).await;
            }
        });
        let client = CounterClient::new(client::Config::default(), transport(client)).spawn();
        for count in 1..=3 {
            assert_eq!(client.count(context::current()).await.unwrap(), count);
        }
    })
    .await;
}

/// Transports are given to tasks and shared between them.
fn stub<Req, Resp>(
    transports: Vec<
        impl tarpc::Transport<ClientMessage<Arc<Req>>, Response<Resp>> + Send + Sync + 'static,
    >,
) -> impl Stub<Req = Req, Resp = Resp>
where
    Req: RequestName + Send + Sync + 'static,
    Resp: Send + Sync + 'static,
{
    let spawned = transports
        .into_iter()
        .map(|transport| client::new(client::Config::default(), transport).spawn());
    let balanced = RoundRobin::new(spawned.collect());
    Retry::new(balanced, |answer: &Result<Resp, RpcError>, attempts| {
        answer.is_err() && attempts < 3
    })
}

#[tokio::test]
async fn a_stub_over_several_transports_tries_again() {
    over_each(async |client, server| {
        let refused = Arc::new(AtomicUsize::new(0));
        let counted = refused.clone();
        let serve = serve(move |_, request: CoinRequest| {
            let first = counted.fetch_add(1, Ordering::SeqCst) == 0;
            async move {
                let refusal =
                    tarpc::ServerError::new(std::io::ErrorKind::NotFound, "not yet".to_owned());
                match request {
                    _ if first => Err(refusal),
                    CoinRequest::Sum { x, y } => Ok(CoinResponse::Sum(x + y)),
                    _ => Err(refusal),
                }
            }
        });
        let channel = BaseChannel::with_defaults(transport(server));
        tokio::spawn(channel.execute(serve).for_each(spawn));
        let client = CoinClient::from(stub(vec![transport(client)]));
        assert_eq!(client.sum(context::current(), 1, 2).await.unwrap(), 3);
        assert_eq!(refused.load(Ordering::SeqCst), 2);
    })
    .await;
}

/// What is in a message does not decide whether a transport is `Sync`.
#[test]
fn a_transport_is_send_and_sync_whatever_it_carries() {
    fn assert_send_and_sync<T: Send + Sync + Unpin>() {}
    type NotSync = std::cell::Cell<u32>;
    assert_send_and_sync::<PipeTransport<Response<NotSync>, ClientMessage<NotSync>>>();
    assert_send_and_sync::<
        tensorpipe_rpc::tarpc::Incoming<ClientMessage<NotSync>, Response<NotSync>>,
    >();
}
