//! A peer that calls what only the library calls, with what it likes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use tensorpipe_rpc::rendezvous::{Key, Rendezvous, Value};
use tensorpipe_rpc::{Server, tensor_service};

use crate::{soon, until};

/// The service of a rendezvous, written down again: the two ends compare it.
#[tensor_service]
pub(crate) trait TensorRendezvous {
    async fn hello(&self) -> Hello;
    async fn pull(&self, key: String) -> Pulled;
    async fn received(&self, keys: Vec<String>) -> ();
    async fn abort(&self, by: String, reason: String) -> ();
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    name: String,
    incarnation: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Pulled {
    Value(Value),
    Refused(Refusal),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Refusal {
    Aborted { by: String, reason: String },
    Finished,
    Awaited,
    Received,
    Restarted { now: u64 },
    Stranger { name: String },
    NoKey(String),
}

/// Says what it likes.
struct Liar;

impl TensorRendezvous for Liar {
    async fn hello(&self) -> Hello {
        Hello {
            name: "front".to_owned(),
            incarnation: 7,
        }
    }

    async fn pull(&self, key: String) -> Pulled {
        Pulled::Refused(match key.parse::<Key>().unwrap().tensor() {
            "restarted" => Refusal::Restarted { now: 7 },
            "no key" => Refusal::NoKey("\u{7}".repeat(100_000)),
            "received" => Refusal::Received,
            _ => Refusal::Awaited,
        })
    }

    async fn received(&self, _: Vec<String>) {}

    async fn abort(&self, _: String, _: String) {}
}

#[tokio::test]
async fn keys_that_are_none_and_receipts_for_nothing_change_nothing() {
    let front = Rendezvous::builder("front").incarnation(7).build().unwrap();
    let server = Server::builder().service(front.service());
    let server = server.listen("tcp://127.0.0.1:0").await.unwrap();
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
                Pulled::Refused(Refusal::Stranger { .. } | Refusal::Restarted { now: 7 })
            ),
            "{pulled:?}"
        );
    }
    // It was lent to nobody: nobody can have it.
    let receipts: Vec<String> = bad
        .into_iter()
        .chain([good.clone(), good.clone()])
        .collect();
    soon(peer.received(receipts)).await.unwrap();
    assert_eq!((front.stats().values, front.stats().waiting), (1, 0));
    let pulled = soon(peer.pull(&good)).await.unwrap();
    assert!(matches!(pulled, Pulled::Value(value) if value.is_dead));
    // It was lent now, and not by another incarnation.
    let foreign = good.replace("0000000000000007", "0000000000000008");
    soon(peer.received(vec![foreign])).await.unwrap();
    assert_eq!(front.stats().values, 1);
    soon(peer.received(vec![good])).await.unwrap();
    assert_eq!(front.stats().values, 0);
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

#[tokio::test]
async fn whoever_pulls_all_the_time_leaves_no_trace() {
    let front = Rendezvous::builder("front").incarnation(7).build().unwrap();
    let server = Server::builder().service(front.service());
    let server = server.listen("tcp://127.0.0.1:0").await.unwrap();
    let peer = TensorRendezvousClient::connect(server.url()).await.unwrap();
    let pulls: Vec<_> = (0..3000)
        .map(|i| peer.pull(front.key_to("back", &i.to_string(), i).unwrap().to_string()))
        .collect();
    until(|| front.stats().waiting == 3000).await;
    drop(pulls);
    until(|| front.stats().waiting == 0).await;
    soon(peer.hello()).await.unwrap();
}

#[tokio::test]
async fn what_a_producer_says_is_an_error_that_can_be_shown() {
    let server = Server::builder().service(TensorRendezvousService::new(Liar));
    let server = server.listen("tcp://127.0.0.1:0").await.unwrap();
    let back = Rendezvous::builder("back").peer("front", server.url());
    let back = back.build().unwrap();
    for tensor in ["restarted", "no key", "received", "awaited"] {
        let key = soon(back.key_from("front", tensor, 1)).await.unwrap();
        let error = soon(back.recv(&key)).await.unwrap_err().to_string();
        assert!(
            error.len() < 40_000 && !error.contains('\u{7}'),
            "{}",
            error.len()
        );
    }
    assert_eq!(back.stats().waiting, 0);
}

/// Panics over the first receipts that it is given, or says nothing to any.
struct Deaf {
    panics: Mutex<u32>,
    hangs: Arc<AtomicBool>,
    heard: Arc<Mutex<Vec<String>>>,
}

impl TensorRendezvous for Deaf {
    async fn hello(&self) -> Hello {
        Liar.hello().await
    }

    async fn pull(&self, _: String) -> Pulled {
        Pulled::Value(Value::dead())
    }

    async fn received(&self, keys: Vec<String>) {
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
        self.heard.lock().unwrap().extend(keys);
    }

    async fn abort(&self, _: String, _: String) {}
}

/// A receiver that has three values of `producer`, and their keys in order.
async fn three_received_from(producer: Deaf) -> (Server, Rendezvous, Vec<String>) {
    let server = Server::builder().service(TensorRendezvousService::new(producer));
    let server = server.listen("tcp://127.0.0.1:0").await.unwrap();
    let back = Rendezvous::builder("back").peer("front", server.url());
    let back = back.build().unwrap();
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
    let heard = Arc::<Mutex<Vec<String>>>::default();
    let deaf = Deaf {
        panics: Mutex::new(3),
        hangs: Arc::default(),
        heard: heard.clone(),
    };
    let (_server, _back, keys) = three_received_from(deaf).await;
    all_are_heard(&heard, &keys).await;
}

#[tokio::test]
async fn a_producer_that_takes_no_receipt_is_left_when_the_rendezvous_is_gone() {
    let heard = Arc::<Mutex<Vec<String>>>::default();
    let deaf = Deaf {
        panics: Mutex::new(u32::MAX),
        hangs: Arc::default(),
        heard: heard.clone(),
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
    let hangs = Arc::new(AtomicBool::new(true));
    let deaf = Deaf {
        panics: Mutex::new(0),
        hangs: hangs.clone(),
        heard: heard.clone(),
    };
    let (server, back, keys) = three_received_from(deaf).await;
    // One is on its way, the others wait for it.
    until(|| server.calls_under_way() == 1).await;
    hangs.store(false, Ordering::SeqCst);
    let pipe = back.connection("front").unwrap().pipe().clone();
    let _ = soon(pipe.close()).await;
    all_are_heard(&heard, &keys).await;
}
