//! What several connections win where each is paced. Nothing is asserted in CI: a machine that is busy has no rates.
//!
//! ```text
//! cargo test --release -p tensorpipe-tests --test mpt -- --ignored --nocapture rates
//! ```

use std::time::Instant;

use tensorpipe::transports::TcpTransport;
use tensorpipe::{Message, Pipe, Tensor};

use crate::scene::pair;

const MIB: u64 = 1 << 20;
/// Of each connection, in bytes a second.
const PACE: u64 = 50 * MIB;
const LEN: u64 = 256 * MIB;

/// MiB a second of one tensor, from its write to its arrival.
async fn rate(from: &Pipe, to: &Pipe, tensor: &Tensor) -> f64 {
    let begun = Instant::now();
    let written = from.write(Message::new("").tensor(tensor.clone()));
    drop(to.read().await.unwrap());
    let seconds = begun.elapsed().as_secs_f64();
    written.await.unwrap();
    (LEN / MIB) as f64 / seconds
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn rates() {
    println!("paced to {} MiB/s each", PACE / MIB);
    table(Some(PACE)).await;
    println!("as fast as loopback goes");
    table(None).await;
}

async fn table(pace: Option<u64>) {
    let mut one = 0.0;
    println!("connections    MiB/s   of n times one   chunks by connection");
    for connections in [1, 2, 4] {
        let paced = TcpTransport::paced(move |_| pace);
        let pair = pair(connections, paced, async |port| port).await;
        let tensor = Tensor::from(vec![1u8; LEN as usize]);
        let mut rates = Vec::new();
        // The first opens the connections.
        for _ in 0..4 {
            rates.push(rate(&pair.client, &pair.server, &tensor).await);
        }
        rates.remove(0);
        rates.sort_by(f64::total_cmp);
        let rate = rates[1];
        if connections == 1 {
            one = rate;
        }
        let ratio = rate / (one * f64::from(connections));
        println!(
            "{connections:>11}   {rate:>6.1}   {ratio:>14.2}   {:?}",
            pair.sent()
        );
    }
}
