//! A program makes and drops calls while it holds a lock that its own handlers take.

use std::sync::{Arc, Mutex};

use futures_util::{Stream, stream};
use tensorpipe::Tensor;
use tensorpipe_rpc::{CallContext, Connection, Remote, ServerLimits, Streaming, tensor_service};

use crate::lab::{in_each, serve, tensor};

/// Served at both ends.
#[tensor_service]
trait Cabinet {
    /// Whether its lock was free.
    async fn look(&self) -> bool;
    async fn take(&self, tensor: Tensor) -> ();
    async fn lend(&self) -> Remote<u64>;
    /// Takes numbers, and gives them back.
    fn numbers(&self, numbers: Streaming<u64>) -> impl Stream<Item = u64>;
    /// Makes the caller known.
    async fn meet(&self, cx: &CallContext) -> bool;
}

#[derive(Clone, Default)]
struct Keeper {
    state: Arc<Mutex<()>>,
    caller: Arc<Mutex<Option<Connection>>>,
}

impl Cabinet for Keeper {
    async fn look(&self) -> bool {
        self.state.try_lock().is_ok()
    }

    async fn take(&self, _: Tensor) {}

    async fn lend(&self) -> Remote<u64> {
        Remote::new(1)
    }

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

/// Each of its operations finds a call of the other end in the connection, and does not begin its handler.
#[tokio::test]
async fn no_handler_begins_while_a_call_is_made_or_dropped() {
    in_each(async |context| {
        let build = |name| context().name(name).build().unwrap();
        let (here, there) = (Keeper::default(), Keeper::default());
        let (near, far) = (build("near"), build("far"));
        let server = serve(&far, CabinetService::new(there.clone())).await;
        let connection = Connection::builder()
            .context(&near)
            .limits(ServerLimits::default())
            .service(CabinetService::new(here.clone()));
        let connection = connection.connect(server.url().to_string()).await.unwrap();
        let client = CabinetClient::on(&connection).await.unwrap();
        assert!(client.meet().await.unwrap());
        let caller = there.caller.lock().unwrap().take().unwrap();
        let back = CabinetClient::on(&caller).await.unwrap();
        // A handler that has proved short is begun by whoever drives.
        for _ in 0..200 {
            assert!(back.look().await.unwrap());
        }
        let large = tensor(8 << 20, 1);
        for operation in 0..6 {
            let lent = client.lend().await.unwrap();
            let under_way = client.take(large.clone());
            let mut numbers = client.numbers(stream::iter(0..10_000u64));
            numbers.next().await.unwrap().unwrap();
            let looks: Vec<_> = (0..3).map(|_| back.look()).collect();
            let made = {
                let _state = here.state.lock().unwrap();
                match operation {
                    0 => Some(client.take(large.clone())),
                    1 => Some(client.take(tensor(8, 1))),
                    2 => {
                        drop(under_way);
                        None
                    }
                    3 => {
                        drop(lent);
                        None
                    }
                    4 => {
                        drop(numbers);
                        None
                    }
                    _ => {
                        drop(client.lend());
                        None
                    }
                }
            };
            for look in looks {
                assert!(look.await.unwrap(), "operation {operation}");
            }
            if let Some(made) = made {
                made.await.unwrap();
            }
        }
    })
    .await;
}
