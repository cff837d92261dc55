//! Bare pipes: messages of any shape, written, taken back, read, skipped and refused in every way.

use std::collections::BTreeSet;

use fastrand::Rng;
use tensorpipe::{
    Allocation, BufferMut, Context, Incoming, Message, MessageTensor, Payload, Pipe, Place, Tensor,
};
use tokio::time::{sleep, timeout};

use super::bounds::{all_end, holds_nothing, in_time, listens, struck};
use super::memories::Memories;
use super::places::Ground;
use super::world::{Weather, World};
use super::{Log, Seen, one_of};
use crate::millis;

/// All of it follows from its number, which stands at its beginning.
fn message(number: u64, memories: &Memories) -> Message {
    let rng = &mut Rng::with_seed(number);
    let length = |rng: &mut Rng| {
        let up_to = one_of(rng, &[0, 100, 4 << 10, 100 << 10, 600 << 10]);
        rng.usize(..=up_to)
    };
    let mut metadata = number.to_le_bytes().to_vec();
    metadata.resize(8 + rng.usize(..200), number as u8);
    let mut message = Message::new(metadata);
    for part in 0..rng.u64(..5) {
        let byte = (number + part) as u8;
        let bytes = vec![byte; length(rng)];
        message = match rng.u8(..5) {
            0 => message.payload(Payload::new(bytes).with_metadata(vec![byte; rng.usize(..20)])),
            1 => message.tensor(Tensor::from(bytes)),
            2 | 3 => {
                let (at, target) = (rng.usize(..), rng.usize(..));
                let tensor = MessageTensor::from(memories.on_device(at, &bytes));
                message.tensor(match memories.target(target) {
                    Some(device) => tensor.to_device(device),
                    None => tensor,
                })
            }
            _ => message.tensor(memories.pooled(&bytes)),
        };
    }
    message
}

fn number(metadata: &[u8]) -> u64 {
    u64::from_le_bytes(metadata[..8].try_into().unwrap())
}

/// The message is what its number says, but for parts that were skipped.
async fn check(found: &Message, memories: &Memories, skipped: bool) {
    let expected = message(number(&found.metadata), &Memories::plain());
    assert_eq!(found.metadata, expected.metadata);
    assert_eq!(found.payloads.len(), expected.payloads.len());
    assert_eq!(found.tensors.len(), expected.tensors.len());
    let is_right = |found: &[u8], expected: &[u8]| {
        let is_skipped = skipped && found.is_empty();
        assert!(is_skipped || found == expected, "other bytes");
    };
    for (found, expected) in found.payloads.iter().zip(&expected.payloads) {
        is_right(found.as_bytes(), expected.as_bytes());
    }
    for (found, expected) in found.tensors.iter().zip(&expected.tensors) {
        let found = memories.bytes(&found.tensor).await;
        is_right(&found, expected.tensor.as_bytes().unwrap());
    }
}

/// Writes messages. Returns the numbers of those that it has not taken back.
async fn writes(pipe: Pipe, memories: Memories, first: u64, mut rng: Rng) -> BTreeSet<u64> {
    let mut written = BTreeSet::new();
    for number in first..first + rng.u64(..40) {
        let write = pipe.write(message(number, &memories));
        if write.id().is_none() {
            let error = write.await.unwrap_err();
            if error.ends_pipe() {
                return written;
            }
            continue;
        }
        match rng.u8(..6) {
            0 => {
                sleep(millis(rng.u64(..3))).await;
                write.cancel();
            }
            way => {
                written.insert(number);
                match way {
                    1 | 2 => drop(write),
                    3 => drop(timeout(millis(rng.u64(..30)), write).await),
                    _ => match write.await {
                        Err(error) if error.ends_pipe() => return written,
                        _ => {}
                    },
                }
            }
        }
        match rng.u8(..10) {
            0 => drop(timeout(millis(rng.u64(..30)), pipe.flush()).await),
            1 => sleep(millis(rng.u64(..100))).await,
            2 if pipe.flush().await.is_err() => return written,
            _ => {}
        }
    }
    if rng.bool() && pipe.flush().await.is_err() {
        return written;
    }
    pipe.finish();
    written
}

/// Decides about a message.
async fn decides(incoming: Incoming, memories: Memories, calm: bool, mut rng: Rng) {
    let rng = &mut rng;
    let descriptor = incoming.descriptor().clone();
    match rng.u8(..12) {
        0 => incoming.skip(),
        1 => incoming.refuse("not wanted"),
        2 => incoming.refuse_overloaded("not now"),
        3 => drop(timeout(millis(rng.u64(..30)), incoming.read()).await),
        4..=6 => {
            let place = |bytes: u64, rng: &mut Rng| match rng.u8(..4) {
                0 => Place::Skip,
                1 => Place::Pool,
                2 if !memories.devices.is_empty() => {
                    let pool = &memories.devices[rng.usize(..memories.devices.len())];
                    match (rng.bool(), pool.take(bytes as usize)) {
                        (true, Ok(memory)) => Place::Into(memory),
                        _ => Place::On(pool.device()),
                    }
                }
                _ => Place::Into(match rng.bool() {
                    true => BufferMut::from_vec(vec![0; bytes as usize]),
                    false => memories.pool.try_take(bytes as usize).unwrap(),
                }),
            };
            let mut allocation = Allocation::default();
            for payload in &descriptor.payloads {
                allocation.payloads.push(place(payload.len, rng));
            }
            for tensor in &descriptor.tensors {
                allocation.tensors.push(place(tensor.byte_len(), rng));
            }
            let read = incoming.read_into(allocation);
            if rng.u8(..4) == 0 {
                drop(timeout(millis(rng.u64(..30)), read).await);
                return;
            }
            match read.await {
                Ok(message) => check(&message, &memories, true).await,
                Err(failed) => assert!(!calm || !failed.error.ends_pipe(), "{}", failed.error),
            }
        }
        _ => match incoming.read().await {
            Ok(message) => check(&message, &memories, false).await,
            Err(error) => assert!(!calm || !error.ends_pipe(), "{error}"),
        },
    }
}

/// Reads until there is nothing more. Returns the numbers of what has come.
async fn reads(pipe: Pipe, memories: Memories, calm: bool, mut rng: Rng) -> BTreeSet<u64> {
    let mut seen = BTreeSet::new();
    let mut undecided = Vec::new();
    let mut deciding = Vec::new();
    loop {
        // Cancel safe.
        let incoming = match timeout(millis(rng.u64(1..50)), pipe.read_descriptor()).await {
            Ok(Ok(incoming)) => incoming,
            Ok(Err(_)) => break,
            Err(_) => {
                // Credit may be used up.
                for incoming in undecided.drain(..) {
                    decides(incoming, memories.clone(), calm, rng.fork()).await;
                }
                continue;
            }
        };
        let number = number(incoming.metadata());
        let last = seen.last().copied();
        assert!(
            last.is_none_or(|last| last < number),
            "{number} behind {last:?}"
        );
        seen.insert(number);
        match rng.u8(..6) {
            0 => undecided.push(incoming),
            1 | 2 => {
                let (memories, rng) = (memories.clone(), rng.fork());
                deciding.push(tokio::spawn(decides(incoming, memories, calm, rng)));
            }
            _ => decides(incoming, memories.clone(), calm, rng.fork()).await,
        }
        if rng.u8(..10) == 0 {
            sleep(millis(rng.u64(..100))).await;
        }
    }
    drop(undecided);
    all_end(deciding).await;
    seen
}

/// Both directions of a pipe, until its end.
async fn converses(
    ends: [Pipe; 2],
    memories: [Memories; 2],
    weather: Weather,
    log: Log,
    mut rng: Rng,
) {
    let calm = weather < Weather::Stalls;
    let [a, b] = [0, 1].map(|end| {
        let (pipe, memories) = (ends[end].clone(), memories[end].clone());
        let first = [1, 1000][end];
        let writing = tokio::spawn(writes(pipe.clone(), memories.clone(), first, rng.fork()));
        let reading = tokio::spawn(reads(pipe, memories, calm, rng.fork()));
        (writing, reading)
    });
    if weather >= Weather::Cuts && rng.u8(..3) == 0 {
        sleep(millis(rng.u64(..1000))).await;
        match rng.bool() {
            true => drop(ends[0].close_within(millis(rng.u64(..200))).await),
            false => drop(ends[1].close().await),
        }
    }
    let ended = async {
        let ended = tokio::try_join!(a.0, a.1, b.0, b.1);
        ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
    };
    let (written_a, seen_a, written_b, seen_b) =
        in_time("a conversation", millis(600_000), ended).await;
    let mut came = 0;
    for (written, seen) in [(written_a, seen_b), (written_b, seen_a)] {
        came += seen.len();
        if calm {
            let lost: Vec<_> = written.difference(&seen).collect();
            assert!(lost.is_empty(), "{lost:?} have not come");
        }
    }
    log.count("conversations");
    for _ in 0..came {
        log.count("messages");
    }
    let [a, b] = ends;
    if rng.bool() {
        let closed = in_time("closing", millis(12_000), async {
            tokio::join!(a.close(), b.close())
        })
        .await;
        if calm {
            assert!(closed.0.is_ok() || closed.1.is_ok(), "{closed:?}");
        }
    }
}

async fn connect(world: &World, contexts: [&Context; 2], rng: &mut Rng) -> Option<[Pipe; 2]> {
    let [near, far] = contexts;
    let site = &world.sites[0];
    let listener = listens(async || far.listen([site.url()]).await).await;
    let listener = listener.unwrap();
    let url = world.before(site, listener.url().as_ref(), rng).await;
    let both = async { tokio::join!(near.connect(url), listener.accept()) };
    match timeout(millis(60_000), both).await {
        Ok((Ok(a), Ok(b))) => Some([a, b]),
        _ => None,
    }
}

/// Some pipes, one after the other and side by side.
pub(super) async fn story(ground: Ground, seed: u64, seen: Seen) {
    let rng = &mut Rng::with_seed(seed);
    let weather = one_of(rng, &Weather::ALL);
    let log = Log::new(&ground, seen);
    let world = World::new(ground, weather, seed, rng);
    println!("seed {seed}: {weather:?}");
    let near = world.context(&world.clients[0], rng);
    let far = world.context("server0", rng);
    for _ in 0..rng.usize(1..4) {
        let mut talks = Vec::new();
        for _ in 0..rng.usize(1..4) {
            let Some(ends) = connect(&world, [&near, &far], rng).await else {
                assert!(weather >= Weather::Stalls, "no pipe");
                log.count("not connected");
                continue;
            };
            let memories = [&near, &far].map(|context| Memories::of(context, world.fixture()));
            talks.push(tokio::spawn(converses(
                ends,
                memories,
                weather,
                log.clone(),
                rng.fork(),
            )));
        }
        struck(world.strikes_links(rng.fork()), all_end(talks)).await;
        world.clears_links();
        for context in [&near, &far] {
            // Pipes that were dropped say goodbye first.
            holds_nothing(context, world.timeouts.linger + millis(2000)).await;
        }
    }
}
