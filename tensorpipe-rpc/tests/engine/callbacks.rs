//! A server that calls its client, over the pipe that the client has made.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use tensorpipe::{Context, Limits, Message};
use tensorpipe_rpc::{
    CallContext, CallError, ConnectError, Connection, Server, ServerLimits, Streaming,
    tensor_service,
};

use crate::lab::{AtIt, Bench, LabClient, LabService, in_each, serve, tcp, until};
use crate::raw::raw_call;

/// Served at both ends.
#[tensor_service]
trait Ball {
    /// Plays it back so many times; how often it was played.
    async fn play(&self, left: u32, cx: &CallContext) -> Result<u32, String>;
    /// Asks the caller for a number that takes a while.
    async fn ask(&self, ms: u64, cx: &CallContext) -> Result<u64, String>;
    async fn answer(&self, ms: u64) -> u64;
    /// The sum of what the caller's stream gives.
    async fn gather(&self, to: u64, cx: &CallContext) -> Result<u64, String>;
    fn count(&self, to: u64) -> impl Stream<Item = u64>;
    /// Sends the caller a stream.
    async fn pour(&self, to: u64, cx: &CallContext) -> Result<u64, String>;
    async fn sum(&self, numbers: Streaming<u64>) -> u64;
}

#[derive(Clone, Default)]
struct Player {
    at_it: Arc<AtomicUsize>,
}

async fn caller(cx: &CallContext) -> Result<BallClient, String> {
    let connection = cx.connection().ok_or("the caller is gone")?;
    BallClient::on(&connection).await.map_err(words)
}

fn words(error: impl ToString) -> String {
    error.to_string()
}

impl Ball for Player {
    async fn play(&self, left: u32, cx: &CallContext) -> Result<u32, String> {
        if left == 0 {
            return Ok(0);
        }
        let played = caller(cx).await?.play(left - 1).await.map_err(words)?;
        Ok(played + 1)
    }

    async fn ask(&self, ms: u64, cx: &CallContext) -> Result<u64, String> {
        let _at_it = AtIt::new(&self.at_it);
        caller(cx).await?.answer(ms).await.map_err(words)
    }

    async fn answer(&self, ms: u64) -> u64 {
        let _at_it = AtIt::new(&self.at_it);
        tokio::time::sleep(Duration::from_millis(ms)).await;
        ms
    }

    async fn gather(&self, to: u64, cx: &CallContext) -> Result<u64, String> {
        let mut items = caller(cx).await?.count(to);
        let mut sum = 0;
        while let Some(item) = items.next().await {
            sum += item.map_err(words)?;
        }
        Ok(sum)
    }

    fn count(&self, to: u64) -> impl Stream<Item = u64> {
        stream::iter(0..to)
    }

    async fn pour(&self, to: u64, cx: &CallContext) -> Result<u64, String> {
        caller(cx)
            .await?
            .sum(stream::iter(0..to))
            .await
            .map_err(words)
    }

    async fn sum(&self, numbers: Streaming<u64>) -> u64 {
        numbers
            .values()
            .fold(0, async |sum, number| sum + number)
            .await
    }
}

struct Court {
    client: BallClient,
    server: Server,
    here: Player,
    there: Player,
}

async fn court(near: Context, far: Context, limits: ServerLimits) -> Court {
    let (here, there) = (Player::default(), Player::default());
    let server = serve(&far, BallService::new(there.clone())).await;
    let connection = Connection::builder()
        .context(&near)
        .limits(limits)
        .service(BallService::new(here.clone()))
        .connect(server.url().to_string())
        .await
        .unwrap();
    let client = BallClient::on(&connection).await.unwrap();
    Court {
        client,
        server,
        here,
        there,
    }
}

async fn on_each(test: impl AsyncFn(Court)) {
    in_each(async |context| {
        let build = || context().build().unwrap();
        test(court(build(), build(), ServerLimits::default()).await).await;
    })
    .await;
}

#[tokio::test]
async fn calls_go_back_and_forth_as_deep_as_one_likes() {
    on_each(async |court| {
        assert_eq!(court.client.play(0).await.unwrap(), 0);
        assert_eq!(court.client.play(31).await.unwrap(), 31);
        let many = (0..50).map(|left| court.client.play(left % 7));
        let played = futures_util::future::join_all(many).await;
        for (left, played) in played.into_iter().enumerate() {
            assert_eq!(played.unwrap(), left as u32 % 7);
        }
        until(|| court.server.calls_in_flight() == 0).await;
    })
    .await;
}

#[tokio::test]
async fn streams_go_back_too() {
    on_each(async |court| {
        assert_eq!(court.client.gather(3000).await.unwrap(), 2999 * 3000 / 2);
        assert_eq!(court.client.pour(3000).await.unwrap(), 2999 * 3000 / 2);
    })
    .await;
}

#[tokio::test]
async fn a_call_back_ends_with_the_call_that_made_it() {
    on_each(async |court| {
        let at_it = |player: &Player| player.at_it.load(Ordering::SeqCst);
        // Dropped: both handlers are.
        let call = court.client.ask(60_000);
        until(|| at_it(&court.here) == 1 && at_it(&court.there) == 1).await;
        drop(call);
        until(|| at_it(&court.here) == 0 && at_it(&court.there) == 0).await;
        // It has no more time than its caller.
        let hurried = court.client.with_deadline(Duration::from_millis(100));
        let error = hurried.ask(60_000).await.unwrap_err();
        assert!(matches!(error, CallError::Deadline { .. }), "{error}");
        until(|| at_it(&court.here) == 0 && at_it(&court.there) == 0).await;
    })
    .await;
}

#[tokio::test]
async fn a_client_that_goes_away_ends_the_calls_back() {
    on_each(async |court| {
        let call = court.client.ask(60_000);
        until(|| court.here.at_it.load(Ordering::SeqCst) == 1).await;
        court.client.connection().close().await.unwrap();
        call.await.unwrap_err();
        until(|| court.there.at_it.load(Ordering::SeqCst) == 0).await;
        until(|| court.here.at_it.load(Ordering::SeqCst) == 0).await;
        until(|| court.server.pipes().is_empty()).await;
    })
    .await;
}

#[tokio::test]
async fn a_drain_lets_calls_back_through() {
    on_each(async |court| {
        let Court {
            client,
            server,
            there,
            ..
        } = court;
        let call = client.ask(300);
        until(|| there.at_it.load(Ordering::SeqCst) == 1).await;
        assert_eq!(server.shutdown().await, 0);
        assert_eq!(call.await.unwrap(), 300);
    })
    .await;
}

#[tokio::test]
async fn a_client_that_serves_nothing_or_something_else_says_so() {
    let build = || tcp().build().unwrap();
    let court = court(build(), build(), ServerLimits::default()).await;
    let plain = BallClient::connect(court.server.url().to_string())
        .await
        .unwrap();
    match plain.play(1).await {
        Err(CallError::Service(words)) => assert!(words.contains("this is a client"), "{words}"),
        other => panic!("{other:?}"),
    }
    // Neither is the other end asked twice for what it has.
    let connection = plain.connection();
    assert!(BallClient::on(connection).await.is_ok());
    let none = LabClient::on(connection).await;
    assert!(
        matches!(none, Err(ConnectError::NoService { .. })),
        "{none:?}"
    );
}

#[tokio::test]
async fn a_client_has_limits_of_its_own() {
    let build = || tcp().build().unwrap();
    let mut limits = ServerLimits::default();
    limits.calls_per_connection = 1;
    let court = court(build(), build(), limits).await;
    let first = court.client.ask(60_000);
    until(|| court.here.at_it.load(Ordering::SeqCst) == 1).await;
    match court.client.ask(1).await {
        Err(CallError::Service(words)) => assert!(words.contains("the limit"), "{words}"),
        other => panic!("{other:?}"),
    }
    drop(first);
}

/// What this side asks for itself is no reply that its caller leaves unread.
#[tokio::test]
async fn a_client_whose_own_calls_wait_to_be_read_still_serves() {
    let mut small = Limits::default();
    small.window_messages = 8;
    let (near, far) = (tcp().build().unwrap(), tcp().limits(small).build().unwrap());
    let listener = far.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let url = listener.url().to_string();
    let (near_end, pipe) = tokio::join!(near.connect(url), listener.accept());
    let (near_end, pipe) = (near_end.unwrap(), pipe.unwrap());
    let mut limits = ServerLimits::default();
    limits.calls_per_connection = 1;
    let connection = Connection::builder()
        .limits(limits)
        .service(LabService::new(Bench::default()))
        .over(near_end)
        .unwrap();
    // The other end, by hand: it takes the bind, and looks at nothing for a while.
    let bind = async {
        let bind = pipe.read().await.unwrap();
        let mut value = vec![2, 12, 0, 0];
        value.extend_from_slice(&bind.metadata[4..12]);
        value.push(0);
        pipe.send(Message::new(value)).unwrap();
    };
    let (client, ()) = tokio::join!(LabClient::on(&connection), bind);
    let client = client.unwrap();
    let calls: Vec<_> = (0..200).map(|_| client.sleep(1)).collect();
    until(|| connection.pipe().unwritten() > 100).await;
    pipe.send(raw_call("echo", 7, b"\x02hi")).unwrap();
    let answered = async {
        loop {
            let message = pipe.read().await.unwrap();
            if message.metadata[0] == 2 {
                return message;
            }
        }
    };
    // Read only when the call has been there.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let answer = tokio::time::timeout(Duration::from_secs(5), answered).await;
    assert_eq!(&answer.expect("it is answered").metadata[12..], b"\x02hi");
    drop(calls);
}
