//! Random load: callers with many rows or none cancel, have short deadlines, or make their batch fail. Each caller gets its own rows
//! or an error that says why, and nothing is left over.

use std::time::Duration;

use fastrand::Rng;
use tensorpipe::Tensor;
use tensorpipe_rpc::CallError;

use super::model::{ERROR, ModelClient, PANIC, SCALAR, SHORT, are, over_each, rows};

const CALLS: u64 = 150;

/// One call, however it ends. Whether it had its rows.
async fn call(client: &ModelClient, random: &mut Rng, value: f32) -> bool {
    let (count, factor) = (random.u64(..6), 2.0 + f32::from(random.u8(..2)));
    let poison = [ERROR, PANIC, SHORT, SCALAR].get(random.usize(..40));
    let x = rows(count, *poison.unwrap_or(&value));
    let within = match random.u8(..6) {
        0 => Some(Duration::from_millis(random.u64(1..=6))),
        _ => None,
    };
    let client = match within {
        Some(within) => client.with_deadline(within),
        None => client.clone(),
    };
    let smooth = random.bool();
    let call = match smooth {
        true => client.smooth(x, factor),
        false => client.rough(x, factor),
    };
    let ended = match random.u8(..6) {
        0 => {
            let leaves = Duration::from_micros(random.u64(..4000));
            match tokio::time::timeout(leaves, call).await {
                Ok(ended) => ended,
                Err(_) => return false,
            }
        }
        _ => call.await,
    };
    let poisoned = poison.is_some() && count > 0;
    is_true(ended, within.is_some(), poisoned, smooth, |x| {
        are(x, count, value * factor)
    })
}

fn is_true(
    ended: Result<Tensor, CallError<String>>,
    hurried: bool,
    poisoned: bool,
    smooth: bool,
    are_own: impl FnOnce(&Tensor) -> bool,
) -> bool {
    match ended {
        Ok(x) => {
            assert!(!poisoned && are_own(&x), "{:?}", x.shape());
            true
        }
        Err(CallError::Deadline { .. }) => {
            assert!(hurried);
            false
        }
        // Somebody else may be at fault where the method may not run again.
        Err(CallError::Service(_) | CallError::Panicked { .. } | CallError::BadReply(_)) => {
            assert!(poisoned || !smooth);
            false
        }
        Err(error) => panic!("{error:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn whoever_gets_rows_gets_its_own_and_nothing_is_left() {
    over_each(5, async |models| {
        let tasks = models.clients.iter().enumerate().flat_map(|(i, client)| {
            // Several at once over each connection.
            (0..3).map(move |j| {
                let (client, seed) = (client.clone(), 1 + 97 * (3 * i as u64 + j));
                tokio::spawn(async move {
                    let mut random = Rng::with_seed(seed);
                    let mut answered = 0;
                    for number in 0..CALLS {
                        let value = (1 + 1000 * seed + number) as f32;
                        answered += u64::from(call(&client, &mut random, value).await);
                    }
                    answered
                })
            })
        });
        let tasks: Vec<_> = tasks.collect();
        let mut answered = 0;
        for task in tasks {
            answered += task.await.unwrap();
        }
        assert!(answered > 15 * CALLS / 3, "{answered}");
        models.is_clean().await;
    })
    .await;
}
