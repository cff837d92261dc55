//! During a 4 GiB upload, other calls on the same pipe still make progress.

use std::time::{Duration, Instant};

use tensorpipe::{ContextBuilder, DType, Tensor};
use tensorpipe_rpc::{CallError, ServerLimits};

use super::lab::{Bench, LabClient, LabService, both, shm, tcp, until};

const LEN: u64 = (4 << 30) + 4096;

/// The server on a runtime and threads of its own, as in another process.
fn server(context: ContextBuilder) -> (String, Bench, std::sync::mpsc::Sender<()>) {
    let (stop, stopped) = std::sync::mpsc::channel();
    let (tell, told) = std::sync::mpsc::channel();
    let context = context.build().unwrap();
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
                    .context(&context)
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
    goes_on_beside_an_upload(tcp).await;
    goes_on_beside_an_upload(shm).await;
}

async fn goes_on_beside_an_upload(over: fn() -> ContextBuilder) {
    let (url, bench, stop) = server(over());
    let context = over().build().unwrap();
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
    for _ in 0..5 {
        assert_eq!(client.echo("small").await.unwrap(), "small");
    }
    let middling = Tensor::zeros(DType::U8, [1 << 20]).unwrap();
    assert_eq!(client.length(&middling).await.unwrap(), 1 << 20);
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
        matches!(result, Err(CallError::Deadline { moving: true, .. })),
        "{result:?}"
    );
    assert!(begun.elapsed() >= bound && begun.elapsed() < Duration::from_secs(3));
    assert_eq!(client.echo("after").await.unwrap(), "after");
    assert!(sent() - before < LEN);
    let ran = bench.begun.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(ran, 5 + 1 + 1 + 1, "none of the uploads has run");
    until(|| client.connection().calls_in_flight() == 0).await;
    drop(stop);
}

/// A client that announces tensors and sends them slowly, or never, holds its place for the server's bound only.
#[tokio::test]
async fn an_upload_that_outlives_the_servers_bound_is_given_up_there() {
    let mut limits = ServerLimits::default();
    limits.longest_call = Duration::from_millis(200);
    for over in [tcp, shm] {
        let both = both(over(), over(), limits.clone()).await;
        let large = Tensor::zeros(DType::U8, [LEN]).unwrap();
        let result = both.client.length(&large).await;
        match result {
            Err(CallError::Deadline { after, moving, .. }) => {
                assert!(moving);
                let early = Duration::from_millis(200)..Duration::from_secs(60);
                assert!(early.contains(&after), "{after:?}");
            }
            other => panic!("{other:?}"),
        }
        drop(large);
        let sent = both.client.connection().pipe().stats().bytes_out;
        assert!(sent < LEN, "all {sent} bytes went");
        both.is_clean().await;
    }
}
