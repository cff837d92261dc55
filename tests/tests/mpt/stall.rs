//! One of two connections that carry a tensor is lost, on a virtual clock. The loss costs less than [`COSTS`] beyond the time that the
//! other one takes for the rest. The channel detects it by unconfirmed chunks, even if the kernel still considers the connection alive.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use tensorpipe::channels::MptChannel;
use tensorpipe::testing::{self, Network};
use tensorpipe::transports::{Connection, Transport};
use tensorpipe::{Listener, Message, Pipe, Tensor};
use tensorpipe_tests::Over;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::scene::numbers;

/// The stall that the loss of a connection may cost.
const COSTS: Duration = Duration::from_millis(50);

/// 256 KiB take so long by each connection: 128 MiB/s.
const DELAY: Duration = Duration::from_millis(2);

const LEN: usize = 8 << 20;

/// How a connection is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// Both ends are told.
    Cut,
    /// Nobody is told, and nothing arrives at either end; or only there; or only here.
    Stall,
    StallUp,
    StallDown,
}

/// What has become of the connections, by their numbers: 0 is the pipe's.
#[derive(Clone, Default)]
struct Fates(Arc<Mutex<Vec<Fate>>>);

#[derive(Default)]
struct Fate {
    loss: Option<Loss>,
    wakers: Vec<Waker>,
}

impl Fates {
    fn lose(&self, number: usize, loss: Loss) {
        let mut fates = self.0.lock().unwrap();
        fates[number].loss = Some(loss);
        let wakers = std::mem::take(&mut fates[number].wakers);
        drop(fates);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A connection that may be lost. What is written to one that stalls is taken, as the kernel takes it, and then no more.
struct Lossy {
    inner: Box<dyn Connection>,
    fates: Fates,
    number: usize,
    void: usize,
}

/// Bytes that the system takes of a writer whose peer is silent.
const VOID: usize = 256 << 10;

impl Lossy {
    /// How it is lost, if it is; else who asks is woken when it is.
    fn loss(&self, cx: &TaskContext<'_>) -> Option<Loss> {
        let fate = &mut self.fates.0.lock().unwrap()[self.number];
        if fate.wakers.iter().all(|waker| !waker.will_wake(cx.waker())) {
            fate.wakers.push(cx.waker().clone());
        }
        fate.loss
    }
}

impl Connection for Lossy {
    fn endpoints(&self) -> String {
        self.inner.endpoints()
    }
}

impl AsyncRead for Lossy {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.loss(cx) {
            Some(Loss::Cut) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            Some(Loss::Stall | Loss::StallDown) => Poll::Pending,
            _ => Pin::new(&mut *self.inner).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Lossy {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.loss(cx) {
            Some(Loss::Cut) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            Some(Loss::Stall | Loss::StallUp) => {
                let taken = bytes.len().min(VOID - self.void);
                self.void += taken;
                match taken {
                    0 => Poll::Pending,
                    _ => Poll::Ready(Ok(taken)),
                }
            }
            _ => Pin::new(&mut *self.inner).poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.inner).poll_shutdown(cx)
    }
}

/// Both ends of a pipe, whose further connections are numbers 1 and 2.
struct Pair {
    client: Pipe,
    server: Pipe,
    fates: Fates,
    _listener: Listener,
}

async fn pair(network: &Network, connections: u8) -> Pair {
    let fates = Fates::default();
    let made = fates.clone();
    let sim = Over::new("sim", network.host("client").transport());
    let lossy: Arc<dyn Transport> = Arc::new(sim.connecting(move |inner| {
        let mut fates = made.0.lock().unwrap();
        fates.push(Fate::default());
        Box::new(Lossy {
            inner,
            fates: made.clone(),
            number: fates.len() - 1,
            void: 0,
        })
    }));
    let context = |name| {
        let mpt = MptChannel::new().connections(connections).unwrap();
        network.host(name).context().prefer_channel(mpt)
    };
    let server = context("server").build().unwrap();
    let client = context("client").transports([lossy]).build().unwrap();
    let listener = server.listen(["sim://server:1"]).await.unwrap();
    let connected = tokio::join!(client.connect(listener.url()), listener.accept());
    for (from, to) in [("client", "server"), ("server", "client")] {
        network.link(from, to).delay(DELAY);
    }
    Pair {
        client: connected.0.unwrap(),
        server: connected.1.unwrap(),
        fates,
        _listener: listener,
    }
}

/// How long a tensor takes, to which `happens`.
async fn carry(pair: &Pair, happens: impl Future<Output = ()>) -> Duration {
    let message = Message::new("").tensor(Tensor::from(numbers(LEN)));
    let begun = Instant::now();
    let (written, read, ()) = tokio::join!(pair.client.write(message), pair.server.read(), happens);
    let took = begun.elapsed();
    written.unwrap();
    let read = read.unwrap();
    let found = read.tensors[0].tensor.as_slice::<u64>().unwrap();
    assert!(found == numbers(LEN), "it arrived otherwise");
    took
}

/// How long a tensor takes by so many connections, of which one is lost after some time. They are opened for this tensor, or
/// have carried one before.
fn takes(connections: u8, is_new: bool, lost: Option<(Loss, Duration)>) -> Duration {
    testing::run(1, async |network| {
        let pair = pair(&network, connections).await;
        if !is_new {
            carry(&pair, async {}).await;
        }
        let loss = async {
            if let Some((loss, at)) = lost {
                tokio::time::sleep(at).await;
                pair.fates.lose(2, loss);
            }
        };
        carry(&pair, loss).await
    })
}

#[test]
fn the_loss_of_one_of_two_connections_costs_less_than_50_ms() {
    for is_new in [false, true] {
        let (alone, both) = (takes(1, is_new, None), takes(2, is_new, None));
        assert!(
            3 * both < 2 * alone,
            "they share the load: {both:?} of {alone:?}"
        );
        for loss in [Loss::Cut, Loss::Stall, Loss::StallUp, Loss::StallDown] {
            // The first is before a new one has had a chunk confirmed, the last when its last chunks are on their way.
            for percent in [36, 60, 90] {
                let at = both * percent / 100;
                let took = takes(2, is_new, Some((loss, at)));
                // What is left by then goes over the other.
                let ideal = at + alone * (100 - percent) / 100;
                let stall = took.saturating_sub(ideal);
                println!("new {is_new}, {loss:?} at {at:?}: {took:?}, {stall:?} of them in vain");
                assert!(stall < COSTS);
            }
        }
    }
}
