//! A forked child lets go of what it has inherited of a pipe: the pipe is its parent's, and stays as it is.

use std::time::Duration;

use super::*;
use crate::Context;
use crate::sync::MutexGuard;
use crate::sys::fork::tests::a_child_drops;
use crate::transports::{ShmTransport, TcpTransport, Transport};

/// Both ends of a pipe over these.
async fn pair(transports: Vec<Arc<dyn Transport>>) -> (Pipe, Pipe) {
    let context = Context::builder().transports(transports).build().unwrap();
    let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let (client, server) = tokio::join!(context.connect(listener.url()), listener.accept());
    (client.unwrap(), server.unwrap())
}

async fn says_and_hears(client: &Pipe, server: &Pipe) {
    let both = async {
        client.write(Message::new("still here")).await.unwrap();
        server.read().await.unwrap();
    };
    let both = tokio::time::timeout(Duration::from_secs(20), both);
    both.await.expect("its child has broken the pipe");
}

fn hold(core: &Core) -> MutexGuard<'_, Shared> {
    lock(&core.shared)
}

#[tokio::test]
async fn a_forked_child_lets_go_of_a_pipe_which_goes_on_at_its_parent() {
    let (tcp, shm): (Arc<dyn Transport>, Arc<dyn Transport>) =
        (Arc::new(TcpTransport::new()), Arc::new(ShmTransport::new()));
    for transports in [vec![tcp.clone()], vec![shm, tcp]] {
        let (client, server) = pair(transports).await;
        says_and_hears(&client, &server).await;
        let core = client.core().clone();
        let mut client = Some(client);
        // Whoever has the lock is not in the child.
        let held = hold(&core);
        assert!(a_child_drops(&mut client));
        drop(held);
        assert!(a_child_drops(&mut client));
        says_and_hears(client.as_ref().unwrap(), &server).await;
    }
}

/// Without the lock, which a child may find held by a thread that it has not got.
#[tokio::test]
async fn a_forked_child_lets_go_of_what_it_awaited() {
    let (client, server) = pair(vec![Arc::new(TcpTransport::new())]).await;
    let mut read = Some(Box::pin(server.read()));
    let waits = tokio::time::timeout(Duration::from_millis(20), read.as_mut().unwrap());
    waits.await.unwrap_err();
    let core = server.core().clone();
    let held = hold(&core);
    assert!(a_child_drops(&mut read));
    drop(held);
    drop(read);
    says_and_hears(&client, &server).await;
}
