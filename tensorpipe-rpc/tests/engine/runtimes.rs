//! The runtime of a server ends before its handles do.

use std::sync::{Arc, Mutex};

use tensorpipe_rpc::{CallContext, tensor_service};
use tokio::runtime::Runtime;

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
