//! How a server ends, and what its callers learn.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use tensorpipe::{Pipe, Timeouts};
use tensorpipe_rpc::{CallError, Server, ServerLimits};

use super::lab::{
    Bench, Both, LabClient, LabService, MIB, both, over_each, over_each_with, tcp, tensor, until,
};
use super::raw::{CALL, raw_call, take_bind};

#[tokio::test]
async fn running_calls_finish_and_new_ones_did_not_run() {
    over_each(async |both| {
        let running = both.client.hold();
        until(|| both.at_it() == 1).await;
        let begun = both.begun();
        let Both {
            client,
            server,
            bench,
            near,
            ..
        } = both;
        let url = server.url().to_string();
        let shutdown = tokio::spawn(server.shutdown());
        tokio::time::sleep(Duration::from_millis(30)).await;
        for _ in 0..3 {
            for error in [
                client.echo("late").await.unwrap_err(),
                client.length(tensor(1 << 20, 1)).await.unwrap_err(),
            ] {
                assert!(matches!(error, CallError::ShuttingDown), "{error}");
                assert!(!error.may_have_run());
            }
        }
        bench.go_on.notify_one();
        running.await.unwrap();
        assert_eq!(shutdown.await.unwrap(), 0);
        let error = client.echo("gone").await.unwrap_err();
        assert!(!error.may_have_run(), "{error}");
        assert_eq!(bench.begun.load(std::sync::atomic::Ordering::SeqCst), begun);
        assert_eq!(client.connection().calls_in_flight(), 0);
        drop((near, url));
    })
    .await;
}

#[tokio::test]
async fn calls_that_race_with_a_shutdown_run_or_say_that_they_did_not() {
    over_each(async |both| {
        let Both {
            client,
            server,
            bench,
            ..
        } = both;
        client.echo("hot").await.unwrap();
        let calls: Vec<_> = (0..500).map(|i| client.echo(i.to_string())).collect();
        let shutdown = tokio::spawn(server.shutdown());
        let mut ran = 1;
        for (i, call) in calls.into_iter().enumerate() {
            match call.await {
                Ok(text) => {
                    assert_eq!(text, i.to_string());
                    ran += 1;
                }
                Err(error) => assert!(!error.may_have_run(), "{error}"),
            }
        }
        assert_eq!(shutdown.await.unwrap(), 0);
        assert_eq!(bench.begun.load(std::sync::atomic::Ordering::SeqCst), ran);
    })
    .await;
}

#[tokio::test]
async fn a_shutdown_waits_for_so_long_only() {
    let mut limits = ServerLimits::default();
    limits.drain = Duration::from_millis(100);
    over_each_with(limits, async |both| {
        let running = [both.client.sleep(60_000), both.client.sleep(60_000)];
        until(|| both.at_it() == 2).await;
        let Both { server, bench, .. } = both;
        let begun = Instant::now();
        let (given_up, first) = tokio::join!(server.shutdown(), async {
            let [first, second] = running;
            (first.await.unwrap_err(), second.await.unwrap_err())
        });
        assert_eq!(given_up, 2);
        assert!(
            begun.elapsed() < Duration::from_secs(3),
            "{:?}",
            begun.elapsed()
        );
        assert!(first.0.may_have_run() && first.1.may_have_run());
        assert!(
            matches!(first.0, CallError::Connection { .. }),
            "{}",
            first.0
        );
        until(|| bench.at_it.load(std::sync::atomic::Ordering::SeqCst) == 0).await;
    })
    .await;
}

/// One that is dropped, and one whose shutdown nobody waits for to the end.
#[tokio::test]
async fn a_server_that_goes_lets_its_calls_end_and_takes_no_more() {
    for is_dropped in [true, false] {
        over_each(async |both| {
            let running = both.client.hold();
            until(|| both.at_it() == 1).await;
            let Both {
                client,
                server,
                bench,
                ..
            } = both;
            if is_dropped {
                drop(server);
                tokio::time::sleep(Duration::from_millis(20)).await;
            } else {
                let shutdown = server.shutdown();
                let waited = tokio::time::timeout(Duration::from_millis(20), shutdown).await;
                assert!(waited.is_err(), "it waits for the call");
            }
            let error = client.echo("late").await.unwrap_err();
            assert!(!error.may_have_run(), "{error}");
            bench.go_on.notify_one();
            running.await.unwrap();
            client.connection().pipe().ended().await;
        })
        .await;
    }
}

#[tokio::test]
async fn an_abrupt_end_leaves_open_whether_a_call_ran() {
    // The server on a runtime that is torn down: its sockets close without a word.
    let (tell, told) = mpsc::channel();
    let (stop, stopped) = mpsc::channel::<()>();
    let server = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let bench = Bench::default();
        let server = runtime.block_on(
            Server::builder()
                .context(&tcp().build().unwrap())
                .service(LabService::new(bench.clone()))
                .listen("tcp://127.0.0.1:0"),
        );
        let server = server.unwrap();
        tell.send((server.url().to_string(), bench)).unwrap();
        let _ = stopped.recv();
        runtime.shutdown_timeout(Duration::from_secs(1));
        drop(server);
    });
    let (url, bench) = told.recv().unwrap();
    let context = tcp().build().unwrap();
    let client = LabClient::connect_with(&context, url).await.unwrap();
    let running = [client.sleep(60_000), client.sleep(60_001)];
    until(|| bench.at_it.load(std::sync::atomic::Ordering::SeqCst) >= 1).await;
    drop(stop);
    for call in running {
        let error = tokio::time::timeout(Duration::from_secs(12), call)
            .await
            .unwrap()
            .unwrap_err();
        assert!(error.may_have_run(), "{error}");
        assert!(matches!(error, CallError::Connection { .. }), "{error}");
    }
    let error = client.echo("gone").await.unwrap_err();
    assert!(!error.may_have_run(), "{error}");
    tokio::task::spawn_blocking(move || server.join().unwrap())
        .await
        .unwrap();
    until(|| bench.at_it.load(std::sync::atomic::Ordering::SeqCst) == 0).await;
}

/// A server whose reply of 1 MiB waits for its reader, who takes his time.
async fn reply_under_way(drain: Duration) -> (Both, Pipe) {
    let mut limits = ServerLimits::default();
    limits.drain = drain;
    let mut timeouts = Timeouts::default();
    timeouts.linger = Duration::from_millis(20);
    let both = both(tcp(), tcp().timeouts(timeouts), limits).await;
    let url = both.server.url().to_string();
    let pipe = both.near.connect(url).await.unwrap();
    pipe.send(raw_call("zeros", 7, &MIB)).unwrap();
    let waits = |both: &Both| both.server.pipes().iter().any(|pipe| pipe.unwritten() > 0);
    until(|| both.server.calls_in_flight() == 0 && waits(&both)).await;
    (both, pipe)
}

const READS_AFTER: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_reply_under_way_has_the_time_of_the_drain() {
    let (both, pipe) = reply_under_way(Duration::from_secs(30)).await;
    let shutdown = tokio::spawn(both.server.shutdown());
    tokio::time::sleep(READS_AFTER).await;
    let reply = pipe.read().await.unwrap();
    assert_eq!(reply.tensors[0].tensor.byte_len(), 1 << 20);
    let given_up = tokio::time::timeout(Duration::from_secs(10), shutdown).await;
    assert_eq!(given_up.unwrap().unwrap(), 0);
}

#[tokio::test]
async fn a_reply_under_way_has_the_time_of_the_drain_of_a_dropped_server_too() {
    let (both, pipe) = reply_under_way(Duration::from_secs(30)).await;
    drop(both.server);
    tokio::time::sleep(READS_AFTER).await;
    let reply = pipe.read().await.unwrap();
    assert_eq!(reply.tensors[0].tensor.byte_len(), 1 << 20);
    pipe.ended().await;
}

#[tokio::test]
async fn a_reply_that_nobody_reads_has_no_more_than_that() {
    let (both, pipe) = reply_under_way(Duration::from_millis(100)).await;
    let shutdown = both.server.shutdown();
    let given_up = tokio::time::timeout(Duration::from_secs(10), shutdown).await;
    assert_eq!(given_up.expect("bounded by the drain"), 0);
    let ended = tokio::time::timeout(Duration::from_secs(10), pipe.ended()).await;
    ended.expect("its connection is gone");
}

/// Its tensors are still arriving when the server is dropped: it was admitted, it ends.
#[tokio::test]
async fn a_dropped_server_waits_for_calls_whose_tensors_are_on_their_way() {
    let both = both(tcp(), tcp(), ServerLimits::default()).await;
    let upload = both.client.length(tensor(256 << 20, 1));
    until(|| both.server.calls_in_flight() == 1).await;
    let Both { server, bench, .. } = both;
    drop(server);
    let begun = bench.begun.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(begun, 0, "it was to be under way still");
    assert_eq!(upload.await.unwrap(), 256 << 20);
}

/// On one thread: nothing else runs between the one server's end and the other's beginning.
#[tokio::test]
async fn where_a_server_listened_another_can_listen_as_soon_as_it_has_stopped() {
    let context = tcp().build().unwrap();
    let listen = async |url: &str| {
        let server = Server::builder().context(&context);
        let server = server.service(LabService::new(Bench::default()));
        server.listen(url).await.unwrap()
    };
    let mut server = listen("tcp://127.0.0.1:0").await;
    let url = server.url().to_string();
    for round in 0..6 {
        if round >= 2 {
            let client = LabClient::connect_with(&context, &url).await.unwrap();
            assert_eq!(client.echo("there").await.unwrap(), "there");
        }
        match round % 2 {
            0 => assert_eq!(server.shutdown().await, 0),
            _ => drop(server),
        }
        server = listen(&url).await;
    }
}

/// Its process ends before it has read the call.
#[test]
fn a_call_behind_a_goodbye_has_not_run_whatever_becomes_of_its_server() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let ((tell, told), (go, gone)) = (mpsc::channel(), mpsc::channel());
    let server = std::thread::spawn(move || {
        runtime().block_on(async {
            let context = tcp().build().unwrap();
            let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
            tell.send(listener.url().to_string()).unwrap();
            let pipe = listener.accept().await.unwrap();
            take_bind(&pipe).await;
            let bound = pipe.read().await.unwrap();
            assert_eq!(bound.metadata[0], CALL);
            pipe.go_away("enough");
            tell.send(String::new()).unwrap();
            // It reads no more.
            gone.recv().unwrap();
            pipe
        })
    });
    runtime().block_on(async {
        let client = LabClient::connect(told.recv().unwrap()).await.unwrap();
        let seen = client.echo("seen");
        // Nor does this one, until the other is gone.
        told.recv().unwrap();
        let unseen = client.echo("unseen");
        go.send(()).unwrap();
        drop(server.join().unwrap());
        let error = unseen.await.unwrap_err();
        assert!(matches!(error, CallError::ShuttingDown), "{error:?}");
        let error = seen.await.unwrap_err();
        assert!(matches!(error, CallError::Connection { .. }), "{error:?}");
    });
}
