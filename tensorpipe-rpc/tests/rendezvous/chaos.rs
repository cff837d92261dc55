//! At random, receives and sends are dropped or late, and connections break. Every value is received once, no task waits for ever,
//! and nothing is left over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use tensorpipe::Tensor;
use tensorpipe_rpc::rendezvous::{Limits, RecvError, Rendezvous, SendError, Value};

use crate::remote::{Both, over_each};

const TASKS: u64 = 4;
const VALUES: u64 = 100;

fn value(number: u64) -> Value {
    let len = [1, 700, 90_000][number as usize % 3];
    Tensor::from(vec![number as u8; len]).into()
}

fn micros(below: u64, random: &mut Rng) -> Duration {
    Duration::from_micros(random.u64(..below))
}

/// Sends every value of a task, however often it has to.
async fn produce(front: Rendezvous, task: u64) {
    let mut random = Rng::with_seed(1 + task);
    for number in 0..VALUES {
        let key = front.key_to("back", &number.to_string(), task).unwrap();
        loop {
            let sending = match random.u8(..3) {
                0 => front.send_within(&key, value(number), micros(3000, &mut random)),
                _ => front.send_or_wait(&key, value(number)),
            };
            let sent = match random.u8(..3) {
                0 => tokio::time::timeout(micros(3000, &mut random), sending).await,
                _ => Ok(sending.await),
            };
            match sent {
                Ok(Ok(())) => break,
                // It was let in when it was given up.
                Ok(Err(SendError::AlreadySent(_))) => break,
                Ok(Err(SendError::Full { .. })) | Err(_) => {}
                Ok(Err(error)) => panic!("{error}"),
            }
        }
    }
}

/// Receives every value of a task, in another order, however often it has to ask.
async fn consume(back: Rendezvous, task: u64, asked: Arc<AtomicU64>) {
    let mut random = Rng::with_seed(100 + task);
    let mut left: Vec<u64> = (0..VALUES).collect();
    while !left.is_empty() {
        // Not far ahead of its producer, and not in its order.
        let at = random.usize(..left.len().min(4));
        let number = left[at];
        asked.fetch_add(1, Ordering::Relaxed);
        let key = match back.key_from("front", &number.to_string(), task).await {
            Ok(key) => key,
            Err(RecvError::Unreachable { .. } | RecvError::Absent { .. }) => continue,
            Err(error) => panic!("{error}"),
        };
        let recv = match random.u8(..3) {
            0 => back.recv_within(&key, micros(5000, &mut random)),
            _ => back.recv_within(&key, Duration::from_millis(100)),
        };
        let received = match random.u8(..3) {
            0 => tokio::time::timeout(micros(3000, &mut random), recv).await,
            _ => Ok(recv.await),
        };
        match received {
            Ok(Ok(received)) => {
                let bytes = received.tensor.as_slice::<u8>().unwrap();
                assert!(bytes.iter().all(|byte| *byte == number as u8));
                assert_eq!(bytes.len() as u64, value(number).byte_len());
                left.remove(at);
            }
            Ok(Err(
                RecvError::Deadline { .. }
                | RecvError::Call { .. }
                | RecvError::Unreachable { .. }
                | RecvError::Awaited(_),
            ))
            | Err(_) => {}
            Ok(Err(error)) => panic!("{error}"),
        }
    }
}

/// Breaks connections, at either end.
async fn disturb(both: &Both, over: &AtomicBool) {
    let mut random = Rng::with_seed(7);
    while !over.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(1) + micros(9_000, &mut random)).await;
        let pipes = match random.u8(..2) {
            0 => both.server.pipes(),
            _ => {
                let connection = both.back.connection("front");
                connection
                    .map(|one| one.pipe().clone())
                    .into_iter()
                    .collect()
            }
        };
        for pipe in pipes {
            // However it ends.
            let _ = pipe.close().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn every_value_is_received_once_whatever_breaks() {
    let limits = || {
        let mut limits = Limits::default();
        limits.values = 6;
        limits
    };
    over_each(limits(), async |both| {
        let (over, asked) = (AtomicBool::new(false), Arc::<AtomicU64>::default());
        let work = async {
            let producers = (0..TASKS).map(|task| tokio::spawn(produce(both.front.clone(), task)));
            let consumers = (0..TASKS)
                .map(|task| tokio::spawn(consume(both.back.clone(), task, asked.clone())));
            for ended in join_all(producers.chain(consumers).collect::<Vec<_>>()).await {
                ended.unwrap();
            }
            over.store(true, Ordering::Relaxed);
        };
        tokio::join!(work, disturb(&both, &over));
        println!("{} receives", asked.load(Ordering::Relaxed));
        both.is_clean().await;
    })
    .await;
}
