//! A hostile peer calls the rendezvous' internal methods with arbitrary arguments.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorpipe::{ConnectPolicy, Context, DType, Tensor, Url};
use tensorpipe_rpc::rendezvous::{Key, Limits, RecvError, Rendezvous, SendError, Stats, Value};
use tensorpipe_rpc::{Server, tensor_service};
use tokio::sync::Notify;

use crate::common::serve;
use crate::{soon, until};

/// The service of a rendezvous, written down again: the two ends compare it.
#[tensor_service]
pub(crate) trait TensorRendezvous {
    #[rpc(idempotent)]
    async fn hello(&self, from: Hello) -> Hello;
    async fn pull(&self, key: String) -> Pulled;
    #[rpc(idempotent)]
    async fn received(&self, receipts: Vec<Receipt>) -> ();
    #[rpc(idempotent)]
    async fn abort(&self, by: Hello, reason: String) -> ();
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    name: String,
    incarnation: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Pulled {
    Lent { value: Value, loan: u64 },
    Refused(Refusal),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Receipt {
    key: String,
    loan: u64,
}

fn receipt(key: &str, loan: u64) -> Receipt {
    let key = key.to_owned();
    Receipt { key, loan }
}

fn called(name: &str, incarnation: u64) -> Hello {
    let name = name.to_owned();
    Hello { name, incarnation }
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Refusal {
    Aborted { by: String, reason: String },
    Finished,
    Awaited,
    Received,
    Restarted { now: u64 },
    WrongPeer { name: String },
    NoKey(String),
    Unconfirmed { values: u64 },
}

/// A producer, and its server.
async fn front() -> (Rendezvous, Server) {
    let front = Rendezvous::builder("front").incarnation(7).build().unwrap();
    let server = serve(Context::global(), front.service()).await;
    (front, server)
}

/// A consumer, which tries to connect once.
fn back_of(server: &Server) -> Rendezvous {
    let once = Context::builder().connect_policy(ConnectPolicy::once());
    let back = Rendezvous::builder("back").context(&once.build().unwrap());
    back.peer("front", server.url()).build().unwrap()
}

/// Says what it likes.
struct Liar;

impl TensorRendezvous for Liar {
    async fn hello(&self, _: Hello) -> Hello {
        called("front", 7)
    }

    async fn pull(&self, key: String) -> Pulled {
        Pulled::Refused(match key.parse::<Key>().unwrap().tensor() {
            "restarted" => Refusal::Restarted { now: 7 },
            "no key" => Refusal::NoKey("\u{7}".repeat(100_000)),
            "received" => Refusal::Received,
            "unconfirmed" => Refusal::Unconfirmed { values: u64::MAX },
            _ => Refusal::Awaited,
        })
    }

    async fn received(&self, _: Vec<Receipt>) {}

    async fn abort(&self, _: Hello, _: String) {}
}

#[tokio::test]
async fn keys_that_are_none_and_receipts_for_nothing_change_nothing() {
    let (front, server) = front().await;
    let peer = TensorRendezvousClient::connect(server.url()).await.unwrap();
    let key = front.key_to("back", "a", 1).unwrap();
    front.send(&key, Value::dead()).unwrap();
    let good = key.to_string();
    let bad = [
        String::new(),
        ";;;;".to_owned(),
        "x".repeat(1 << 20),
        good.replace(';', ""),
        format!("{good}0000000000000000000000"),
    ];
    for bad in &bad {
        let pulled = soon(peer.pull(bad)).await.unwrap();
        assert!(
            matches!(pulled, Pulled::Refused(Refusal::NoKey(_))),
            "{pulled:?}"
        );
    }
    for (other, expected) in [
        ("front", "middle"),
        ("0000000000000007", "0000000000000008"),
    ] {
        let pulled = soon(peer.pull(good.replace(other, expected)))
            .await
            .unwrap();
        assert!(
            matches!(
                pulled,
                Pulled::Refused(Refusal::WrongPeer { .. } | Refusal::Restarted { now: 7 })
            ),
            "{pulled:?}"
        );
    }
    // It was lent to nobody: nobody can have it.
    let receipts = bad.iter().chain([&good, &good]).map(|key| receipt(key, 0));
    soon(peer.received(receipts.collect::<Vec<_>>()))
        .await
        .unwrap();
    assert_eq!((front.stats().values, front.stats().waiting), (1, 0));
    let loan = lent(&peer, &good).await;
    // It was lent now, and not by another incarnation.
    let foreign = good.replace("0000000000000007", "0000000000000008");
    soon(peer.received(vec![receipt(&foreign, loan)]))
        .await
        .unwrap();
    assert_eq!(front.stats().values, 1);
    soon(peer.received(vec![receipt(&good, loan)]))
        .await
        .unwrap();
    assert_eq!((front.stats().values, front.stats().refused), (0, 2));
    // A receiver of the process itself is not pushed away.
    let own = front.key_to("front", "b", 1).unwrap();
    let waits = front.recv(&own);
    let pulled = soon(peer.pull(own.to_string())).await.unwrap();
    assert!(
        matches!(pulled, Pulled::Refused(Refusal::Awaited)),
        "{pulled:?}"
    );
    front.send(&own, Value::dead()).unwrap();
    soon(waits).await.unwrap();
}

/// Pulls a value: the number of its loan.
async fn lent(peer: &TensorRendezvousClient, key: &str) -> u64 {
    match soon(peer.pull(key)).await.unwrap() {
        Pulled::Lent { value, loan } if value.is_dead => loan,
        other => panic!("{other:?}"),
    }
}

/// A value that was lent to one is not received because another says so; the one may say so over any connection.
#[tokio::test]
async fn a_receipt_counts_with_the_number_that_came_with_the_value() {
    let (front, server) = front().await;
    let url = server.url().to_string();
    let connect = || TensorRendezvousClient::connect(&url);
    let (peer, hostile) = (connect().await.unwrap(), connect().await.unwrap());
    let [key, other] = ["a", "b"].map(|tensor| {
        let key = front.key_to("back", tensor, 1).unwrap();
        front.send(&key, Value::dead()).unwrap();
        key.to_string()
    });
    let loan = lent(&peer, &key).await;
    // That of another value is another number.
    let of_other = lent(&hostile, &other).await;
    let guesses = [0, 1, of_other, loan.wrapping_add(1)];
    let receipts = guesses.map(|guess| receipt(&key, guess));
    soon(hostile.received(receipts.to_vec())).await.unwrap();
    assert_eq!((front.stats().values, front.stats().refused), (2, 4));
    drop(peer);
    let peer = connect().await.unwrap();
    for _ in 0..2 {
        soon(peer.received(vec![receipt(&key, loan)]))
            .await
            .unwrap();
    }
    assert_eq!((front.stats().values, front.stats().refused), (1, 4));
}

#[tokio::test]
async fn an_abort_is_heard_from_a_consumer_and_not_in_its_name() {
    let (front, server) = front().await;
    let url = server.url().to_string();
    let connect = || TensorRendezvousClient::connect(&url);
    let (back, hostile) = (connect().await.unwrap(), connect().await.unwrap());
    let key = front.key_to("back", "a", 1).unwrap();
    front.send(&key, Value::dead()).unwrap();
    soon(back.hello(called("back", 1))).await.unwrap();
    soon(hostile.hello(called("back", 2))).await.unwrap();
    soon(hostile.abort(called("back", 2), "because"))
        .await
        .unwrap();
    assert_eq!((front.stats().values, front.stats().refused), (1, 1));
    // Nothing is sent to the one, and the other is no name.
    for name in ["nobody", ""] {
        soon(hostile.abort(called(name, 2), "because"))
            .await
            .unwrap();
    }
    assert_eq!((front.stats().values, front.stats().refused), (1, 2));
    // It is started again, when the first is gone.
    drop(back);
    until(|| server.pipes().len() == 1).await;
    let back = connect().await.unwrap();
    soon(back.abort(called("back", 3), "enough")).await.unwrap();
    assert_eq!((front.stats().values, front.stats().refused), (0, 2));
    let error = front.send(&key, Value::dead()).unwrap_err();
    assert!(error.to_string().contains("enough"), "{error}");
}

/// What it is asked as a producer, and what anybody may ask it.
#[tokio::test]
async fn nobody_else_learns_how_a_consumer_aborts() {
    let (front, server) = front().await;
    let back = back_of(&server);
    let key = front.key_to("back", "a", 1).unwrap();
    front.send(&key, Value::dead()).unwrap();
    soon(back.incarnation_of("front")).await.unwrap();

    let served = serve(Context::global(), back.service()).await;
    let asks = TensorRendezvousClient::connect(served.url()).await.unwrap();
    let greeted = soon(asks.hello(called("hostile", 1))).await.unwrap();
    assert_eq!(greeted.incarnation, back.incarnation());
    let curious = Curious::default();
    let learnt = curious.0.clone();
    let curious = serve(Context::global(), TensorRendezvousService::new(curious)).await;
    back.add_peer("curious", curious.url()).unwrap();
    soon(back.incarnation_of("curious")).await.unwrap();
    let learnt = learnt.lock().unwrap().clone().unwrap();
    assert_eq!(learnt.name, "back");

    let hostile = TensorRendezvousClient::connect(server.url()).await.unwrap();
    for who in [called("back", greeted.incarnation), learnt] {
        soon(hostile.abort(who, "because")).await.unwrap();
    }
    assert_eq!((front.stats().values, front.stats().refused), (1, 2));
    back.abort_everywhere("enough").await;
    let error = front.send(&key, Value::dead()).unwrap_err();
    assert!(error.to_string().contains("enough"), "{error}");
}

/// One that consumes over the first server is known at the second one.
#[tokio::test]
async fn a_consumer_is_known_to_all_services_of_a_rendezvous() {
    let (front, first) = front().await;
    let second = serve(Context::global(), front.service()).await;
    let connect = |server: &Server| TensorRendezvousClient::connect(server.url().to_string());
    let [back, early] = [
        connect(&first).await.unwrap(),
        connect(&first).await.unwrap(),
    ];
    let hostile = connect(&second).await.unwrap();
    let key = front.key_to("back", "a", 1).unwrap();
    front.send(&key, Value::dead()).unwrap();
    soon(back.hello(called("back", 1))).await.unwrap();
    soon(early.abort(called("early", 1), "enough"))
        .await
        .unwrap();
    for name in ["back", "early"] {
        soon(hostile.hello(called(name, 2))).await.unwrap();
        soon(hostile.abort(called(name, 2), "because"))
            .await
            .unwrap();
    }
    assert_eq!((front.stats().values, front.stats().refused), (1, 2));
    let key = front.key_to("early", "a", 1).unwrap();
    let error = front.send(&key, Value::dead()).unwrap_err();
    assert!(error.to_string().contains("enough"), "{error}");
}

/// They abort under made-up names, over connections that stay and over many that go.
#[tokio::test]
async fn an_early_abort_is_heard_however_many_others_abort() {
    let (front, server) = front().await;
    let url = server.url().to_string();
    let mut stay = Vec::new();
    // More than are known at once.
    for number in 0..1100 {
        let hostile = TensorRendezvousClient::connect(&url).await.unwrap();
        let stays = number < 64;
        for name in 0..if stays { 8 } else { 1 } {
            let name = format!("{number}/{name}");
            soon(hostile.abort(called(&name, 1), "because"))
                .await
                .unwrap();
        }
        if stays {
            stay.push(hostile);
        }
    }
    until(|| server.pipes().len() == stay.len()).await;
    let back = back_of(&server);
    soon(back.incarnation_of("front")).await.unwrap();
    back.abort_everywhere("enough").await;
    let key = front.key_to("back", "a", 1).unwrap();
    let error = front.send(&key, Value::dead()).unwrap_err();
    assert!(error.to_string().contains("enough"), "{error}");
}

/// It waits for a first value that will not be made any more.
#[tokio::test]
async fn an_abort_before_the_first_value_is_heard_with_it() {
    let (front, server) = front().await;
    let back = back_of(&server);
    soon(back.incarnation_of("front")).await.unwrap();
    back.abort_everywhere("enough").await;
    let others = front.key_to("else", "a", 1).unwrap();
    front.send(&others, Value::dead()).unwrap();
    let key = front.key_to("back", "a", 1).unwrap();
    let error = front.send(&key, Value::dead()).unwrap_err();
    assert!(error.to_string().contains("enough"), "{error}");
    assert_eq!(front.stats(), Stats::default());
}

/// A consumer that aborts early and is started again has not aborted; one that only connects again has.
#[tokio::test]
async fn an_early_abort_is_that_of_one_run_of_its_consumer() {
    let (front, server) = front().await;
    let url = server.url().to_string();
    let connect = || TensorRendezvousClient::connect(&url);
    for (name, then) in [("back", 2), ("same", 1)] {
        let first = connect().await.unwrap();
        soon(first.hello(called(name, 1))).await.unwrap();
        soon(first.abort(called(name, 1), "enough")).await.unwrap();
        drop(first);
        until(|| server.pipes().is_empty()).await;
        let second = connect().await.unwrap();
        soon(second.hello(called(name, then))).await.unwrap();
        let key = front.key_to(name, "a", 1).unwrap();
        let sent = front.send(&key, Value::dead());
        assert_eq!(sent.is_ok(), then == 2, "{name}: {sent:?}");
        drop(second);
        until(|| server.pipes().is_empty()).await;
    }
}

#[tokio::test]
async fn whoever_pulls_all_the_time_leaves_no_trace() {
    let (front, server) = front().await;
    let peer = TensorRendezvousClient::connect(server.url()).await.unwrap();
    let pulls: Vec<_> = (0..3000)
        .map(|i| peer.pull(front.key_to("back", &i.to_string(), i).unwrap().to_string()))
        .collect();
    until(|| front.stats().waiting == 3000).await;
    drop(pulls);
    until(|| front.stats().waiting == 0).await;
    soon(peer.hello(called("back", 1))).await.unwrap();
}

#[tokio::test]
async fn whoever_asks_ahead_and_confirms_nothing_is_lent_no_more_than_the_bound() {
    const MIB: u64 = 1 << 20;
    let mut limits = Limits::default();
    limits.bytes = MIB;
    let front = Rendezvous::builder("front").limits(limits).build().unwrap();
    let server = serve(Context::global(), front.service()).await;
    let peer = TensorRendezvousClient::connect(server.url()).await.unwrap();
    let keys: Vec<_> = (0..100)
        .map(|i| front.key_to("back", &i.to_string(), 1).unwrap())
        .collect();
    let _pulls: Vec<_> = keys.iter().map(|key| peer.pull(key.to_string())).collect();
    until(|| front.stats().waiting == 100).await;
    for key in &keys {
        let tensor = Tensor::zeros(DType::U8, [MIB]).unwrap();
        let within = Duration::from_millis(2);
        let sent = front.send_within(key, tensor, within).await;
        assert!(
            matches!(sent, Ok(()) | Err(SendError::Full { .. })),
            "{sent:?}"
        );
    }
    assert!(front.stats().bytes <= 2 * MIB, "{:?}", front.stats());
    // Another consumer receives all the same.
    let back = back_of(&server);
    let other = Rendezvous::builder("other").peer("front", server.url());
    let other = other.build().unwrap();
    for i in 0..3 {
        let key = front.key_to("other", &i.to_string(), 1).unwrap();
        let recv = tokio::spawn(other.recv(&key));
        let tensor = Tensor::zeros(DType::U8, [MIB]).unwrap();
        soon(front.send_or_wait(&key, tensor)).await.unwrap();
        soon(recv).await.unwrap().unwrap();
    }
    // And so does the true one.
    soon(back.recv(&keys[0])).await.unwrap();
    until(|| front.stats().values == 0).await;
}

#[tokio::test]
async fn what_a_producer_says_is_an_error_that_can_be_shown() {
    let server = serve(Context::global(), TensorRendezvousService::new(Liar)).await;
    let back = back_of(&server);
    for tensor in ["restarted", "no key", "received", "unconfirmed", "awaited"] {
        let key = soon(back.key_from("front", tensor, 1)).await.unwrap();
        let error = soon(back.recv(&key)).await.unwrap_err();
        let is_said = matches!(error, RecvError::Unconfirmed { .. });
        assert_eq!(is_said, tensor == "unconfirmed");
        let error = error.to_string();
        assert!(
            error.len() < 40_000 && !error.contains('\u{7}'),
            "{}",
            error.len()
        );
    }
    assert_eq!(back.stats().waiting, 0);
}

/// A producer that remembers who it is asked by.
#[derive(Default)]
struct Curious(Arc<Mutex<Option<Hello>>>);

impl TensorRendezvous for Curious {
    async fn hello(&self, from: Hello) -> Hello {
        *self.0.lock().unwrap() = Some(from);
        called("curious", 9)
    }

    async fn pull(&self, key: String) -> Pulled {
        Liar.pull(key).await
    }

    async fn received(&self, _: Vec<Receipt>) {}

    async fn abort(&self, _: Hello, _: String) {}
}

/// Panics over the first receipts that it is given, or says nothing to any.
#[derive(Default)]
struct Deaf {
    panics: Mutex<u32>,
    hangs: Arc<AtomicBool>,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Deaf {
    fn hanging(heard: &Arc<Mutex<Vec<String>>>) -> Self {
        Self {
            hangs: Arc::new(AtomicBool::new(true)),
            ..Self::hearing(heard)
        }
    }

    fn hearing(heard: &Arc<Mutex<Vec<String>>>) -> Self {
        let heard = heard.clone();
        Self {
            heard,
            ..Self::default()
        }
    }
}

/// Another incarnation of the producer, which answers only once it is let.
struct Slow(Arc<Notify>);

impl TensorRendezvous for Slow {
    async fn hello(&self, _: Hello) -> Hello {
        self.0.notified().await;
        called("front", 9)
    }

    async fn pull(&self, key: String) -> Pulled {
        Liar.pull(key).await
    }

    async fn received(&self, _: Vec<Receipt>) {}

    async fn abort(&self, _: Hello, _: String) {}
}

impl TensorRendezvous for Deaf {
    async fn hello(&self, from: Hello) -> Hello {
        Liar.hello(from).await
    }

    async fn pull(&self, key: String) -> Pulled {
        Pulled::Lent {
            value: Value::dead(),
            loan: key.len() as u64,
        }
    }

    async fn received(&self, receipts: Vec<Receipt>) {
        if self.hangs.load(Ordering::SeqCst) {
            std::future::pending().await
        }
        {
            let mut panics = self.panics.lock().unwrap();
            if *panics > 0 {
                *panics -= 1;
                drop(panics);
                panic!("what was that?");
            }
        }
        let keys = receipts.into_iter().map(|receipt| {
            assert_eq!(receipt.loan, receipt.key.len() as u64);
            receipt.key
        });
        self.heard.lock().unwrap().extend(keys);
    }

    async fn abort(&self, _: Hello, _: String) {}
}

/// A receiver that has three values of `producer`, and their keys in order.
async fn three_received_from(producer: Deaf) -> (Server, Rendezvous, Vec<String>) {
    let server = serve(Context::global(), TensorRendezvousService::new(producer)).await;
    let back = back_of(&server);
    let mut keys = Vec::new();
    for tensor in ["a", "b", "c"] {
        let key = soon(back.key_from("front", tensor, 1)).await.unwrap();
        assert!(soon(back.recv(&key)).await.unwrap().is_dead);
        keys.push(key.to_string());
    }
    (server, back, keys)
}

async fn all_are_heard(heard: &Mutex<Vec<String>>, keys: &[String]) {
    until(|| {
        let mut heard = heard.lock().unwrap().clone();
        heard.sort_unstable();
        heard.as_slice() == keys
    })
    .await;
}

#[tokio::test]
async fn a_producer_that_does_not_take_a_receipt_is_told_again() {
    let heard = Arc::default();
    let deaf = Deaf {
        panics: Mutex::new(3),
        ..Deaf::hearing(&heard)
    };
    let (_server, _back, keys) = three_received_from(deaf).await;
    all_are_heard(&heard, &keys).await;
}

#[tokio::test]
async fn a_producer_that_takes_no_receipt_is_left_when_the_rendezvous_is_gone() {
    let heard = Arc::<Mutex<Vec<String>>>::default();
    let deaf = Deaf {
        panics: Mutex::new(u32::MAX),
        ..Deaf::hearing(&heard)
    };
    let (server, back, _) = three_received_from(deaf).await;
    assert_eq!(server.pipes().len(), 1);
    drop(back);
    until(|| server.pipes().is_empty()).await;
    assert!(heard.lock().unwrap().is_empty());
}

#[tokio::test]
async fn receipts_that_a_connection_took_along_are_given_over_another_that_nobody_else_asks_for() {
    let heard = Arc::<Mutex<Vec<String>>>::default();
    let deaf = Deaf::hanging(&heard);
    let hangs = deaf.hangs.clone();
    let (server, back, keys) = three_received_from(deaf).await;
    // One is on its way, the others wait for it.
    until(|| server.calls_in_flight() == 1).await;
    hangs.store(false, Ordering::SeqCst);
    let pipe = back.connection("front").unwrap().pipe().clone();
    let _ = soon(pipe.close()).await;
    all_are_heard(&heard, &keys).await;
}

#[tokio::test]
async fn receipts_for_a_producer_that_cannot_be_reached_wait_until_it_can() {
    let heard = Arc::default();
    let (server, back, keys) = three_received_from(Deaf::hanging(&heard)).await;
    let url = is_lost(server, &back).await;
    let again = TensorRendezvousService::new(Deaf::hearing(&heard));
    let _again = Server::builder().service(again).listen(url).await.unwrap();
    assert_eq!(soon(back.incarnation_of("front")).await.unwrap(), 7);
    all_are_heard(&heard, &keys).await;
}

/// Its old connection ends before the producer gets another URL, or after.
#[tokio::test]
async fn receipts_for_a_producer_with_another_url_go_there() {
    for ends_first in [true, false] {
        let heard = Arc::default();
        let (server, back, keys) = three_received_from(Deaf::hanging(&heard)).await;
        let moved = TensorRendezvousService::new(Deaf::hearing(&heard));
        let moved = serve(Context::global(), moved).await;
        if ends_first {
            is_lost(server, &back).await;
            back.add_peer("front", moved.url()).unwrap();
        } else {
            until(|| server.calls_in_flight() == 1).await;
            let old = back.connection("front").unwrap();
            back.add_peer("front", moved.url()).unwrap();
            drop(server);
            let _ = soon(old.close()).await;
        }
        all_are_heard(&heard, &keys).await;
    }
}

/// Another incarnation listens at the old URL, and is still being greeted as the producer gets its new URL.
#[tokio::test]
async fn an_old_url_that_answers_late_drops_no_receipts() {
    let heard = Arc::default();
    let (server, back, keys) = three_received_from(Deaf::hanging(&heard)).await;
    let url = is_lost(server, &back).await;
    let answers = Arc::new(Notify::new());
    let slow = TensorRendezvousService::new(Slow(answers.clone()));
    let slow = Server::builder().service(slow).listen(url).await.unwrap();
    let greeting = tokio::spawn({
        let back = back.clone();
        async move { back.incarnation_of("front").await }
    });
    until(|| slow.calls_in_flight() == 1).await;
    // Nobody listens at the new URL yet.
    let moved = serve(Context::global(), TensorRendezvousService::new(Liar)).await;
    let new = moved.url().clone();
    drop(moved);
    back.add_peer("front", &new).unwrap();
    answers.notify_one();
    assert_eq!(soon(greeting).await.unwrap().unwrap(), 9);
    let moved = TensorRendezvousService::new(Deaf::hearing(&heard));
    let _moved = Server::builder().service(moved).listen(new).await.unwrap();
    assert_eq!(soon(back.incarnation_of("front")).await.unwrap(), 7);
    all_are_heard(&heard, &keys).await;
}

/// The producer ends while a receipt is on its way, and has been tried again in vain. Returns its URL.
async fn is_lost(server: Server, back: &Rendezvous) -> Url {
    until(|| server.calls_in_flight() == 1).await;
    let (url, connection) = (server.url().clone(), back.connection("front").unwrap());
    drop(server);
    let _ = soon(connection.close()).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    url
}
