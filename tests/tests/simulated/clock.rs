//! Clocks that a test has paused itself, beside a simulation and without one.

use std::sync::mpsc;
use std::time::Duration;

use tensorpipe::{Allocation, BufferMut, Context, Message, Place, Tensor, ambient, testing};
use tokio::time::Instant;

const HOUR: Duration = Duration::from_secs(3600);

/// Its thread works while nothing else does: that is when a paused clock moves on to the next timer.
#[tokio::test(start_paused = true)]
async fn a_long_copy_takes_no_time_of_a_paused_clock() {
    const LEN: usize = 64 << 20;
    let context = Context::new();
    let listener = context.listen(["memory://paused clock"]).await.unwrap();
    let connected = tokio::join!(context.connect(listener.url()), listener.accept());
    let (client, server) = (connected.0.unwrap(), connected.1.unwrap());
    client
        .send(Message::new("").tensor(Tensor::from(vec![7u8; LEN])))
        .unwrap();
    let incoming = server.read_descriptor().await.unwrap();
    let allocation = Allocation {
        tensors: vec![Place::Into(BufferMut::zeroed(LEN))],
        ..Allocation::default()
    };
    let begun = Instant::now();
    let message = incoming.read_into(allocation).await.unwrap();
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert!(
        message.tensors[0]
            .tensor
            .as_bytes()
            .unwrap()
            .ends_with(&[7])
    );
}

#[tokio::test(start_paused = true)]
async fn a_paused_clock_counts_whether_or_not_a_simulation_runs() {
    let begun = ambient::now();
    let passes = async |hours| {
        tokio::time::advance(HOUR).await;
        assert_eq!(ambient::since(begun), hours * HOUR);
    };
    passes(1).await;
    let (runs, is_running) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel();
    let simulation = std::thread::spawn(move || {
        testing::run(1, async |_| {
            let begun = ambient::now();
            runs.send(()).unwrap();
            goes_on.recv().unwrap();
            tokio::time::sleep(HOUR).await;
            ambient::since(begun)
        })
    });
    is_running.recv().unwrap();
    passes(2).await;
    go_on.send(()).unwrap();
    assert_eq!(simulation.join().unwrap(), HOUR);
    passes(3).await;
}
