//! A program makes and drops calls while it holds a lock that its own handlers take.

use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use futures_util::future::poll_immediate;
use futures_util::{Stream, stream};
use tensorpipe::{Context, Tensor};
use tensorpipe_rpc::{
    CallContext, Connection, Remote, Server, ServerLimits, Streaming, tensor_service,
};

use crate::lab::{in_each, serve, tensor};

/// Served at both ends.
#[tensor_service]
trait Cabinet {
    /// Whether it runs on another thread than the one that holds its lock.
    async fn look(&self) -> bool;
    async fn take(&self, tensor: Tensor) -> ();
    async fn lend(&self) -> Remote<u64>;
    async fn add(&self, number: Remote<u64>) -> ();
    /// Takes numbers, and gives them back.
    fn numbers(&self, numbers: Streaming<u64>) -> impl Stream<Item = u64>;
    /// Makes the caller known.
    async fn meet(&self, cx: &CallContext) -> bool;
}

#[derive(Clone, Default)]
struct Keeper {
    /// Who has locked what its handlers need.
    locked_by: Arc<Mutex<Option<ThreadId>>>,
    caller: Arc<Mutex<Option<Connection>>>,
}

impl Cabinet for Keeper {
    async fn look(&self) -> bool {
        *self.locked_by.lock().unwrap() != Some(thread::current().id())
    }

    async fn take(&self, _: Tensor) {}

    async fn lend(&self) -> Remote<u64> {
        Remote::new(1)
    }

    async fn add(&self, _: Remote<u64>) {}

    fn numbers(&self, numbers: Streaming<u64>) -> impl Stream<Item = u64> {
        numbers.values()
    }

    async fn meet(&self, cx: &CallContext) -> bool {
        let caller = cx.connection();
        let met = caller.is_some();
        *self.caller.lock().unwrap() = caller;
        met
    }
}

/// Each end's client of the other.
struct Ends {
    client: CabinetClient,
    back: CabinetClient,
    here: Keeper,
    _server: Server,
}

impl Ends {
    async fn new(near: Context, far: Context) -> Self {
        let (here, there) = (Keeper::default(), Keeper::default());
        let server = serve(&far, CabinetService::new(there.clone())).await;
        let connection = Connection::builder()
            .context(&near)
            .limits(ServerLimits::default())
            .service(CabinetService::new(here.clone()));
        let connection = connection.connect(server.url().to_string());
        let client = CabinetClient::on(&connection.await.unwrap()).await.unwrap();
        assert!(client.meet().await.unwrap());
        let caller = there.caller.lock().unwrap().take().unwrap();
        let back = CabinetClient::on(&caller).await.unwrap();
        // A handler that has proved short is begun by whoever drives, and for answers that were quick the caller polls.
        for _ in 0..200 {
            assert!(back.look().await.unwrap() && client.look().await.unwrap());
        }
        Self {
            client,
            back,
            here,
            _server: server,
        }
    }

    /// Holds the lock while this end does something, for which it finds calls of the other end in the connection.
    async fn locked<T>(&self, name: &str, work: impl FnOnce() -> T) -> T {
        let looks: Vec<_> = (0..3).map(|_| self.back.look()).collect();
        *self.here.locked_by.lock().unwrap() = Some(thread::current().id());
        let done = work();
        *self.here.locked_by.lock().unwrap() = None;
        for look in looks {
            assert!(look.await.unwrap(), "{name}");
        }
        done
    }
}

#[tokio::test]
async fn no_handler_begins_while_a_call_is_made_or_dropped() {
    in_each(async |context| {
        let build = |name| context().name(name).build().unwrap();
        makes_and_drops(&Ends::new(build("near"), build("far")).await).await;
    })
    .await;
}

/// The messages of the other end may come at any time.
#[tokio::test(flavor = "multi_thread")]
async fn nor_where_other_threads_drive_too() {
    in_each(async |context| {
        let build = |name| context().name(name).build().unwrap();
        let ends = Ends::new(build("near"), build("far")).await;
        for _ in 0..20 {
            makes_and_drops(&ends).await;
        }
    })
    .await;
}

async fn makes_and_drops(ends: &Ends) {
    let client = &ends.client;
    let large = || tensor(8 << 20, 1);
    let made = ends.locked("a large call", || client.take(large())).await;
    made.await.unwrap();
    let made = ends.locked("a small call", || client.take(tensor(8, 1)));
    made.await.await.unwrap();
    let under_way = client.take(large());
    ends.locked("a call under way", || drop(under_way)).await;
    let lent = client.lend().await.unwrap();
    ends.locked("a reference", || drop(lent)).await;
    let mut numbers = client.numbers(stream::iter(0..10_000u64));
    numbers.next().await.unwrap().unwrap();
    ends.locked("a stream", || drop(numbers)).await;
    ends.locked("one that was just made", || drop(client.lend()))
        .await;
    // It polls the pipe from now on, unless the answer is quicker.
    let mut polled = client.look();
    let _ = poll_immediate(&mut polled).await;
    ends.locked("a call that was polled", || drop(polled)).await;
    let mut polled = client.lend();
    if poll_immediate(&mut polled).await.is_none() {
        let promised = client.add(&polled);
        ends.locked("one of which another has the result", || drop(polled))
            .await;
        promised.await.unwrap();
    }
}
