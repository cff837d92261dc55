//! A call is cancelled at the moment when the calls that it waits for end.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use tensorpipe_rpc::{Remote, tensor_service};
use tokio::sync::Semaphore;

use crate::lab::{AtIt, serve, tcp, until};

/// An argument that holds up whoever decodes it next, when that is asked for.
#[derive(Debug, Serialize)]
struct Late(u8);

/// Says that it is being decoded, and waits.
struct Hold {
    here: mpsc::Sender<()>,
    go_on: mpsc::Receiver<()>,
}

static HOLD: Mutex<Option<Hold>> = Mutex::new(None);

impl<'de> Deserialize<'de> for Late {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = u8::deserialize(deserializer)?;
        let hold = HOLD.lock().unwrap().take();
        if let Some(Hold { here, go_on }) = hold {
            here.send(()).unwrap();
            // Whatever else this thread has to do goes on elsewhere.
            let told = || go_on.recv_timeout(Duration::from_secs(20));
            tokio::task::block_in_place(told).unwrap();
        }
        Ok(Self(value))
    }
}

#[tensor_service]
trait Chain {
    /// Waits until it may.
    async fn first(&self) -> Remote<u64>;
    /// Never ends by itself.
    async fn second(&self, number: Remote<u64>, late: Late) -> ();
    async fn echo(&self, number: u64) -> u64;
}

#[derive(Clone)]
struct Links {
    begun: Arc<AtomicUsize>,
    at_it: Arc<AtomicUsize>,
    gate: Arc<Semaphore>,
}

impl Chain for Links {
    async fn first(&self) -> Remote<u64> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        self.gate.acquire().await.unwrap().forget();
        Remote::new(1)
    }

    async fn second(&self, number: Remote<u64>, late: Late) {
        let _at_it = AtIt::new(&self.at_it);
        std::future::pending::<()>().await;
        drop((number, late));
    }

    async fn echo(&self, number: u64) -> u64 {
        number
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn it_is_given_up_all_the_same() {
    let links = Links {
        begun: Arc::default(),
        at_it: Arc::default(),
        gate: Arc::new(Semaphore::new(0)),
    };
    let (near, far) = (tcp().build().unwrap(), tcp().build().unwrap());
    let server = serve(&far, ChainService::new(links.clone())).await;
    let client = ChainClient::connect_with(&near, server.url())
        .await
        .unwrap();
    let first = client.first();
    let second = client.second(&first, Late(7));
    until(|| links.begun.load(Ordering::SeqCst) == 1).await;
    // What was said before this is answered has been heard: the second waits for the first.
    assert_eq!(client.echo(4).await.unwrap(), 4);
    until(|| server.calls_in_flight() == 2).await;
    let ((here, is_here), (tell, go_on)) = (mpsc::channel(), mpsc::channel());
    *HOLD.lock().unwrap() = Some(Hold { here, go_on });
    links.gate.add_permits(1);
    // It waits for nobody any more, and its handler is not there yet.
    until(|| is_here.try_recv().is_ok()).await;
    drop(second);
    // And that it is given up.
    assert_eq!(client.echo(5).await.unwrap(), 5);
    tell.send(()).unwrap();
    drop(first);
    until(|| server.calls_in_flight() == 0 && server.references() == 0).await;
    assert_eq!(links.at_it.load(Ordering::SeqCst), 0);
}
