//! A proxy between the two ends that can cut or stall their connections.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// Forwards connections to a port. They are numbered in the order in which they come.
#[derive(Clone, Default)]
pub(crate) struct Proxy {
    connections: Arc<Mutex<Vec<Forward>>>,
    /// This one stalls from its first byte on.
    late: Option<usize>,
}

struct Forward {
    task: AbortHandle,
    stalls: watch::Sender<bool>,
}

impl Proxy {
    /// One of which connection `late` stalls from its first byte on.
    pub(crate) fn with_late(late: usize) -> Self {
        Self {
            late: Some(late),
            ..Self::default()
        }
    }

    /// Forwards to `port`, from the port that it returns.
    pub(crate) async fn start(&self, port: u16) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let (connections, late) = (self.connections.clone(), self.late);
        tokio::spawn(async move {
            while let Ok((there, _)) = listener.accept().await {
                let number = connections.lock().unwrap().len();
                let stalls = watch::Sender::new(late == Some(number));
                let (out, back) = (stalls.subscribe(), stalls.subscribe());
                let task = tokio::spawn(async move {
                    let here = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                    let (from_there, to_there) = there.into_split();
                    let (from_here, to_here) = here.into_split();
                    tokio::join!(
                        forward(from_there, to_here, out),
                        forward(from_here, to_there, back)
                    );
                });
                let task = task.abort_handle();
                connections.lock().unwrap().push(Forward { task, stalls });
            }
        });
        own
    }

    /// How many there have been.
    pub(crate) fn seen(&self) -> usize {
        self.connections.lock().unwrap().len()
    }

    /// Cuts one, both ways.
    pub(crate) fn cut(&self, number: usize) {
        self.connections.lock().unwrap()[number].task.abort();
    }

    /// Nothing arrives by this one any more, and nobody is told.
    pub(crate) fn stall(&self, number: usize) {
        self.connections.lock().unwrap()[number]
            .stalls
            .send_replace(true);
    }

    pub(crate) fn goes_on(&self, number: usize) {
        self.connections.lock().unwrap()[number]
            .stalls
            .send_replace(false);
    }

    /// How many are alive.
    pub(crate) fn alive(&self) -> usize {
        let connections = self.connections.lock().unwrap();
        let alive = connections.iter().filter(|each| !each.task.is_finished());
        alive.count()
    }
}

async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut stalls: watch::Receiver<bool>,
) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut bytes).await {
        let goes_on = stalls.wait_for(|stalls| !stalls).await.is_ok();
        if !goes_on || to.write_all(&bytes[..len]).await.is_err() {
            return;
        }
    }
}
