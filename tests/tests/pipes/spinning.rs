//! Busy-polling: it saves wake-ups and starves no other task.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context as TaskContext, Poll};

use tensorpipe::transports::Connection;
use tensorpipe_tests::{Over, is_sanitized};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::*;

/// Counts looks at it.
struct CountedConnection(Box<dyn Connection>, Arc<AtomicU64>);

impl Connection for CountedConnection {
    fn endpoints(&self) -> String {
        self.0.endpoints()
    }
    fn wakes(&self) -> u64 {
        self.0.wakes()
    }
    fn can_poll(&self) -> bool {
        true
    }
    fn set_polled(&mut self, polled: bool) {
        self.0.set_polled(polled);
    }
    fn is_ready(&mut self) -> bool {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.is_ready()
    }
    fn is_ready_for(&mut self, bytes: usize) -> bool {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.is_ready_for(bytes)
    }
}

impl AsyncRead for CountedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for CountedConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(cx, bytes)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write_vectored(cx, bytes)
    }
    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_shutdown(cx)
    }
}

/// To the end of the queue. Tokio's own `yield_now` waits until the runtime has looked at its sockets, too, some sixty turns.
async fn next_turn() {
    let mut is_over = false;
    std::future::poll_fn(|cx| match std::mem::replace(&mut is_over, true) {
        true => Poll::Ready(()),
        false => {
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await;
}

/// Looks at one connection between two turns of a bystander, at most. Some are for each of the tasks that may look at it (its
/// reader or writer, and the pipe's own). A loop of 50 µs is some hundreds.
const LOOKS_BETWEEN_TURNS: u64 = 64;

/// Two busy pipes and a bystander, five tasks on one thread: whoever looks goes to the end of the queue in between. Counted in
/// looks, since a clock would only tell how busy the machine is.
#[tokio::test]
async fn two_busy_pipes_and_a_bystander_share_one_thread() {
    const ROUND_TRIPS: u64 = 2000;
    let mut pipes = Vec::new();
    for i in 0..2 {
        let looks = Arc::new(AtomicU64::new(0));
        let counted = looks.clone();
        // The listener's ends are not counted: each pipe has one of either kind.
        let shm = Over::new("shm", ShmTransport::new())
            .connecting(move |inner| Box::new(CountedConnection(inner, counted.clone())));
        let shm: Arc<dyn Transport> = Arc::new(shm);
        let context = over_tcp().transports([shm]).build().unwrap();
        let name = format!("shm://shared thread {i} {}", std::process::id());
        let listener = context.listen([name]).await.unwrap();
        let url = listener.url().to_string();
        let (client, server) = tokio::join!(context.connect(&url), listener.accept());
        pipes.push((client.unwrap(), server.unwrap(), looks));
    }
    let trips = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let most = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let bystander = tokio::spawn({
        let (most, trips) = (most.clone(), trips.clone());
        let looks = [pipes[0].2.clone(), pipes[1].2.clone()];
        async move {
            let mut turns = 0;
            // What was looked at before its first turn.
            looks
                .iter()
                .for_each(|looks| looks.store(0, Ordering::Relaxed));
            loop {
                for (looks, most) in looks.iter().zip(&*most) {
                    most.fetch_max(looks.swap(0, Ordering::Relaxed), Ordering::Relaxed);
                }
                turns += 1;
                let done = [0, 1].map(|i: usize| trips[i].load(Ordering::Relaxed));
                if done == [ROUND_TRIPS; 2] {
                    return turns;
                }
                next_turn().await;
            }
        }
    });
    for (i, (client, server, _)) in pipes.into_iter().enumerate() {
        tokio::spawn(async move {
            while let Ok(message) = server.read().await {
                server.write(message).await.unwrap();
            }
        });
        let trips = trips.clone();
        tokio::spawn(async move {
            for _ in 0..ROUND_TRIPS {
                client.write(Message::new("ping")).await.unwrap();
                client.read().await.unwrap();
                trips[i].fetch_add(1, Ordering::Relaxed);
            }
            // It stays until the other one is through, and does not look.
            std::future::pending::<()>().await;
            drop(client);
        });
    }
    // Both get through. Not at one speed: where the machine is busy one may be asleep, and is woken by the runtime's look at sockets,
    // which comes after some sixty turns.
    let turns = soon("round trips", bystander).await.unwrap();
    let most = [0, 1].map(|i: usize| most[i].load(Ordering::Relaxed));
    println!("{turns} turns, at most {most:?} looks between two of them");
    assert!(turns >= ROUND_TRIPS, "the bystander had {turns} turns");
    // Instrumented code takes longer than a look lasts: there looking does not pay. Nor need it for the one that is asleep.
    let is_slow = is_sanitized();
    assert!(
        is_slow || most.iter().any(|most| *most > 0),
        "nobody looked"
    );
    assert!(
        most.iter().all(|most| *most <= LOOKS_BETWEEN_TURNS),
        "{most:?} looks without a turn for others"
    );
}

/// Timers run while a pipe waits for an answer that takes its time.
#[tokio::test]
async fn a_timer_is_not_late_because_somebody_waits() {
    let context = over_shm().build().unwrap();
    let (client, server) = pair(&context, &context).await;
    for _ in 0..20 {
        round_trips(&client, &server, 50).await;
        let slept = Cell::new(false);
        let timer = async {
            tokio::time::sleep(Duration::from_millis(2)).await;
            slept.set(true);
        };
        let answer = async {
            let read = client.read();
            tokio::pin!(read);
            // Nothing comes before the timer has ended.
            tokio::select! {
                _ = &mut read => unreachable!(),
                () = async { while !slept.get() { tokio::task::yield_now().await } } => {}
            }
            server.write(Message::new("late")).await.unwrap();
            read.await.unwrap();
        };
        soon("an answer behind a timer", async {
            tokio::join!(timer, answer)
        })
        .await;
    }
}

/// No system call: neither end has to be woken. Where the machine is busy a look can be in vain, and a pipe remembers that for
/// a while: half of the batches may meet that.
#[tokio::test]
async fn a_round_trip_while_both_poll_wakes_nobody() {
    if is_sanitized() {
        println!("skipped: instrumented code takes longer than a look lasts");
        return;
    }
    let context = over_shm().build().unwrap();
    let mut woken = Vec::new();
    for _ in 0..5 {
        let (client, server) = pair(&context, &context).await;
        let wakes = || client.stats().wakes + server.stats().wakes;
        for _ in 0..20 {
            let before = wakes();
            round_trips(&client, &server, 20).await;
            woken.push(wakes() - before);
        }
    }
    let quiet = woken.iter().filter(|wakes| **wakes == 0).count();
    assert!(2 * quiet >= woken.len(), "{woken:?}");
}

/// Whoever sleeps is woken, however long it slept.
#[tokio::test]
async fn a_sleeper_is_woken() {
    let context = over_shm().build().unwrap();
    let (client, server) = pair(&context, &context).await;
    for pause in [0, 1, 5, 120, 1, 0] {
        tokio::time::sleep(Duration::from_millis(pause)).await;
        round_trips(&client, &server, 2).await;
    }
    let before = client.stats().wakes;
    let read = tokio::spawn({
        let server = server.clone();
        async move { server.read().await }
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    client.write(Message::new("good morning")).await.unwrap();
    soon("the message", read).await.unwrap().unwrap();
    assert_eq!(client.stats().wakes, before + 1);
}
