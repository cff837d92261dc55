//! The runtime of a server ends before its handles do, or a task blocks one of its threads.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use tensorpipe_rpc::{CallContext, CallError, tensor_service};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use super::common::soon;
use super::lab::{serve, tcp, until};

#[tensor_service]
trait Keeps {
    async fn keep(&self, cx: &CallContext) -> ();
    /// Never ends by itself.
    async fn stay(&self) -> ();
}

#[derive(Clone, Default)]
struct Shelf(Arc<Mutex<Option<CallContext>>>);

impl Keeps for Shelf {
    async fn keep(&self, cx: &CallContext) {
        *self.0.lock().unwrap() = Some(cx.clone());
    }

    async fn stay(&self) {
        std::future::pending().await
    }
}

#[test]
fn waits_for_what_it_was_to_do_end() {
    let (first, other) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let shelf = Shelf::default();
    let (near, far) = (tcp().build().unwrap(), tcp().build().unwrap());
    let server = first.block_on(serve(&far, KeepsService::new(shelf.clone())));
    let client = other.block_on(KeepsClient::connect_with(&near, server.url()));
    let client = client.unwrap();
    other.block_on(client.keep()).unwrap();
    let stays = client.stay();
    other.block_on(until(|| server.calls_in_flight() == 1));
    drop(first);
    let cx = shelf.0.lock().unwrap().take().unwrap();
    other.block_on(soon(async { cx.cancelled().await }));
    other.block_on(soon(async { stays.await.unwrap_err() }));
    other.block_on(soon(async { server.shutdown().await }));
}

#[tensor_service]
trait Hangs {
    /// Blocks its thread until the test ends.
    async fn hang(&self) -> ();
}

struct Hanger(Mutex<mpsc::Receiver<()>>);

impl Hangs for Hanger {
    async fn hang(&self) {
        let _ = self.0.lock().unwrap().recv();
    }
}

/// The server has one thread, so that it does not say that the deadline has passed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_deadline_is_kept_while_the_maker_of_another_call_blocks_its_thread() {
    let (end, ends) = mpsc::channel();
    let (tell, told) = oneshot::channel();
    std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let context = tcp().build().unwrap();
            let server = serve(&context, HangsService::new(Hanger(Mutex::new(ends)))).await;
            tell.send(server.url().to_string()).unwrap();
            server.wait().await;
        });
    });
    let url = told.await.unwrap();
    let client = HangsClient::connect_with(&tcp().build().unwrap(), &url).await;
    let client = client.unwrap();

    let call = client.with_deadline(Duration::from_secs(1)).hang();
    let waits = tokio::spawn(call);
    // It is due before, so the watcher is woken, here.
    let sooner = client.with_deadline(Duration::from_millis(500));
    let (go_on, goes_on) = mpsc::channel::<()>();
    let blocks = tokio::spawn(async move {
        let call = sooner.hang();
        let _ = goes_on.recv();
        call.await
    });
    let late = soon(waits).await.unwrap();
    assert!(matches!(late, Err(CallError::Deadline { .. })), "{late:?}");
    drop(go_on);
    let late = soon(blocks).await.unwrap();
    assert!(matches!(late, Err(CallError::Deadline { .. })), "{late:?}");
    drop(end);
}
