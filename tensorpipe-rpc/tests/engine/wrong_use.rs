//! Wrong use of the API returns an error that says what is wrong.

use std::time::Duration;
use tensorpipe::engine::EnginePipe;

use tensorpipe_rpc::{ConnectError, Remote, Server, tensor_service};

use super::lab::{Bench, Both, LabClient, LabService, both, over_each, serve, tcp};

#[tokio::test]
async fn two_servers_at_one_url() {
    over_each(async |both| {
        let error = Server::builder()
            .context(&both.far)
            .service(LabService::new(Bench::default()))
            .listen(both.server.url().to_string())
            .await
            .unwrap_err();
        let url = both.server.url().to_string();
        let address = url.trim_start_matches("tcp://");
        assert!(error.to_string().contains(address), "{error}");
    })
    .await;
}

#[tokio::test]
async fn one_service_twice() {
    let error = Server::builder()
        .service(LabService::new(Bench::default()))
        .service(LabService::new(Bench::default()))
        .listen("tcp://127.0.0.1:0")
        .await
        .unwrap_err();
    assert!(error.to_string().contains("`Lab`"), "{error}");
}

pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Thread(std::thread::Thread);
    impl std::task::Wake for Thread {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::sync::Arc::new(Thread(std::thread::current())).into();
    let mut future = std::pin::pin!(future);
    loop {
        let mut cx = std::task::Context::from_waker(&waker);
        if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        std::thread::park_timeout(Duration::from_secs(5));
    }
}

#[test]
fn connecting_and_listening_without_a_runtime_are_errors() {
    let context = tcp().build().unwrap();
    let error = block_on(LabClient::connect_with(&context, "tcp://127.0.0.1:9")).unwrap_err();
    assert!(matches!(error, ConnectError::Pipe(_)), "{error}");
    assert!(error.to_string().contains("runtime"), "{error}");
    let server = Server::builder()
        .context(&context)
        .listen("tcp://127.0.0.1:0");
    let error = block_on(server).unwrap_err();
    assert!(error.to_string().contains("runtime"), "{error}");
}

#[tensor_service]
trait Lender {
    async fn lend(&self) -> Remote<u64>;
}

struct One;

impl Lender for One {
    async fn lend(&self) -> Remote<u64> {
        Remote::new(1)
    }
}

#[test]
fn opening_a_reference_without_a_runtime_is_an_error_and_does_not_use_it_up() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let context = tcp().build().unwrap();
    let (_server, shared) = runtime.block_on(async {
        let server = serve(&context, LenderService::new(One)).await;
        let client = LenderClient::connect_with(&context, server.url());
        let lent = client.await.unwrap().lend().await.unwrap();
        (server, lent.share().await.unwrap())
    });
    let error = block_on(shared.open(&context)).unwrap_err();
    assert!(error.to_string().contains("runtime"), "{error}");
    assert!(!error.may_have_run());
    let opened = runtime.block_on(shared.open(&context)).unwrap();
    assert_eq!(runtime.block_on(opened.fetch()).unwrap(), 1);
}

/// The server's pipe is driven, its handlers polled and spawned, by whoever comes along.
#[test]
fn calls_on_threads_without_a_runtime_work() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    for context in [tcp, tensorpipe::Context::builder] {
        let both = both(context(), context(), Default::default());
        let Both { client, server, .. } = runtime.block_on(both);
        for _ in 0..20 {
            assert_eq!(block_on(client.echo("plain")).unwrap(), "plain");
            assert_eq!(block_on(client.sleep(2)).unwrap(), 2);
            drop(client.sleep(60_000));
            // Drives the server's end on this thread.
            server.pipes()[0].reset(1 << 40, tensorpipe::ResetCode::Cancelled, "");
        }
        let hurried = client.with_deadline(Duration::from_millis(20));
        assert!(block_on(hurried.sleep(60_000)).is_err());
        let begun = std::time::Instant::now();
        while server.calls_in_flight() > 0 {
            assert!(begun.elapsed() < Duration::from_secs(5));
            std::thread::sleep(Duration::from_millis(2));
        }
        let running = client.sleep(2000);
        while server.calls_in_flight() == 0 {
            assert!(begun.elapsed() < Duration::from_secs(10));
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(block_on(server.shutdown()), 0);
        assert_eq!(block_on(running).unwrap(), 2000);
        drop(client);
    }
}

#[test]
fn a_handler_begun_by_a_thread_without_a_runtime_runs_on_its_servers() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let (near, far) = (runtime(), runtime());
    let context = tensorpipe::Context::new();
    let listen = Server::builder()
        .context(&context)
        .service(LabService::new(Bench::default()))
        .listen("tcp://127.0.0.1:0");
    let server = far.block_on(listen).unwrap();
    let url = server.url().to_string();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let client = std::thread::scope(|scope| {
        let serving = scope.spawn(|| far.block_on(stopped));
        let client = near.block_on(LabClient::connect_with(&context, url));
        stop.send(()).unwrap();
        serving.join().unwrap().unwrap();
        client.unwrap()
    });
    // Nobody runs the server's runtime now: this thread drives its pipe.
    let call = client.sleep(2);
    let pipe = server.pipes().remove(0);
    pipe.reset(1 << 40, tensorpipe::ResetCode::Cancelled, "");
    assert_eq!(server.calls_in_flight(), 1);
    std::thread::scope(|scope| {
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serving = scope.spawn(|| far.block_on(stopped));
        assert_eq!(near.block_on(call).unwrap(), 2);
        stop.send(()).unwrap();
        serving.join().unwrap().unwrap();
    });
}

#[tokio::test]
async fn a_call_awaited_again_is_an_error() {
    over_each(async |Both { client, .. }| {
        let mut call = client.echo("once");
        assert_eq!((&mut call).await.unwrap(), "once");
        let error = call.await.unwrap_err();
        assert!(error.to_string().contains("already"), "{error}");
    })
    .await;
}

#[tokio::test]
async fn calls_on_a_closed_connection_did_not_run() {
    over_each(async |Both { client, .. }| {
        let running = client.sleep(60_000);
        let (closed, ended) = tokio::join!(client.connection().close(), running);
        closed.unwrap();
        assert!(ended.unwrap_err().may_have_run());
        let error = client.echo("late").await.unwrap_err();
        assert!(!error.may_have_run(), "{error}");
    })
    .await;
}
