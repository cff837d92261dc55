//! Tests that need a second process: one that is stopped, one that is killed, one without file descriptors.

use std::fs::File;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tensorpipe::{Error, PeerAddr};
use tensorpipe_tests::{Child, End, say};

use super::*;

/// The child echoes every message.
pub(crate) fn play_echo() {
    current_thread().block_on(async {
        let context = Context::builder().name("child").build().unwrap();
        let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        say("url", listener.url());
        loop {
            let pipe = listener.accept().await.unwrap();
            tokio::spawn(async move {
                while let Ok(message) = pipe.read().await {
                    drop(pipe.write(message));
                }
            });
        }
    });
}

/// A child that echoes, and its URL.
fn echo() -> (Child, String) {
    let child = Child::start("echo", &[]);
    let url = child.hear("url");
    (child, url)
}

async fn round_trip(pipe: &Pipe, number: u64, len: usize) {
    let (written, read) = soon("a round trip", async {
        tokio::join!(pipe.write(message(number, len)), pipe.read())
    })
    .await;
    written.unwrap();
    check(&read.unwrap(), number, len);
}

#[tokio::test]
async fn an_end_that_writes_no_more_still_reads_and_knows_its_peer() {
    let (child, url) = echo();
    let uid = nix::unistd::Uid::current().as_raw();
    let pid = Some(child.id());
    let address = url.strip_prefix("tcp://").unwrap().parse().unwrap();
    for (context, peer) in [
        (Context::new(), PeerAddr::Process { pid, uid }),
        (over_tcp().build().unwrap(), PeerAddr::Socket(address)),
    ] {
        let pipe = context.connect(&url).await.unwrap();
        for (number, len) in [(0, 0), (1, 5 << 20), (2, 10)] {
            pipe.send(message(number, len)).unwrap();
        }
        pipe.finish();
        let late = pipe.send(message(3, 0)).unwrap_err();
        assert!(
            matches!(late, Error::Closed { by_peer: false, .. }),
            "{late}"
        );
        for (number, len) in [(0, 0), (1, 5 << 20), (2, 10)] {
            let echo = soon("an echo", pipe.read()).await.unwrap();
            check(&echo, number, len);
        }
        // It is certain by now whether the pipe was upgraded.
        assert_eq!(pipe.peer_addr(), peer);
        // The child saw the end, and closed.
        let end = soon("the end", pipe.read()).await.unwrap_err();
        assert!(matches!(end, Error::Closed { by_peer: true, .. }), "{end}");
    }
}

#[tokio::test]
async fn between_processes_the_route_says_why() {
    let (child, url) = echo();
    let pipe = Context::new().connect(&url).await.unwrap();
    for (i, len) in [0, 10, 70_000, 5 << 20].into_iter().enumerate() {
        round_trip(&pipe, i as u64, len).await;
    }
    let route = pipe.route().to_string();
    let here = std::process::id();
    let upgraded = format!(
        "transport shm (process {here} <-> process {}), upgraded from tcp",
        child.id()
    );
    assert!(route.starts_with(&upgraded), "{route}");
    let peer = format!("\n  peer process {} of uid ", child.id());
    assert!(route.contains(&peer), "{route}");
    assert!(
        route.contains("; no token or certificate is required\n"),
        "{route}"
    );
    assert!(
        route.contains("not transport tcp: shm is preferred"),
        "{route}"
    );
    assert!(
        route.contains("not transport memory: the peer is another process"),
        "{route}"
    );
    assert!(route.contains("channel basic: cpu:0 <-> cpu:0"), "{route}");
    assert!(
        route.contains("not channel xth: cpu:0 to cpu:0: the peer is another process"),
        "{route}"
    );
}

#[tokio::test]
async fn a_stopped_peer_is_silent_and_one_that_comes_back_in_time_is_not() {
    let (child, url) = echo();
    let timeouts = timeouts(|timeouts| timeouts.silence = Some(Duration::from_millis(1200)));
    let context = over_tcp().timeouts(timeouts).build().unwrap();
    let pipe = context.connect(&url).await.unwrap();
    round_trip(&pipe, 1, 100_000).await;
    child.suspend();
    pause(400).await;
    child.resume();
    pause(1500).await;
    round_trip(&pipe, 2, 100_000).await;
    child.suspend();
    let begun = std::time::Instant::now();
    let error = soon("the silence", pipe.read()).await.unwrap_err();
    child.resume();
    assert!(matches!(error, Error::Silent { .. }), "{error}");
    assert!(error.to_string().contains("Timeouts::silence"), "{error}");
    let took = begun.elapsed();
    assert!(
        took > Duration::from_millis(600) && took < Duration::from_secs(4),
        "{took:?}"
    );
}

#[tokio::test]
async fn a_killed_peer_is_lost_on_every_operation() {
    let (mut child, url) = echo();
    let context = over_tcp().build().unwrap();
    let pipe = context.connect(&url).await.unwrap();
    round_trip(&pipe, 1, 1 << 20).await;
    child.suspend();
    let write = pipe.write(message(2, 64 << 20));
    let flush = pipe.flush();
    let read = tokio::spawn({
        let pipe = pipe.clone();
        async move { pipe.read().await }
    });
    pause(50).await;
    child.kill();
    let lost = |error: Error| assert!(matches!(error, Error::Lost { .. }), "{error}");
    lost(soon("the write", write).await.unwrap_err());
    lost(soon("the flush", flush).await.unwrap_err());
    lost(soon("the read", read).await.unwrap().unwrap_err());
    lost(
        soon("a later write", pipe.write(message(3, 10)))
            .await
            .unwrap_err(),
    );
    lost(pipe.send(message(4, 10)).unwrap_err());
    lost(soon("the end", pipe.ended()).await);
    memory_is_back(&context).await;
}

pub(crate) fn play_last_words() {
    current_thread().block_on(async {
        let context = match std::env::var("TEST_OVER").as_deref() {
            Ok("shm") => Context::new(),
            _ => over_tcp().build().unwrap(),
        };
        let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        say("url", listener.url());
        let pipe = listener.accept().await.unwrap();
        for number in 0..100 {
            pipe.send(message(number, 15_000)).unwrap();
        }
        pipe.close().await.unwrap();
        // At once: nothing of the pipe is let go of in good order any more.
        std::process::exit(0);
    });
}

/// C++ loses the last message over shared memory: the end of the socket overtakes the bytes in the ring.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_process_wrote_before_it_ended_is_there() {
    for over in ["tcp", "shm"] {
        for _ in 0..10 {
            let mut child = Child::start("last words", &[("TEST_OVER", over)]);
            let pipe = Context::new().connect(child.hear("url")).await.unwrap();
            assert_eq!(pipe.route().transport, over);
            let ends = move || child.until_end(Duration::from_secs(20)).1;
            let ended = tokio::task::spawn_blocking(ends).await.unwrap();
            assert_eq!(ended, End::Code(0));
            for number in 0..100 {
                comes(&pipe, number, 15_000).await;
            }
            let end = soon("the end", pipe.read()).await.unwrap_err();
            assert!(
                matches!(end, Error::Closed { by_peer: true, .. }),
                "over {over}: {end:?}"
            );
        }
    }
}

/// This process may have few from now on.
fn few_descriptors() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 64, hard).unwrap();
}

/// All that are left.
fn eat_descriptors() -> Vec<File> {
    let open = || File::open("/dev/null").ok();
    std::iter::from_fn(open).collect()
}

pub(crate) fn play_without_descriptors() {
    current_thread().block_on(async {
        few_descriptors();
        let context = over_tcp().build().unwrap();
        let (client, server) = pair(&context, &context).await;
        let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        let url = listener.url().to_string();
        let mut eaten = eat_descriptors();
        // Nothing can be connected, and the error says what to do.
        let error = context
            .connect_with(&url, &ConnectPolicy::once())
            .await
            .unwrap_err();
        assert!(error.to_string().contains("ulimit -n"), "{error}");
        // One descriptor for the connector, none for the listener: it cannot accept, and does not spin or die.
        eaten.pop();
        let waiting = tokio::spawn({
            let (context, url) = (context.clone(), url.clone());
            async move { context.connect(&url).await }
        });
        pause(300).await;
        assert!(!waiting.is_finished());
        for number in 0..20 {
            exchange(&client, &server, number, 100_000).await;
            exchange(&server, &client, number, 10).await;
        }
        let (wakes, busy) = idle::use_of(Duration::from_millis(500)).await;
        // It tries again some fifty times a second.
        assert!(wakes <= 100, "{wakes} wake-ups");
        assert!(busy < Duration::from_millis(50), "{busy:?} of CPU time");
        drop(eaten);
        let server = soon("accept", listener.accept()).await.unwrap();
        let client = soon("connect", waiting).await.unwrap().unwrap();
        exchange(&client, &server, 1, 100_000).await;
        say("survived", "");
    });
}

#[test]
fn without_file_descriptors_one_pipe_fails_not_the_process() {
    Child::start("without descriptors", &[]).hear("survived");
}

pub(crate) fn play_without_descriptors_for_shm() {
    current_thread().block_on(async {
        few_descriptors();
        let context = over_shm().build().unwrap();
        let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        let url = listener.url().to_string();
        // Two are for tcp; what is missing then: a socket, the memory, a descriptor to receive it.
        let before = tensorpipe_tests::descriptors();
        for free in 2..=4 {
            // Pipes are let go of in the background.
            eventually("descriptors back", || {
                tensorpipe_tests::descriptors() == before
            })
            .await;
            let mut eaten = eat_descriptors();
            eaten.truncate(eaten.len() - free);
            let (client, server) = soon("a pipe", async {
                tokio::join!(context.connect(&url), listener.accept())
            })
            .await;
            let (client, server) = (client.unwrap(), server.unwrap());
            exchange(&client, &server, 1, 100_000).await;
            exchange(&server, &client, 2, 100_000).await;
            let route = client.route();
            assert_eq!(route.transport, "tcp", "{free} are free: {route}");
            let refused = &route.refused[0];
            assert_eq!(refused.candidate, "transport shm", "{route}");
            assert!(free == 4 || refused.reason.contains("ulimit -n"), "{route}");
            drop((client, server, eaten));
        }
        let (client, _server) = pair(&context, &context).await;
        assert_eq!(client.route().transport, "shm");
        say("survived", "");
    });
}

#[test]
fn without_file_descriptors_for_shared_memory_a_pipe_stays_on_tcp() {
    Child::start("without descriptors for shm", &[]).hear("survived");
}
