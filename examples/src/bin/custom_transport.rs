//! A custom transport: pipes over Unix sockets, `unix://PATH`, written against the public API alone. It accepts only processes of the same
//! user, whose ids the kernel reports.
//!
//! The transport offers a side address, so pipes that begin on tcp upgrade to it when both ends are on one machine. Run
//! this to see such an upgrade, and to see the transport pass the public conformance suites:
//! `cargo run -p tensorpipe-examples --bin custom_transport`.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, IoSlice};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};

use tensorpipe::channels::{BasicChannel, Channel};
use tensorpipe::conformance;
use tensorpipe::transports::{Acceptor, BoxFuture, Connection, TcpTransport, Transport};
use tensorpipe::{Context, Error, Message, PeerAddr, SystemError, Tensor};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};

/// Transport `unix`.
struct UnixTransport {
    /// Processes with equal domains reach each other: same user, same boot, same directory of temporary files.
    domain: Vec<u8>,
    user: u32,
}

impl UnixTransport {
    /// Fails where the kernel does not tell its boot id.
    fn probe() -> io::Result<Self> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let directory = std::fs::metadata(std::env::temp_dir())?;
        let user = std::fs::metadata("/proc/self")?.uid();
        let seen = format!("{} {} {user} {boot}", directory.dev(), directory.ino());
        let domain = seen.into_bytes();
        Ok(Self { domain, user })
    }
}

impl Transport for UnixTransport {
    fn name(&self) -> &'static str {
        "unix"
    }

    fn domain(&self) -> Vec<u8> {
        self.domain.clone()
    }

    fn reaches(&self, theirs: &[u8]) -> Result<(), String> {
        if theirs == self.domain {
            Ok(())
        } else {
            Err(
                "the peer is on another machine, in another container, or of another user"
                    .to_owned(),
            )
        }
    }

    fn connect<'a>(
        &'a self,
        address: &'a str,
    ) -> BoxFuture<'a, Result<Box<dyn Connection>, Error>> {
        Box::pin(async move {
            let stream = UnixStream::connect(address)
                .await
                .map_err(|error| SystemError::new("connect", format!("unix://{address}"), error))?;
            let connection = UnixConnection::new(stream, address)
                .map_err(|error| SystemError::new("getsockopt", address, error))?;
            Ok(Box::new(connection) as Box<dyn Connection>)
        })
    }

    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Box<dyn Acceptor>, Error>> {
        Box::pin(async move {
            let listener = UnixListener::bind(address)
                .map_err(|error| SystemError::new("listen", format!("unix://{address}"), error))?;
            Ok(Box::new(UnixAcceptor {
                listener,
                path: address.to_owned(),
                user: self.user,
            }) as Box<dyn Acceptor>)
        })
    }

    fn upgrade_address(&self) -> Option<String> {
        Some(fresh_path().to_string_lossy().into_owned())
    }
}

/// A path that nobody can guess, because everybody may write to its directory.
fn fresh_path() -> PathBuf {
    let [one, other] = [(); 2].map(|()| RandomState::new().hash_one(std::process::id()));
    std::env::temp_dir().join(format!("tensorpipe-{one:016x}{other:016x}.sock"))
}

struct UnixAcceptor {
    listener: UnixListener,
    path: String,
    user: u32,
}

impl Acceptor for UnixAcceptor {
    fn address(&self) -> String {
        self.path.clone()
    }

    fn poll_accept(
        &mut self,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Result<Box<dyn Connection>, Error>> {
        loop {
            let accepted = ready!(self.listener.poll_accept(cx));
            let connection =
                accepted.and_then(|(stream, _)| UnixConnection::new(stream, &self.path));
            match connection {
                Ok(connection) if !connection.is_of(self.user) => {}
                Ok(connection) => return Poll::Ready(Ok(Box::new(connection))),
                Err(error) => {
                    let error = SystemError::new("accept", self.path.clone(), error);
                    return Poll::Ready(Err(error.into()));
                }
            }
        }
    }
}

impl Drop for UnixAcceptor {
    fn drop(&mut self) {
        // The file is the address: it goes with the listener.
        let _ = std::fs::remove_file(&self.path);
    }
}

struct UnixConnection {
    stream: UnixStream,
    path: String,
    peer: PeerAddr,
}

impl UnixConnection {
    /// Asks the kernel for the peer's process and user (`SO_PEERCRED`).
    fn new(stream: UnixStream, path: &str) -> io::Result<Self> {
        let peer = stream.peer_cred()?;
        let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok());
        Ok(Self {
            stream,
            path: path.to_owned(),
            peer: PeerAddr::Process {
                pid: pid.filter(|pid| *pid != 0),
                uid: peer.uid(),
            },
        })
    }

    fn is_of(&self, user: u32) -> bool {
        matches!(self.peer, PeerAddr::Process { uid, .. } if uid == user)
    }
}

impl Connection for UnixConnection {
    fn endpoints(&self) -> String {
        self.path.clone()
    }

    fn peer(&self) -> PeerAddr {
        self.peer
    }
}

impl AsyncRead for UnixConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for UnixConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A context that prefers Unix sockets and also speaks tcp.
fn context(name: &str) -> anyhow::Result<Context> {
    let transports: [Arc<dyn Transport>; 2] = [
        Arc::new(UnixTransport::probe()?),
        Arc::new(TcpTransport::new()),
    ];
    let channels: [Arc<dyn Channel>; 1] = [Arc::new(BasicChannel::new())];
    let builder = Context::builder().name(name);
    Ok(builder.transports(transports).channels(channels).build()?)
}

fn transport_subject() -> conformance::transport::Subject {
    let transport = UnixTransport::probe().expect("this machine has Unix sockets");
    conformance::transport::Subject::new(Arc::new(transport), fresh_path().to_string_lossy())
}

fn pipe_subject() -> conformance::pipe::Subject {
    let url = format!("unix://{}", fresh_path().display());
    conformance::pipe::Subject::new(
        || context("pipe suite").expect("the settings are valid"),
        url,
    )
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let (client, server) = (context("client")?, context("server")?);
    let listener = server.listen(["tcp://127.0.0.1:0"]).await?;
    let url = listener.url().to_string();
    let (client, server) = tokio::try_join!(client.connect(&url), listener.accept())?;
    println!("a pipe that began at {url}:\n{}\n", client.route());

    let gradient = Tensor::from_vec((0..1_000_000).map(|i| i as f32).collect(), [1000, 1000])?;
    let message = Message::new("gradient").tensor(gradient.clone());
    let (written, read) = tokio::join!(client.write(message), server.read());
    written?;
    let received = read?;
    let arrived = &received.tensors[0].tensor;
    anyhow::ensure!(arrived.as_bytes()? == gradient.as_bytes()?, "bytes differ");
    println!(
        "{arrived:?} arrived, {} writes for it\n",
        client.stats().writes
    );
    client.close().await?;

    let passed = conformance::transport::all(transport_subject).await;
    println!("transport suite: {} scenarios passed", passed.len());
    let passed = conformance::pipe::all(pipe_subject).await;
    println!("pipe suite: {} scenarios passed", passed.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    tensorpipe::transport_conformance!(
        unix,
        || Arc::new(UnixTransport::probe().unwrap()),
        fresh_path().to_string_lossy()
    );
}
