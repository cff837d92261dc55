//! How a server ends, and what its callers learn.

use std::time::{Duration, Instant};

use tensorpipe_rpc::{CallError, ServerLimits};

use super::lab::{Both, LabClient, over_each, over_each_with, tensor, until};

#[tokio::test]
async fn running_calls_finish_and_new_ones_did_not_run() {
    over_each(async |both| {
        let running = both.client.sleep(150);
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
        assert_eq!(running.await.unwrap(), 150);
        assert_eq!(shutdown.await.unwrap(), 0);
        let error = client.echo("gone").await.unwrap_err();
        assert!(!error.may_have_run(), "{error}");
        assert_eq!(bench.begun.load(std::sync::atomic::Ordering::SeqCst), begun);
        assert_eq!(client.connection().calls_under_way(), 0);
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

#[tokio::test]
async fn a_dropped_server_lets_its_calls_end_and_takes_no_more() {
    over_each(async |both| {
        let running = both.client.sleep(150);
        until(|| both.at_it() == 1).await;
        let Both { client, server, .. } = both;
        drop(server);
        tokio::time::sleep(Duration::from_millis(20)).await;
        let error = client.echo("late").await.unwrap_err();
        assert!(!error.may_have_run(), "{error}");
        assert_eq!(running.await.unwrap(), 150);
        client.connection().pipe().ended().await;
    })
    .await;
}

#[tokio::test]
async fn an_abrupt_end_leaves_open_whether_a_call_ran() {
    // The server on a runtime that is torn down: its sockets close without a word.
    let (tell, told) = std::sync::mpsc::channel();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let server = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let bench = super::lab::Bench::default();
        let server = runtime.block_on(
            tensorpipe_rpc::Server::builder()
                .context(&super::lab::tcp().build().unwrap())
                .service(super::lab::LabService::new(bench.clone()))
                .listen("tcp://127.0.0.1:0"),
        );
        let server = server.unwrap();
        tell.send((server.url().to_string(), bench)).unwrap();
        let _ = stopped.recv();
        runtime.shutdown_timeout(Duration::from_secs(1));
        drop(server);
    });
    let (url, bench) = told.recv().unwrap();
    let context = super::lab::tcp().build().unwrap();
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
