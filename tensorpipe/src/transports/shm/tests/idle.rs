//! Large rings beside which a connection has fallen idle.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::super::pair::IDLE;
use super::*;
use crate::transports::Connection;

/// Reads, and gives the connection back when it is told to, without another look.
struct Reading(oneshot::Sender<()>, JoinHandle<ShmConnection>);

impl Reading {
    fn begin(mut connection: ShmConnection) -> Self {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            tokio::select! {
                biased;
                _ = stopped => {}
                _ = connection.read_u8() => panic!("nothing is written"),
            }
            connection
        });
        Self(stop, task)
    }

    async fn end(self) -> ShmConnection {
        self.0.send(()).unwrap();
        self.1.await.unwrap()
    }
}

/// Two ends that share with `pair`. The large ring of one of them is full, and that long.
async fn with_unread(shared: &Arc<Pair>) -> (ShmConnection, ShmConnection, usize) {
    let (mut near, mut far) = pair().await;
    near.rings().large_out.share(shared.clone());
    let bytes = pattern(2 << 20);
    let first = fill(&mut near, &bytes);
    assert_eq!(read(&mut far, first).await, bytes[..first]);
    let unread = fill(&mut near, &bytes[..LARGE]);
    assert_eq!(unread, LARGE);
    (near, far, unread)
}

#[tokio::test]
async fn whoever_wants_one_gets_it() {
    let shared = Arc::<Pair>::default();
    let mut idle = Vec::new();
    for _ in 0..4 {
        let (near, far, unread) = with_unread(&shared).await;
        idle.push((Reading::begin(near), far, unread));
    }
    // They fall asleep.
    tokio::task::yield_now().await;
    let (mut near, mut far) = pair().await;
    near.rings().large_out.share(shared.clone());
    let bytes = pattern(2 << 20);
    let first = fill(&mut near, &bytes);
    read(&mut far, first).await;
    tokio::task::yield_now().await;
    assert_eq!(shared.count(), (4, 0), "nothing of theirs is read");
    for (_, far, unread) in &mut idle {
        read(far, *unread).await;
    }
    tokio::task::yield_now().await;
    assert_eq!(shared.count(), (4, 0), "nobody wants any");
    let first = fill(&mut near, &bytes);
    assert!(first <= 64 << 10, "{first}");
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(shared.count(), (0, 4), "all of them come back");
    read(&mut far, first).await;
    // It is offered.
    let first = fill(&mut near, &bytes);
    read(&mut far, first).await;
    let second = fill(&mut near, &bytes);
    assert!(second >= LARGE, "{second}");
    assert_eq!(read(&mut far, second).await, bytes[..second]);
    for (near, mut far, _) in idle {
        let mut near = near.end().await;
        near.write_all(b"goes on").await.unwrap();
        assert_eq!(read(&mut far, 7).await, b"goes on");
    }
}

/// Looks after some time, while nothing is written.
async fn comes_back(shared: &Pair, far: Reading) {
    tokio::time::sleep(IDLE / 2).await;
    let (lent, free) = shared.count();
    assert_eq!(lent + free, 1, "it is kept for a while");
    for _ in 0..20 {
        tokio::time::sleep(IDLE / 10).await;
    }
    assert_eq!(shared.count(), (0, 0));
    let mut far = far.end().await;
    assert!(
        !far.rings().incoming.has_taken(1),
        "its reader has it still"
    );
}

#[tokio::test(start_paused = true)]
async fn its_memory_goes_back_though_nothing_is_said() {
    let shared = Arc::default();
    let (near, mut far, unread) = with_unread(&shared).await;
    let near = Reading::begin(near);
    tokio::task::yield_now().await;
    read(&mut far, unread).await;
    assert!(far.rings().incoming.has_taken(1));
    comes_back(&shared, Reading::begin(far)).await;
    drop(near);
}

#[tokio::test(start_paused = true)]
async fn its_memory_goes_back_while_its_writer_looks_for_something_else() {
    let shared = Arc::default();
    let (mut near, mut far, unread) = with_unread(&shared).await;
    near.set_hot(true);
    let near = tokio::spawn(async move {
        loop {
            look_for_bytes(&mut near);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    read(&mut far, unread).await;
    comes_back(&shared, Reading::begin(far)).await;
    near.abort();
}

/// A write that found no room was given up; what had found some is read.
#[tokio::test(start_paused = true)]
async fn its_memory_goes_back_though_a_write_has_been_given_up() {
    let shared = Arc::default();
    let (mut near, mut far, unread) = with_unread(&shared).await;
    let more = fill(&mut near, &pattern(LARGE));
    assert!(more < LARGE, "there is room");
    let near = Reading::begin(near);
    read(&mut far, unread + more).await;
    comes_back(&shared, Reading::begin(far)).await;
    drop(near);
}
