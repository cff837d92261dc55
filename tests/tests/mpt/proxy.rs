//! Something between the two ends that sees their connections, and can cut them.

use std::sync::{Arc, Mutex};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// Forwards connections to a port. They are numbered in the order in which they come.
#[derive(Clone, Default)]
pub(crate) struct Proxy(Arc<Mutex<Vec<AbortHandle>>>);

impl Proxy {
    /// Forwards to `port`, from the port that it returns.
    pub(crate) async fn start(&self, port: u16) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let connections = self.0.clone();
        tokio::spawn(async move {
            while let Ok((mut there, _)) = listener.accept().await {
                let forward = tokio::spawn(async move {
                    let mut here = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut there, &mut here).await;
                });
                connections.lock().unwrap().push(forward.abort_handle());
            }
        });
        own
    }

    /// How many there have been.
    pub(crate) fn seen(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Cuts one, both ways.
    pub(crate) fn cut(&self, number: usize) {
        self.0.lock().unwrap()[number].abort();
    }

    /// How many are alive.
    pub(crate) fn alive(&self) -> usize {
        let connections = self.0.lock().unwrap();
        let alive = connections.iter().filter(|each| !each.is_finished());
        alive.count()
    }
}
