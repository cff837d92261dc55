//! Tests that need a second process: one that is stopped, one that is killed, one without file descriptors.
//!
//! A child is this test binary again, running one of the tests that are ignored otherwise.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tensorpipe::{Error, PeerAddr};

use super::*;

/// Ends with its owner.
struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    url: String,
}

impl Process {
    /// Runs the ignored test `name`, which prints a line `url: URL` first.
    fn start(name: &str) -> Self {
        Self::start_with(name, "")
    }

    /// `over`: what the child is to use.
    fn start_with(name: &str, over: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", name])
            .env("TEST_OVER", over)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let url = out.lines().find_map(|line| {
            let line = line.unwrap();
            // The harness prints the name of the test before it.
            line.split_once("url: ").map(|(_, url)| url.to_owned())
        });
        Self {
            stdin: child.stdin.take(),
            child,
            url: url.expect("the child prints its URL"),
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
#[ignore = "a child process of the tests here: echoes every message until its standard input ends"]
async fn child_echo() {
    let context = Context::builder().name("child").build().unwrap();
    let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    println!("url: {}", listener.url());
    std::io::stdout().flush().unwrap();
    std::thread::spawn(|| {
        // The parent is gone, however it ended.
        let _ = std::io::stdin().lines().count();
        std::process::exit(0);
    });
    loop {
        let pipe = listener.accept().await.unwrap();
        tokio::spawn(async move {
            while let Ok(message) = pipe.read().await {
                drop(pipe.write(message));
            }
        });
    }
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
    let child = Process::start("processes::child_echo");
    let uid = nix::unistd::Uid::current().as_raw();
    let pid = Some(child.child.id());
    let address = child.url.strip_prefix("tcp://").unwrap().parse().unwrap();
    for (context, peer) in [
        (Context::new(), PeerAddr::Process { pid, uid }),
        (over_tcp().build().unwrap(), PeerAddr::Socket(address)),
    ] {
        let pipe = context.connect(&child.url).await.unwrap();
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
    let child = Process::start("processes::child_echo");
    let pipe = Context::new().connect(&child.url).await.unwrap();
    for (i, len) in [0, 10, 70_000, 5 << 20].into_iter().enumerate() {
        round_trip(&pipe, i as u64, len).await;
    }
    let route = pipe.route().to_string();
    let here = std::process::id();
    let upgraded = format!(
        "transport shm (process {here} <-> process {}), upgraded from tcp",
        child.child.id()
    );
    assert!(route.starts_with(&upgraded), "{route}");
    let peer = format!("\n  peer process {} of uid ", child.child.id());
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
async fn over_tcp_alone_the_route_says_why_too() {
    let child = Process::start("processes::child_echo");
    let tcp: Arc<dyn Transport> = Arc::new(TcpTransport::new());
    let context = Context::builder().transports([tcp]).build().unwrap();
    let pipe = context.connect(&child.url).await.unwrap();
    for (i, len) in [0, 10, 70_000, 5 << 20].into_iter().enumerate() {
        round_trip(&pipe, i as u64, len).await;
    }
    let route = pipe.route().to_string();
    assert!(route.starts_with("transport tcp (127.0.0.1:"), "{route}");
    assert!(
        route.contains("not transport shm: the connecting side does not have it"),
        "{route}"
    );
}

#[tokio::test]
async fn a_stopped_peer_is_silent_and_one_that_comes_back_in_time_is_not() {
    let child = Process::start("processes::child_echo");
    let timeouts = timeouts(|timeouts| timeouts.silence = Some(Duration::from_millis(1200)));
    let context = over_tcp().timeouts(timeouts).build().unwrap();
    let pipe = context.connect(&child.url).await.unwrap();
    round_trip(&pipe, 1, 100_000).await;
    child.signal(Signal::SIGSTOP);
    pause(400).await;
    child.signal(Signal::SIGCONT);
    pause(1500).await;
    round_trip(&pipe, 2, 100_000).await;
    child.signal(Signal::SIGSTOP);
    let begun = std::time::Instant::now();
    let error = soon("the silence", pipe.read()).await.unwrap_err();
    child.signal(Signal::SIGCONT);
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
    let child = Process::start("processes::child_echo");
    let context = over_tcp().build().unwrap();
    let pipe = context.connect(&child.url).await.unwrap();
    round_trip(&pipe, 1, 1 << 20).await;
    child.signal(Signal::SIGSTOP);
    let write = pipe.write(message(2, 64 << 20));
    let flush = pipe.flush();
    let read = tokio::spawn({
        let pipe = pipe.clone();
        async move { pipe.read().await }
    });
    pause(50).await;
    child.signal(Signal::SIGKILL);
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
    eventually("memory back", || {
        context.pool().stats().outstanding_bytes == 0
    })
    .await;
}

#[tokio::test]
#[ignore = "a child process of `what_a_process_wrote_before_it_ended_is_there`"]
async fn child_last_words() {
    let context = if std::env::var("TEST_OVER").as_deref() == Ok("shm") {
        Context::new()
    } else {
        over_tcp().build().unwrap()
    };
    let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    println!("url: {}", listener.url());
    std::io::stdout().flush().unwrap();
    let pipe = listener.accept().await.unwrap();
    for number in 0..100 {
        pipe.send(message(number, 30_000)).unwrap();
    }
    pipe.close().await.unwrap();
    // At once: nothing of the pipe is let go of in good order any more.
    std::process::exit(0);
}

/// C++ loses the last message over shared memory: the end of the socket overtakes the bytes in the ring.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_process_wrote_before_it_ended_is_there() {
    for over in ["tcp", "shm"] {
        for _ in 0..10 {
            let mut child = Process::start_with("processes::child_last_words", over);
            let pipe = Context::new().connect(&child.url).await.unwrap();
            assert_eq!(pipe.route().transport, over);
            let status = tokio::task::spawn_blocking(move || child.child.wait());
            assert!(soon("its end", status).await.unwrap().unwrap().success());
            for number in 0..100 {
                check(&soon("a read", pipe.read()).await.unwrap(), number, 30_000);
            }
            let end = soon("the end", pipe.read()).await.unwrap_err();
            assert!(
                matches!(end, Error::Closed { by_peer: true, .. }),
                "over {over}: {end:?}"
            );
        }
    }
}

#[tokio::test]
#[ignore = "a child process of `without_file_descriptors_one_pipe_fails_not_the_process`: lowers its own limit"]
async fn child_without_descriptors() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 64, hard).unwrap();
    let context = over_tcp().build().unwrap();
    let (client, server) = pair(&context, &context).await;
    let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let url = listener.url().to_string();
    let mut eaten = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        eaten.push(file);
    }
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
    println!("url: survived");
}

#[test]
fn without_file_descriptors_one_pipe_fails_not_the_process() {
    let child = Process::start("processes::child_without_descriptors");
    assert_eq!(child.url, "survived");
}

#[tokio::test]
#[ignore = "a child process of `without_file_descriptors_for_shared_memory_a_pipe_stays_on_tcp`: lowers its own limit"]
async fn child_without_descriptors_for_shm() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 64, hard).unwrap();
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
        let mut eaten = Vec::new();
        while let Ok(file) = std::fs::File::open("/dev/null") {
            eaten.push(file);
        }
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
    println!("url: survived");
}

#[test]
fn without_file_descriptors_for_shared_memory_a_pipe_stays_on_tcp() {
    let child = Process::start("processes::child_without_descriptors_for_shm");
    assert_eq!(child.url, "survived");
}
