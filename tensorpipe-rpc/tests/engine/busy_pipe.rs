//! A 4 GiB upload in progress, and life goes on beside it on the same pipe.

use std::time::{Duration, Instant};

use tensorpipe::{DType, Tensor};
use tensorpipe_rpc::{CallError, ServerLimits};

use super::lab::{Bench, LabClient, LabService, both, tcp, until};

const LEN: u64 = (4 << 30) + 4096;

/// The server on a runtime and threads of its own, as in another process.
fn server() -> (String, Bench, std::sync::mpsc::Sender<()>) {
    let (stop, stopped) = std::sync::mpsc::channel();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let bench = Bench::default();
        let server = runtime
            .block_on(
                tensorpipe_rpc::Server::builder()
                    .context(&tcp().build().unwrap())
                    .service(LabService::new(bench.clone()))
                    .listen("tcp://127.0.0.1:0"),
            )
            .unwrap();
        tell.send((server.url().to_string(), bench)).unwrap();
        let _ = stopped.recv();
        let _runtime = runtime.enter();
        drop(server);
    });
    let (url, bench) = told.recv().unwrap();
    (url, bench, stop)
}

#[tokio::test]
async fn small_calls_a_cancel_and_a_deadline_take_effect_before_a_4_gib_upload_ends() {
    let (url, bench, stop) = server();
    let context = tcp().build().unwrap();
    let client = LabClient::connect_with(&context, url).await.unwrap();
    let large = Tensor::zeros(DType::U8, [LEN]).unwrap();
    let sent = || client.connection().pipe().stats().bytes_out;

    // A small call is answered, and a middling one, while the upload runs.
    let mut upload = client.length(&large);
    tokio::select! {
        biased;
        length = &mut upload => panic!("{length:?}: the upload was to be under way"),
        () = until(|| sent() > 16 << 20) => {}
    }
    let begun = Instant::now();
    for _ in 0..5 {
        assert_eq!(client.echo("small").await.unwrap(), "small");
    }
    let small = begun.elapsed() / 5;
    let middling = Tensor::zeros(DType::U8, [1 << 20]).unwrap();
    assert_eq!(client.length(&middling).await.unwrap(), 1 << 20);
    assert!(small < Duration::from_millis(500), "{small:?}");
    let far = sent();
    assert!(far < LEN / 2, "the upload had {far} of {LEN} bytes");

    // The cancel: no more bytes than are on their way.
    drop(upload);
    assert_eq!(client.echo("after").await.unwrap(), "after");
    let there = sent();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(sent() - there < 1 << 20 && there < LEN / 2);

    // The deadline.
    let begun = Instant::now();
    let bound = Duration::from_millis(500);
    let before = sent();
    let result = client.with_deadline(bound).length(&large).await;
    assert!(
        matches!(result, Err(CallError::Deadline { .. })),
        "{result:?}"
    );
    assert!(begun.elapsed() >= bound && begun.elapsed() < Duration::from_secs(3));
    assert_eq!(client.echo("after").await.unwrap(), "after");
    assert!(sent() - before < LEN);
    let ran = bench.begun.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(ran, 5 + 1 + 1 + 1, "none of the uploads has run");
    until(|| client.connection().calls_under_way() == 0).await;
    drop(stop);
}

/// A client that announces tensors and never sends them holds its place for its time only.
#[tokio::test]
async fn an_upload_that_stalls_is_given_up_by_the_server() {
    let mut limits = ServerLimits::default();
    limits.longest_call = Duration::from_millis(200);
    let both = both(tcp(), tcp(), limits).await;
    // This runtime has one thread: while it is blocked, no byte moves.
    let large = Tensor::zeros(DType::U8, [LEN]).unwrap();
    let result = both.client.length(&large).await;
    match result {
        Err(CallError::Deadline { after }) => assert_eq!(after, Duration::from_secs(60)),
        other => panic!("{other:?}"),
    }
    drop(large);
    both.is_clean().await;
}
