//! Many tasks at once, sizes and cancels at random: every answer is right, and in the end nothing is left.

use std::time::Duration;

use fastrand::Rng;

use super::lab::{Both, LabClient, over_each, tensor};

/// As often a small one as a large one.
fn len(random: &mut Rng) -> usize {
    let exponent = random.u8(..18);
    random.usize(..2 << exponent)
}

async fn calls(client: LabClient, task: u64, count: u64) {
    let mut random = Rng::with_seed(task);
    for _ in 0..count {
        match random.u8(..8) {
            0..=2 => {
                let text = "x".repeat(len(&mut random).min(50_000));
                assert_eq!(client.echo(&text).await.unwrap(), text);
            }
            3 | 4 => {
                let sent = tensor(len(&mut random), random.u8(..));
                let back = client.bounce(&sent).await.unwrap();
                assert!(back.as_bytes().unwrap() == sent.as_bytes().unwrap());
            }
            5 => assert_eq!(client.sleep(task % 3).await.unwrap(), task % 3),
            6 => drop(client.bounce(tensor(len(&mut random), 1))),
            _ => {
                let call = client.bounce(tensor(len(&mut random), 1));
                let bound = Duration::from_micros(random.u64(..2000));
                let _ = tokio::time::timeout(bound, call).await;
            }
        }
    }
}

async fn storm(both: &Both, clients: &[LabClient]) {
    let tasks: Vec<_> = (0..64)
        .map(|task| {
            let client = clients[task as usize % clients.len()].clone();
            tokio::spawn(calls(client, task, 200))
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    both.is_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_one_connection() {
    over_each(async |both| storm(&both, std::slice::from_ref(&both.client)).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_many_connections() {
    over_each(async |both| {
        let mut clients = Vec::new();
        for _ in 0..8 {
            let url = both.server.url().to_string();
            clients.push(LabClient::connect_with(&both.near, url).await.unwrap());
        }
        storm(&both, &clients).await;
        for client in clients {
            super::lab::until(|| client.connection().calls_in_flight() == 0).await;
        }
    })
    .await;
}

#[tokio::test]
async fn on_one_thread() {
    over_each(async |both| storm(&both, std::slice::from_ref(&both.client)).await).await;
}
