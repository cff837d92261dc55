//! A connection that wraps another one, as TLS does: pipes over it, and how they close.
#![allow(missing_docs, reason = "a test")]

mod identities;
mod veil;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tensorpipe::channels::{BasicChannel, Channel, ChannelFault, LaneIo, OpId, Want};
use tensorpipe::{
    ConnectPolicy, Context, ContextBuilder, Error, Message, Pipe, ResetCode, Timeouts,
};
use tensorpipe_rpc::Server;
use tensorpipe_tests::{Double, Says, over};
use tokio::time::sleep;

use identities::{DoorClient, DoorService, Porter};
use veil::{Manners, veiled};

fn context() -> Context {
    context_with(&Manners::default())
}

fn context_with(manners: &Manners) -> Context {
    builder_with(manners).build().unwrap()
}

fn builder_with(manners: &Manners) -> ContextBuilder {
    over(vec![Arc::new(veiled(manners.clone()))])
}

tensorpipe::pipe_conformance!(pipes, context, "veiled://127.0.0.1:0");

async fn soon<T>(what: impl Future<Output = T>) -> T {
    let bounded = tokio::time::timeout(Duration::from_secs(20), what);
    bounded.await.expect("it hangs")
}

async fn pair(manners: &Manners) -> (Context, Pipe, Pipe) {
    pair_of(context_with(manners)).await
}

async fn pair_of(context: Context) -> (Context, Pipe, Pipe) {
    let listener = context.listen(["veiled://127.0.0.1:0"]).await.unwrap();
    let (client, server) = tokio::join!(context.connect(listener.url()), listener.accept());
    (context, client.unwrap(), server.unwrap())
}

/// Nothing is left of the connections, each of which has two handles on what counts, nor of the context's transport.
async fn are_gone(manners: &Manners) {
    soon(async {
        while Arc::strong_count(&manners.said) > 3 {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn whoever_closes_waits_until_its_connection_has_said_goodbye() {
    let takes = Duration::from_millis(50);
    let manners = Manners {
        takes,
        ..Manners::default()
    };
    let (_context, client, server) = pair(&manners).await;
    client.send(Message::new("the last one")).unwrap();
    let (closed, read) = soon(async { tokio::join!(client.close(), server.read()) }).await;
    closed.unwrap();
    assert_eq!(read.unwrap().metadata, "the last one");
    assert!(manners.said.load(Ordering::SeqCst) >= 1);
    soon(server.close()).await.unwrap_err();
    assert_eq!(manners.said.load(Ordering::SeqCst), 2);
}

/// On the only thread of a runtime, where whoever reads without end holds up everything.
#[test]
fn a_peer_that_is_never_silent_leaves_time_for_others() {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(async {
            let manners = Manners::default();
            let mut timeouts = Timeouts::default();
            timeouts.linger = Duration::from_millis(100);
            let context = builder_with(&manners).timeouts(timeouts).build().unwrap();
            let (_context, client, server) = pair_of(context).await;
            manners.floods.store(true, Ordering::SeqCst);
            let read = tokio::time::timeout(Duration::from_millis(200), server.read()).await;
            assert!(read.is_err(), "nothing was sent");
            // Nobody awaits the end of either.
            drop((client, server));
            are_gone(&manners).await;
        });
        tell.send(()).unwrap();
    });
    let ended = told.recv_timeout(Duration::from_secs(30));
    ended.expect("the thread reads for ever, or a pipe is kept beyond its time");
}

#[tokio::test]
async fn a_context_that_is_closed_waits_for_the_goodbyes_of_its_pipes() {
    let takes = Duration::from_millis(50);
    let manners = Manners {
        takes,
        ..Manners::default()
    };
    let (context, _client, _server) = pair(&manners).await;
    soon(context.close()).await.unwrap();
    assert_eq!(manners.said.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_goodbye_that_never_ends_holds_nobody_for_ever() {
    let manners = Manners {
        takes: Duration::from_secs(3600),
        ..Manners::default()
    };
    let (_context, client, server) = pair(&manners).await;
    let (closed, _) = soon(async { tokio::join!(client.close(), server.ended()) }).await;
    closed.unwrap();
    drop(server);
    are_gone(&manners).await;
}

/// Of a channel of which no read succeeds: it fails, or breaks the channel's rules.
struct BreaksLane {
    fails: bool,
    _lane: Arc<()>,
}

impl Says for BreaksLane {
    fn recv(&mut self, op: OpId, _: Want, io: &mut LaneIo<'_>) {
        if self.fails {
            let reason = "by design".into();
            return io.failed(op, Error::OutOfMemory { bytes: 1, reason });
        }
        io.fault(op, ChannelFault("by design".to_owned()));
    }
}

/// Each of its lanes has one of these.
fn breaks(fails: bool, lanes: Arc<()>) -> Arc<dyn Channel> {
    let breaks = Double::of(Arc::new(BasicChannel::new())).named("breaks");
    let breaks = breaks.at(Vec::new()).with_lanes(move |_| BreaksLane {
        fails,
        _lane: lanes.clone(),
    });
    breaks.channel()
}

/// The pipe ends in the middle of an operation, which has its error at once. Nobody else looks at it: there is no keep-alive, and
/// whoever polled for it has long stopped.
#[tokio::test]
async fn a_pipe_that_a_channel_ends_lets_go_of_its_connection_in_time() {
    // What looks after blocked runtimes wakes the first pipe that it finds at rest: this one.
    let _first = pair(&Manners::default()).await;
    let manners = Manners {
        takes: Duration::from_secs(3600),
        ..Manners::default()
    };
    let mut timeouts = Timeouts::default();
    timeouts.silence = None;
    let lanes = Arc::new(());
    let channel = breaks(false, lanes.clone());
    let context = builder_with(&manners)
        .channels([channel])
        .timeouts(timeouts)
        .connect_policy(ConnectPolicy::once());
    let (context, client, server) = pair_of(context.build().unwrap()).await;
    let tensor = tensorpipe::Tensor::from(vec![1u8; 1 << 20]);
    client.send(Message::new("bulk").tensor(tensor)).unwrap();
    let incoming = soon(server.read_descriptor()).await.unwrap();
    sleep(Duration::from_millis(300)).await;
    let lanes = || Arc::strong_count(&lanes);
    let before = lanes();
    let error = soon(incoming.read()).await.unwrap_err();
    assert!(error.to_string().contains("by design"), "{error}");
    assert!(lanes() < before, "its lane has not gone with it");
    // The peer says nothing that would wake it; what looks after blocked runtimes would, after five seconds.
    let before = Arc::strong_count(&manners.said);
    drop(server);
    let gone = async {
        while Arc::strong_count(&manners.said) == before {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(4), gone);
    in_time.await.expect("nobody keeps the time");
    drop((client, context));
}

/// It has come ahead of its reader, who hears of it, and whose word counts.
#[tokio::test]
async fn a_read_that_fails_before_its_reader_comes_is_that_readers() {
    let channel = breaks(true, Arc::new(()));
    let context = builder_with(&Manners::default()).channels([channel]);
    let (_context, client, server) = pair_of(context.build().unwrap()).await;
    let write = || {
        let tensor = tensorpipe::Tensor::from(vec![1u8; 100_000]);
        client.write(Message::new("ahead").tensor(tensor))
    };
    let refused = write();
    soon(server.read_descriptor()).await.unwrap().refuse("no");
    match soon(refused).await.unwrap_err() {
        Error::Refused { reason, .. } => assert_eq!(&*reason, "no"),
        other => panic!("{other}"),
    }
    let unread = write();
    let error = soon(server.read()).await.unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    match soon(unread).await.unwrap_err() {
        Error::Refused { code, .. } => assert_eq!(code, ResetCode::Failed),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn nobody_polls_for_a_goodbye() {
    let manners = Manners {
        takes: Duration::from_millis(5),
        ..Manners::default()
    };
    for _ in 0..20 {
        let (_context, client, server) = pair(&manners).await;
        for _ in 0..20 {
            client.send(Message::new("keeps both polling")).unwrap();
            let message = soon(server.read()).await.unwrap();
            server.send(message).unwrap();
            soon(client.read()).await.unwrap();
        }
        let (closed, _) = soon(async { tokio::join!(client.close(), server.ended()) }).await;
        closed.unwrap();
    }
    assert!(
        !manners.polled.load(Ordering::SeqCst),
        "it asks nobody to be woken"
    );
}

#[tokio::test]
async fn a_connection_that_panics_over_its_goodbye_harms_nobody() {
    let manners = Manners {
        panics: true,
        ..Manners::default()
    };
    let (context, client, server) = pair(&manners).await;
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.read().await }
    });
    soon(server.close()).await.unwrap();
    soon(waiting).await.unwrap().unwrap_err();
    drop((client, server, context));
    are_gone(&manners).await;
    assert_eq!(manners.begun.load(Ordering::SeqCst), 2);
}

#[test]
fn a_runtime_that_shuts_down_waits_for_no_goodbye() {
    for takes in [Duration::from_secs(3600), Duration::MAX] {
        let manners = Manners {
            takes,
            ..Manners::default()
        };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (_context, client, _server) = runtime.block_on(pair(&manners));
        drop(runtime);
        let own = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let closed = own.spawn(async move { client.close().await });
        own.block_on(soon(closed)).unwrap().unwrap_err();
    }
}

#[tokio::test]
async fn a_server_that_shuts_down_waits_for_the_goodbyes_of_its_pipes() {
    let manners = Manners {
        takes: Duration::from_millis(50),
        ..Manners::default()
    };
    let (here, there) = (context_with(&Manners::default()), context_with(&manners));
    let server = Server::builder()
        .context(&there)
        .service(DoorService::new(Porter));
    let server = server.listen("veiled://127.0.0.1:0").await.unwrap();
    let client = DoorClient::connect_with(&here, server.url()).await.unwrap();
    client.knock().await.unwrap();
    soon(server.shutdown()).await;
    assert_eq!(manners.said.load(Ordering::SeqCst), 1);
}
