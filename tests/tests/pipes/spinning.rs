//! Waiting by looking: it spares wake-ups, and starves nobody.

use std::cell::Cell;

use super::*;

async fn round_trips(client: &Pipe, server: &Pipe, count: usize, done: impl Fn()) {
    let echo = async {
        for _ in 0..count {
            let message = server.read().await.unwrap();
            server.write(message).await.unwrap();
        }
    };
    let call = async {
        for _ in 0..count {
            client.write(Message::new("ping")).await.unwrap();
            client.read().await.unwrap();
            done();
        }
    };
    within("round trips", async { tokio::join!(echo, call) }).await;
}

/// Four ends and a bystander on one thread: whoever looks goes to the end of the queue in between.
#[tokio::test]
async fn two_busy_pipes_and_a_bystander_share_one_thread() {
    const ROUND_TRIPS: usize = 2000;
    let context = over_shm().build().unwrap();
    let (one, two) = (
        pair(&context, &context).await,
        pair(&context, &context).await,
    );
    assert_eq!(one.0.route().transport, "shm");
    let (turns, trips) = (Cell::new(0u64), [Cell::new(0u64), Cell::new(0u64)]);
    let least = Cell::new(u64::MAX);
    let bystander = async {
        loop {
            turns.set(turns.get() + 1);
            tokio::task::yield_now().await;
        }
    };
    let count = |i: usize| {
        let trips = &trips;
        let least = &least;
        move || {
            trips[i].set(trips[i].get() + 1);
            if trips[i].get() == ROUND_TRIPS as u64 {
                least.set(least.get().min(trips[1 - i].get()));
            }
        }
    };
    tokio::select! {
        () = bystander => {}
        _ = async { tokio::join!(
            round_trips(&one.0, &one.1, ROUND_TRIPS, count(0)),
            round_trips(&two.0, &two.1, ROUND_TRIPS, count(1)),
        ) } => {}
    }
    assert!(
        least.get() >= ROUND_TRIPS as u64 / 4,
        "when one had {ROUND_TRIPS} round trips the other had {}",
        least.get()
    );
    assert!(
        turns.get() >= ROUND_TRIPS as u64,
        "the bystander had {} turns",
        turns.get()
    );
}

/// Timers run while a pipe waits for an answer that takes its time.
#[tokio::test]
async fn a_timer_is_not_late_because_somebody_waits() {
    let context = over_shm().build().unwrap();
    let (client, server) = pair(&context, &context).await;
    for _ in 0..20 {
        round_trips(&client, &server, 50, || ()).await;
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
        within("an answer behind a timer", async {
            tokio::join!(timer, answer)
        })
        .await;
    }
}

/// No system call: neither end has to be woken. Where the machine is busy a look can be in vain, and a pipe remembers that for
/// a while: so one quiet batch on one of many pipes is enough.
#[tokio::test]
async fn a_hot_round_trip_wakes_nobody() {
    if std::env::var_os("TENSORPIPE_TEST_SANITIZED").is_some() {
        println!("skipped: instrumented code takes longer than a look lasts");
        return;
    }
    let context = over_shm().build().unwrap();
    let mut fewest = u64::MAX;
    for _ in 0..20 {
        let (client, server) = pair(&context, &context).await;
        let wakes = || client.stats().wakes + server.stats().wakes;
        for _ in 0..20 {
            let before = wakes();
            round_trips(&client, &server, 20, || ()).await;
            fewest = fewest.min(wakes() - before);
            if fewest == 0 {
                return;
            }
        }
    }
    panic!("20 round trips took {fewest} wake-ups at least");
}

/// Whoever sleeps is woken, however long it slept.
#[tokio::test]
async fn a_sleeper_is_woken() {
    let context = over_shm().build().unwrap();
    let (client, server) = pair(&context, &context).await;
    for pause in [0, 1, 5, 120, 1, 0] {
        tokio::time::sleep(Duration::from_millis(pause)).await;
        round_trips(&client, &server, 2, || ()).await;
    }
    let before = client.stats().wakes;
    let read = tokio::spawn({
        let server = server.clone();
        async move { server.read().await }
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    client.write(Message::new("good morning")).await.unwrap();
    within("the message", read).await.unwrap().unwrap();
    assert_eq!(client.stats().wakes, before + 1);
}
