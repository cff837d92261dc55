//! A rendezvous over links that stall and are cut, with peers that die. No value is lost, no task hangs, and dead peers are reported.

use std::time::Duration;

use tensorpipe::testing::{self, Network};
use tensorpipe_rpc::Server;
use tensorpipe_rpc::rendezvous::{Key, RecvError, Rendezvous};

use crate::scene::{millis, tensor};

const WAYS: [(&str, &str); 2] = [("front", "back"), ("back", "front")];

/// Floats of a tensor that takes several windows of the network to arrive.
const LARGE: usize = 1 << 20;

/// Whoever makes values, at host `front`.
async fn producer(network: &Network) -> (Rendezvous, Server) {
    let host = network.host("front");
    let context = host.context().build().unwrap();
    let front = Rendezvous::builder("front").context(&context);
    let front = front.build().unwrap();
    let server = Server::builder().context(&context).service(front.service());
    (front, server.listen(host.url(1)).await.unwrap())
}

/// Whoever takes them, at host `back`.
fn consumer(network: &Network) -> Rendezvous {
    let context = network.host("back").context().build().unwrap();
    let back = Rendezvous::builder("back").context(&context);
    let back = back.peer("front", network.host("front").url(1));
    back.build().unwrap()
}

/// Both of them, with a key between them.
async fn pair(network: &Network) -> (Rendezvous, Server, Rendezvous, Key) {
    let (front, server) = producer(network).await;
    let back = consumer(network);
    let key = back.key_from("front", "activations", 1).await.unwrap();
    (front, server, back, key)
}

/// Receives a value of `floats` floats, and asks again where its connection breaks; how often it did.
async fn receive(back: &Rendezvous, key: &Key, floats: usize) -> u32 {
    let mut broken = 0;
    loop {
        match back.recv(key).await {
            Ok(value) => {
                assert_eq!(value.tensor.as_slice::<f32>().unwrap(), vec![1.0; floats]);
                return broken;
            }
            Err(RecvError::Call { .. } | RecvError::Unreachable { .. }) => broken += 1,
            Err(other) => panic!("{other}"),
        }
        assert!(broken < 10, "its connection was cut once");
    }
}

#[test]
fn a_value_whose_connection_is_cut_behind_any_byte_is_received_once() {
    let mut breaks = 0;
    let all = WAYS
        .into_iter()
        .flat_map(|way| (0..400).map(move |cut| (way, cut)));
    for (way, cut) in all {
        breaks += testing::run(cut, async |network| {
            let (front, _server, back, key) = pair(&network).await;
            network.link(way.0, way.1).delay(millis(1)).cut_after(cut);
            front.send(&key, tensor(20)).unwrap();
            let broken = receive(&back, &key, 20).await;
            let again = back.recv(&key).await;
            let is_over = matches!(again, Err(RecvError::Received(_)));
            assert!(is_over, "{way:?} {cut}: {again:?}");
            // Its receipt gets there, by another connection if need be.
            tokio::time::sleep(millis(20_000)).await;
            let stats = front.stats();
            assert_eq!((stats.values, stats.refused), (0, 0), "{way:?} {cut}");
            broken
        });
    }
    assert!(breaks > 100, "{breaks}");
}

/// What one that stalls does to a receive that waits, and when; `seed` says how late everything is.
fn stalls(seed: u64) -> Vec<Duration> {
    testing::run(seed, async |network| {
        let (front, _server, back, key) = pair(&network).await;
        let mut ends = Vec::new();
        for (from, to) in WAYS {
            network.link(from, to).delay(millis(3)).jitter(millis(40));
        }
        for (step, (from, to)) in (2..).zip(WAYS) {
            let key = Key::new("front", key.incarnation(), "back", "activations", step);
            let key = key.unwrap();
            front.send(&key, tensor(1000)).unwrap();
            network.link(from, to).stall();
            let asked = network.elapsed();
            let late = back.recv_within(&key, millis(700)).await;
            let is_late = matches!(late, Err(RecvError::Deadline { .. }));
            assert!(is_late, "{seed} {from}: {late:?}");
            let took = network.elapsed() - asked;
            assert!((700..800).contains(&took.as_millis()), "{seed}: {took:?}");
            network.link(from, to).heal();
            assert_eq!(receive(&back, &key, 1000).await, 0, "{seed} {from}");
            ends.push(network.elapsed());
        }
        tokio::time::sleep(millis(20_000)).await;
        assert_eq!(front.stats().values, 0, "{seed}");
        ends
    })
}

#[test]
fn a_link_that_stalls_delays_a_value_and_its_seed_says_for_how_long() {
    let mut all: Vec<_> = (0..20).map(stalls).collect();
    assert_eq!(all, (0..20).map(stalls).collect::<Vec<_>>());
    all.dedup();
    assert!(all.len() > 10, "{all:?}");
}

#[test]
fn a_producer_that_dies_half_way_is_said_to_be_gone_and_its_successor_is_another() {
    for seed in 0..20 {
        testing::run(seed, async |network| {
            let (front, server, back, key) = pair(&network).await;
            for (from, to) in WAYS {
                network.link(from, to).delay(millis(3)).jitter(millis(4));
            }
            front.send(&key, tensor(LARGE)).unwrap();
            let mut half = back.recv(&key);
            let early = tokio::time::timeout(millis(10 + seed), &mut half).await;
            assert!(early.is_err(), "{seed}: it is here");
            drop((front, server));
            network.crash("front");
            let gone = half.await.unwrap_err();
            assert!(matches!(gone, RecvError::Call { .. }), "{seed}: {gone}");

            let (front, _server) = producer(&network).await;
            let other = back.recv(&key).await.unwrap_err();
            let is_other =
                matches!(other, RecvError::Restarted { found, .. } if found == front.incarnation());
            assert!(is_other, "{seed}: {other}");
            let key = back.key_from("front", "activations", 1).await.unwrap();
            front.send(&key, tensor(LARGE)).unwrap();
            assert_eq!(receive(&back, &key, LARGE).await, 0, "{seed}");
        });
    }
}

#[test]
fn a_consumer_that_dies_half_way_leaves_the_value_to_its_successor() {
    for seed in 0..20 {
        testing::run(seed, async |network| {
            let (front, _server, back, key) = pair(&network).await;
            for (from, to) in WAYS {
                network.link(from, to).delay(millis(3)).jitter(millis(4));
            }
            front.send(&key, tensor(LARGE)).unwrap();
            let mut half = back.recv(&key);
            let early = tokio::time::timeout(millis(10 + seed), &mut half).await;
            assert!(early.is_err(), "{seed}: it is here");
            network.crash("back");
            drop((half, back));
            assert_eq!(front.stats().values, 1, "{seed}");
            let back = consumer(&network);
            assert_eq!(receive(&back, &key, LARGE).await, 0, "{seed}");
            tokio::time::sleep(millis(20_000)).await;
            assert_eq!(front.stats().values, 0, "{seed}");
        });
    }
}
