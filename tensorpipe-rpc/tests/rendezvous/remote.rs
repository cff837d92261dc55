//! Two contexts of one process, over everything that carries a pipe.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tensorpipe::transports::{ShmTransport, TcpTransport, Transport};
use tensorpipe::{Context, ContextBuilder, DType, Tensor};
use tensorpipe_rpc::Server;
use tensorpipe_rpc::rendezvous::{Key, Limits, RecvError, Rendezvous, SendError, Value};

use crate::common::serve;
use crate::{soon, until};

pub(crate) struct Both {
    pub(crate) front: Rendezvous,
    pub(crate) back: Rendezvous,
    pub(crate) server: Server,
}

fn over(transport: impl Transport) -> ContextBuilder {
    let transports: [Arc<dyn Transport>; 1] = [Arc::new(transport)];
    Context::builder().transports(transports)
}

async fn both(context: impl Fn() -> ContextBuilder, limits: Limits) -> Both {
    let front = Rendezvous::builder("front").limits(limits).build().unwrap();
    let server = serve(&context().build().unwrap(), front.service()).await;
    let back = Rendezvous::builder("back")
        .context(&context().build().unwrap())
        .peer("front", server.url())
        .build()
        .unwrap();
    Both {
        front,
        back,
        server,
    }
}

/// Runs a test over sockets, rings and memory.
pub(crate) async fn over_each(limits: Limits, test: impl AsyncFn(Both)) {
    let ways: [fn() -> ContextBuilder; 3] = [
        || over(TcpTransport::new()),
        || over(TcpTransport::new()).prefer_transport(ShmTransport::new()),
        Context::builder,
    ];
    for way in ways {
        soon(async { test(both(way, limits.clone()).await).await }).await;
    }
}

fn bytes(count: u64) -> Tensor {
    Tensor::zeros(DType::U8, [count]).unwrap()
}

impl Both {
    fn key(&self, tensor: &str, step: u64) -> Key {
        self.front.key_to("back", tensor, step).unwrap()
    }

    /// Nothing is held and nobody waits, at either end.
    pub(crate) async fn is_clean(&self) {
        until(|| self.front.stats() == Default::default()).await;
        until(|| self.back.stats() == Default::default()).await;
        until(|| self.server.calls_in_flight() == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_come_in_any_order_small_and_large_alive_and_dead() {
    over_each(Limits::default(), async |both| {
        let sizes = [0u64, 1, 5_000, 3 << 20];
        let asked: Vec<_> = sizes
            .iter()
            .map(|size| both.back.recv(&both.key(&format!("early/{size}"), 1)))
            .collect();
        for size in sizes.iter().rev() {
            let tensor = Tensor::from(vec![*size as u8; *size as usize]);
            both.front
                .send(&both.key(&format!("early/{size}"), 1), &tensor)
                .unwrap();
            both.front
                .send(&both.key(&format!("late/{size}"), 1), &tensor)
                .unwrap();
        }
        both.front
            .send(&both.key("dead", 1), Value::dead())
            .unwrap();
        let late = sizes
            .iter()
            .map(|size| both.back.recv(&both.key(&format!("late/{size}"), 1)));
        let received = join_all(asked.into_iter().chain(late)).await;
        for (received, size) in received.into_iter().zip(sizes.iter().cycle()) {
            let received = received.unwrap();
            let expected = vec![*size as u8; *size as usize];
            assert_eq!(received.tensor.as_slice::<u8>().unwrap(), expected);
            assert!(!received.is_dead);
        }
        assert!(both.back.recv(&both.key("dead", 1)).await.unwrap().is_dead);
        both.is_clean().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receive_that_is_dropped_or_late_loses_nothing() {
    over_each(Limits::default(), async |both| {
        let key = both.key("a", 1);
        let error = both.back.recv_within(&key, Duration::from_millis(30)).await;
        let error = error.unwrap_err();
        assert!(matches!(error, RecvError::Deadline { .. }), "{error}");
        // Once before it is sent, once while it comes; nobody waits until the producer knows.
        let waits = both.back.recv(&key);
        until(|| both.front.stats().waiting == 1).await;
        drop(waits);
        let waits = both.back.recv(&key);
        let waits = tokio::time::timeout(Duration::from_millis(5), waits).await;
        assert!(waits.is_err());
        both.front.send(&key, bytes(2 << 20)).unwrap();
        drop(both.back.recv(&key));
        let value = both.back.recv(&key).await.unwrap();
        assert_eq!(value.tensor.byte_len(), 2 << 20);
        both.is_clean().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_has_one_value_and_one_receiver_across_processes_too() {
    over_each(Limits::default(), async |both| {
        let key = both.key("a", 1);
        let waits = both.back.recv(&key);
        let again = both.back.recv(&key).await;
        assert!(matches!(again, Err(RecvError::Awaited(_))), "{again:?}");
        both.front.send(&key, bytes(9)).unwrap();
        waits.await.unwrap();
        let again = both.back.recv(&key).await;
        assert!(matches!(again, Err(RecvError::Received(_))), "{again:?}");
        until(|| both.front.stats().values == 0).await;
        // The producer knows it, too: another one of that name is told.
        let other = Rendezvous::builder("back").peer("front", both.server.url());
        let again = other.build().unwrap().recv(&key).await;
        assert!(matches!(again, Err(RecvError::Received(_))), "{again:?}");
        let again = both.front.send(&key, bytes(1));
        assert!(matches!(again, Err(SendError::AlreadySent(_))), "{again:?}");
        // Of two who wait, the second one may be the first one's next life.
        let other = Rendezvous::builder("back").peer("front", both.server.url());
        let other = other.build().unwrap();
        let key = both.key("b", 1);
        let first = tokio::spawn(both.back.recv(&key));
        until(|| both.front.stats().waiting == 1).await;
        let second = tokio::spawn(other.recv(&key));
        let first = first.await.unwrap();
        assert!(matches!(first, Err(RecvError::Awaited(_))), "{first:?}");
        both.front.send(&key, bytes(2)).unwrap();
        second.await.unwrap().unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_counts_until_its_receiver_has_it() {
    let mut limits = Limits::default();
    limits.bytes = 100;
    over_each(limits, async |both| {
        const COUNT: u64 = 40;
        let produced = tokio::spawn({
            let front = both.front.clone();
            async move {
                for i in 0..COUNT {
                    let key = front.key_to("back", &i.to_string(), 1).unwrap();
                    front.send_or_wait(&key, bytes(30)).await.unwrap();
                }
            }
        });
        until(|| both.front.stats().blocked == 1).await;
        assert_eq!(both.front.stats().bytes, 90);
        for i in 0..COUNT {
            both.back.recv(&both.key(&i.to_string(), 1)).await.unwrap();
        }
        produced.await.unwrap();
        both.is_clean().await;
    })
    .await;
}

/// Some are larger than the bound, and each consumer asks for all that it will get.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_consumers_that_ask_ahead_beyond_the_bound_get_everything() {
    let mut limits = Limits::default();
    limits.bytes = 100;
    over_each(limits, async |both| {
        const EACH: u64 = 30;
        let names: Vec<_> = (0..5).map(|i| format!("back {i}")).collect();
        let key = |name: &str, i: u64| both.front.key_to(name, &i.to_string(), 1).unwrap();
        let receives = names.iter().map(|name| {
            let back = Rendezvous::builder(name).peer("front", both.server.url());
            let back = back.build().unwrap();
            let asked: Vec<_> = (0..EACH).map(|i| back.recv(&key(name, i))).collect();
            async {
                let _back = back;
                join_all(asked).await
            }
        });
        let receives: Vec<_> = receives.collect();
        let sends = (0..EACH).flat_map(|i| names.iter().map(move |name| (name, i)));
        let sends = sends.map(async |(name, i)| {
            let value = bytes([0, 30, 70, 250][i as usize % 4]);
            both.front.send_or_wait(&key(name, i), value).await.unwrap();
        });
        let (received, _) = tokio::join!(join_all(receives), join_all(sends));
        for received in received.into_iter().flatten() {
            received.unwrap();
        }
        both.is_clean().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finished_step_ends_waits_at_both_ends() {
    over_each(Limits::default(), async |both| {
        let theirs = tokio::spawn(both.back.recv(&both.key("a", 1)));
        let ours = tokio::spawn(both.back.recv(&both.key("b", 2)));
        until(|| both.front.stats().waiting == 2).await;
        both.front.finish(1);
        let ended = theirs.await.unwrap();
        assert!(
            matches!(ended, Err(RecvError::Finished { step: 1 })),
            "{ended:?}"
        );
        both.back.finish(2);
        let ended = ours.await.unwrap();
        assert!(
            matches!(ended, Err(RecvError::Finished { step: 2 })),
            "{ended:?}"
        );
        both.is_clean().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_reaches_whoever_waits_in_the_other_process() {
    over_each(Limits::default(), async |both| {
        let waits = tokio::spawn(both.back.recv(&both.key("a", 1)));
        until(|| both.front.stats().waiting == 1).await;
        both.front.abort("out of memory\u{1b}[2J");
        let Err(RecvError::Aborted(aborted)) = waits.await.unwrap() else {
            panic!("it was not told");
        };
        assert_eq!(
            (&*aborted.by, &*aborted.reason),
            ("front", "out of memory\\u{1b}[2J")
        );
        let late = both.back.recv(&both.key("b", 1)).await;
        assert!(matches!(late, Err(RecvError::Aborted(_))), "{late:?}");
        both.is_clean().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_everywhere_reaches_a_producer_that_waits_for_room() {
    let mut limits = Limits::default();
    limits.bytes = 10;
    over_each(limits, async |both| {
        both.front.send(&both.key("a", 1), bytes(10)).unwrap();
        let blocked = tokio::spawn(both.front.send_or_wait(&both.key("b", 1), bytes(10)));
        both.back.incarnation_of("front").await.unwrap();
        both.back.abort_everywhere("nobody will ever receive").await;
        let Err(SendError::Aborted(aborted)) = blocked.await.unwrap() else {
            panic!("it was not told");
        };
        assert_eq!(&*aborted.by, "back");
        let late = both.back.recv(&both.key("a", 1)).await;
        assert!(matches!(late, Err(RecvError::Aborted(_))), "{late:?}");
        both.is_clean().await;
    })
    .await;
}

#[tokio::test]
async fn whoever_else_is_there_is_no_producer() {
    let both = soon(both(Context::builder, Limits::default())).await;
    both.back.add_peer("middle", both.server.url()).unwrap();
    let error = soon(both.back.key_from("middle", "a", 1)).await;
    let error = error.unwrap_err();
    assert!(
        matches!(&error, RecvError::WrongPeer { found, .. } if &**found == "front"),
        "{error}"
    );
    let key = Key::new("front", 1, "back", "a", 1).unwrap();
    let error = soon(both.back.recv(&key)).await.unwrap_err();
    assert!(
        matches!(error, RecvError::Restarted { expected: 1, .. }),
        "{error}"
    );
    // Connected by now: the same, without a task.
    let error = soon(both.back.recv(&key)).await.unwrap_err();
    assert!(
        matches!(error, RecvError::Restarted { expected: 1, .. }),
        "{error}"
    );
    assert_eq!(both.back.stats().waiting, 0);
}

#[tokio::test]
async fn a_receive_says_the_bound_that_it_was_given_however_long_its_producer_took_to_come() {
    let front = Rendezvous::new("front").unwrap();
    let (near, far) = (Context::new(), Context::new());
    let builder = Rendezvous::builder("back").context(&near);
    let back = builder
        .peer("front", "memory://comes late")
        .build()
        .unwrap();
    let key = front.key_to("back", "never sent", 1).unwrap();
    let bound = Duration::from_millis(800);
    let recv = tokio::spawn(back.recv_within(&key, bound));
    tokio::time::sleep(bound / 4).await;
    let server = Server::builder().context(&far).service(front.service());
    let _server = server.listen("memory://comes late").await.unwrap();
    match soon(recv).await.unwrap() {
        Err(RecvError::Deadline { after, .. }) => assert_eq!(after, bound),
        other => panic!("{other:?}"),
    }
    // And over the connection that is there by now.
    let key = front.key_to("back", "nor this one", 1).unwrap();
    match soon(back.recv_within(&key, bound)).await {
        Err(RecvError::Deadline { after, .. }) => assert_eq!(after, bound),
        other => panic!("{other:?}"),
    }
}

/// Processes that come and go under new names must not take memory for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_that_is_removed_is_let_go() {
    over_each(Limits::default(), async |both| {
        let key = both.key("here", 1);
        both.front.send(&key, Value::dead()).unwrap();
        assert!(both.back.recv(&key).await.unwrap().is_dead);
        let late = both.key("late", 1);
        let waits = both.back.recv(&late);
        until(|| both.front.stats().waiting == 1).await;
        assert!(both.back.remove_peer("front"));
        assert!(!both.back.remove_peer("front"));
        let error = both.back.recv(&both.key("later", 1)).await.unwrap_err();
        assert!(matches!(error, RecvError::UnknownPeer { .. }), "{error}");
        both.front.send(&late, Value::dead()).unwrap();
        assert!(waits.await.unwrap().is_dead);
        until(|| both.server.pipes().is_empty()).await;
        both.is_clean().await;
    })
    .await;
}

/// As in a `select!` whose loser is kept for later.
#[tokio::test]
async fn who_asks_for_a_key_and_polls_no_more_keeps_nobody_from_the_producer() {
    let Both {
        front,
        back,
        server: _server,
    } = both(Context::builder, Limits::default()).await;
    let mut forgotten = std::pin::pin!(back.key_from("front", "first", 1));
    assert!(futures_util::poll!(&mut forgotten).is_pending());
    let key = soon(back.key_from("front", "second", 1)).await.unwrap();
    front.send(&key, bytes(3)).unwrap();
    soon(back.recv(&key)).await.unwrap();
    soon(forgotten).await.unwrap();
}
