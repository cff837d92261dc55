//! A rendezvous: values that are sent before or after somebody asks for them, once or again and again.

use std::time::Duration;

use fastrand::Rng;
use tensorpipe::Tensor;
use tensorpipe_rpc::Server;
use tensorpipe_rpc::rendezvous::{Key, Limits, RecvError, Rendezvous, SendError};
use tokio::time::{Instant, sleep, timeout};

use super::bounds::{LATE, all_end, holds_nothing, in_time, listens, slack, struck, until};
use super::places::Ground;
use super::world::{Weather, World};
use super::{Log, Seen, one_of};
use crate::millis;

const PRODUCER: &str = "server0";

/// Sends a value some time. Returns whether it is there.
async fn sends(front: &Rendezvous, key: &Key, bytes: usize, mut rng: Rng) -> bool {
    let rng = &mut rng;
    sleep(millis(rng.u64(..200))).await;
    let value = || Tensor::from(vec![key.step() as u8; bytes]);
    // Until there is room.
    loop {
        let sent = match rng.bool() {
            true => front.send(key, value()),
            false => {
                let within = millis(rng.u64(..300));
                let sent = front.send_within(key, value(), within);
                let begun = Instant::now();
                let sent = sent.await;
                assert!(begun.elapsed() <= within + LATE + slack(), "a send");
                sent
            }
        };
        match sent {
            Ok(()) => return true,
            Err(SendError::Full { .. }) => sleep(millis(rng.u64(1..100))).await,
            Err(SendError::AlreadySent(_)) => panic!("nobody has sent it"),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Receives a value, and asks again where that fails.
async fn receives(back: &Rendezvous, key: &Key, bytes: usize, log: Log, mut rng: Rng) {
    let rng = &mut rng;
    sleep(millis(rng.u64(..200))).await;
    for _ in 0..1000 {
        let within = millis(one_of(rng, &[5, 100, 3000]));
        let dropped_after = match rng.u8(..4) {
            0 => millis(rng.u64(..50)),
            _ => Duration::MAX,
        };
        let begun = Instant::now();
        let Ok(came) = timeout(dropped_after, back.recv_within(key, within)).await else {
            continue;
        };
        assert!(begun.elapsed() <= within + LATE + slack(), "a receive");
        match came {
            Ok(value) => {
                assert_eq!(
                    value.tensor.as_bytes().unwrap(),
                    vec![key.step() as u8; bytes]
                );
                return log.count("received");
            }
            // A value whose receive is dropped stays.
            Err(
                error @ (RecvError::Received(_)
                | RecvError::Restarted { .. }
                | RecvError::Finished { .. }),
            ) => panic!("{error}"),
            Err(error) => {
                log.note(format!("{key}: {error}"));
                sleep(millis(rng.u64(1..50))).await;
            }
        }
    }
    panic!("{key} never comes");
}

pub(super) async fn story(ground: Ground, seed: u64, seen: Seen) {
    let rng = &mut Rng::with_seed(seed);
    let weather = one_of(rng, &Weather::ALL);
    let log = Log::new(&ground, seen);
    let world = World::new(ground, weather, seed, rng);
    println!("seed {seed}: {weather:?}");
    let mut limits = Limits::default();
    if weather > Weather::Calm && rng.bool() {
        limits.values = 2;
        limits.bytes = 100_000;
    }
    let context = world.context(PRODUCER, rng);
    let front = Rendezvous::builder(PRODUCER)
        .context(&context)
        .limits(limits);
    let front = front.build().unwrap();
    let listen = async || {
        let server = Server::builder().context(&context).service(front.service());
        server.listen(world.sites[0].url()).await
    };
    let server = listens(listen).await.unwrap();
    let url = server.url().as_ref();
    let url = world.before(&world.sites[0], url, rng).await;
    let backs = world.clients.iter().map(|name| {
        let context = world.context(name, rng);
        let back = Rendezvous::builder(name).context(&context);
        let back = back.peer(PRODUCER, &url);
        (context, back.build().unwrap())
    });
    let backs: Vec<_> = backs.collect();
    let mut step = 0;
    for _ in 0..rng.usize(1..4) {
        let mut meetings = Vec::new();
        for (_, back) in &backs {
            for _ in 0..rng.usize(..8) {
                step += 1;
                let (back, front, step) = (back.clone(), front.clone(), step);
                let (log, mut rng) = (log.clone(), rng.fork());
                meetings.push(tokio::spawn(async move {
                    let key = loop {
                        match back.key_from(PRODUCER, "value", step).await {
                            Ok(key) => break key,
                            Err(_) => sleep(millis(50)).await,
                        }
                    };
                    let up_to = one_of(&mut rng, &[0, 100, 10_000, 1_000_000]);
                    let bytes = rng.usize(..=up_to);
                    let (one, other) = (rng.fork(), rng.fork());
                    tokio::join!(
                        sends(&front, &key, bytes, one),
                        receives(&back, &key, bytes, log, other)
                    );
                }));
            }
        }
        let all = in_time("meetings", Duration::from_secs(3600), all_end(meetings));
        struck(world.strikes_links(rng.fork()), all).await;
        world.clears_links();
        // The last receipts come, by other connections if need be.
        until("values are kept", millis(60_000), || {
            front.stats().values == 0
        })
        .await;
        for rendezvous in backs.iter().map(|(_, back)| back).chain([&front]) {
            let at_rest = || {
                let stats = rendezvous.stats();
                stats.values + stats.blocked + stats.waiting == 0
            };
            until("somebody waits", millis(1000), at_rest).await;
        }
        for context in backs.iter().map(|(context, _)| context).chain([&context]) {
            holds_nothing(context, millis(1000)).await;
        }
    }
    in_time("a shutdown", millis(60_000), server.shutdown()).await;
}
