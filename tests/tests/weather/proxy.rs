//! A proxy before a server's port: it passes bytes on in pieces, stalls, and cuts its connections.

use fastrand::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What becomes of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passes {
    All,
    Upward,
    Downward,
    Nothing,
}

pub(super) struct Proxy {
    url: String,
    passes: watch::Sender<Passes>,
    /// Changes when its connections are cut.
    cuts: watch::Sender<u64>,
}

impl Proxy {
    /// Stands before the server at this URL.
    pub(super) async fn before(url: &str, mut rng: Rng) -> Self {
        let (scheme, server) = url.split_once("://").unwrap();
        let server = server.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("{scheme}://{}", listener.local_addr().unwrap());
        let (passes, passing) = watch::channel(Passes::All);
        let (cuts, cutting) = watch::channel(0);
        tokio::spawn(async move {
            loop {
                let client = tokio::select! {
                    accepted = listener.accept() => accepted.unwrap().0,
                    () = gone(passing.clone()) => return,
                };
                let Ok(server) = TcpStream::connect(&server).await else {
                    continue;
                };
                for stream in [&client, &server] {
                    let _ = stream.set_nodelay(true);
                }
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                let (up, down) = (passing.clone(), passing.clone());
                let (one, other) = (rng.fork(), rng.fork());
                let mut cut = cutting.clone();
                cut.borrow_and_update();
                tokio::spawn(async move {
                    let both = async {
                        tokio::join!(
                            pass(from_client, to_server, up, Passes::Upward, one),
                            pass(from_server, to_client, down, Passes::Downward, other),
                        )
                    };
                    tokio::select! {
                        _ = both => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Self { url, passes, cuts }
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn lets_pass(&self, passes: Passes) {
        self.passes.send_replace(passes);
    }

    pub(super) fn cuts(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

async fn gone(mut passing: watch::Receiver<Passes>) {
    while passing.changed().await.is_ok() {}
}

/// Passes bytes on in one direction, until its end.
async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut passing: watch::Receiver<Passes>,
    way: Passes,
    mut rng: Rng,
) {
    let mut room = vec![0; 64 << 10];
    loop {
        let most = match rng.u8(..8) {
            0 => rng.usize(1..100),
            _ => room.len(),
        };
        let Ok(len @ 1..) = from.read(&mut room[..most]).await else {
            break;
        };
        let goes = passing.wait_for(|passes| *passes == Passes::All || *passes == way);
        if goes.await.is_err() || to.write_all(&room[..len]).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}
