//! How much each connection carries: counted, not timed. `tp-bench` measures the speed (benches/RESULTS.md).

use tensorpipe::transports::TcpTransport;

use crate::scene::{carry, pair, soon};

const MIB: usize = 1 << 20;

/// Chunks of a tensor of 32 MiB.
const CHUNKS: u64 = 64;

/// How many of them a connection may have sent more, or less, than its share.
const LATE: u64 = 3;

/// A task that waits for a processor is more chunks late, but not each time.
const TRIES: usize = 5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paced_connections_carry_their_shares() {
    // So slow that no other one has time for what one should carry.
    const PACE: u64 = 32 << 20;
    for connections in [1, 2, 4] {
        let transport = TcpTransport::paced(|number| (number > 0).then_some(PACE));
        let pair = pair(connections, transport, async |port| port).await;
        soon("a chunk on each", async {
            while pair.sent().contains(&0) {
                carry(&pair.client, &pair.server, 8 * MIB).await;
            }
        })
        .await;
        let mut seen = Vec::new();
        loop {
            let before = pair.sent();
            carry(&pair.client, &pair.server, 32 * MIB).await;
            let now = pair.sent();
            let sent = now.iter().zip(before).map(|(now, then)| now - then);
            let sent: Vec<u64> = sent.collect();
            // One that is late is sent by another, too.
            let all: u64 = sent.iter().sum();
            assert!((CHUNKS..2 * CHUNKS).contains(&all), "{sent:?}");
            let share = all / u64::from(connections);
            let is_fair = |sent: &u64| sent.abs_diff(share) <= LATE;
            let are_fair = sent.iter().all(is_fair);
            seen.push(sent);
            if are_fair {
                break;
            }
            assert!(seen.len() < TRIES, "{seen:?}");
        }
    }
}
