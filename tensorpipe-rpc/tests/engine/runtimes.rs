//! The runtime of a server ends before its handles do, or a task blocks one of its threads.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use tensorpipe::Timeouts;
use tensorpipe_rpc::{CallContext, CallError, Connection, tensor_service};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use super::common::soon;
use super::lab::{Bench, LabClient, LabService, serve, tcp, until};
use super::wrong_use::block_on;

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

#[tensor_service]
trait Blocks {
    async fn meet(&self, cx: &CallContext) -> Result<(), String>;
    /// Blocks its thread on a call to its caller, if it is to. Whether that call was late.
    async fn block(&self, blocks: bool) -> bool;
}

#[derive(Default)]
struct Blocker(Mutex<Option<LabClient>>);

impl Blocks for Blocker {
    async fn meet(&self, cx: &CallContext) -> Result<(), String> {
        let connection = cx.connection().ok_or("the caller is gone")?;
        let client = LabClient::on(&connection).await;
        *self.0.lock().unwrap() = Some(client.map_err(|error| error.to_string())?);
        Ok(())
    }

    async fn block(&self, blocks: bool) -> bool {
        if !blocks {
            return false;
        }
        let client = self.0.lock().unwrap().clone().unwrap();
        let call = client.with_deadline(Duration::from_millis(300)).hold();
        matches!(block_on(call), Err(CallError::Deadline { .. }))
    }
}

/// The thread that runs the handler is to give it the answer.
#[test]
fn a_handler_that_blocks_on_its_own_connection_hears_of_its_deadline() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let mut timeouts = Timeouts::default();
    timeouts.silence = Some(Duration::from_secs(1));
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        runtime.block_on(async {
            let far = tcp().timeouts(timeouts).build().unwrap();
            let server = serve(&far, BlocksService::new(Blocker::default())).await;
            tell.send(server.url().to_string()).unwrap();
            server.wait().await;
        });
    });
    let url = told.recv().unwrap();
    Runtime::new().unwrap().block_on(async {
        let near = tcp().build().unwrap();
        let connection = Connection::builder().context(&near);
        let connection = connection.service(LabService::new(Bench::default()));
        let connection = connection.connect(url).await.unwrap();
        let client = BlocksClient::on(&connection).await.unwrap();
        client.meet().await.unwrap();
        // Until it is polled on the task that drives.
        for _ in 0..100 {
            assert!(!client.block(false).await.unwrap());
        }
        assert!(soon(client.block(true)).await.unwrap());
    });
}
