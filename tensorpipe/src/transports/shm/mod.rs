//! Shared memory between processes of one machine.
//!
//! A connection is a Unix socket and a sealed memfd with two [rings](crate::ring), one for each direction. The connector makes the memory
//! and passes it over the socket. From then on, bytes go through the rings. The socket carries one byte when the other end has to be woken,
//! and its close shows that a process is gone. The kernel frees everything with the last process: nothing has a name in a file system.
//!
//! Addresses are names of Unix sockets in the abstract namespace, which belongs to the network namespace. Both ends accept only their own
//! user.
//!
//! - **Counters.** Each end keeps its own counter and checks the other's, so nonsense there is a fault and never a wild access.
//! - **Size.** A ring has 256 KiB: bytes stay in the second-level cache until they are read. One that is often read empty uses only its
//!   first pages. One that is empty, and that carried at most 32 KiB in 10 s, gives its memory back to the system.
//! - **Reach.** Processes of one user, on one boot, in one network namespace; the route says what is missing. In a user namespace that maps
//!   this user and others to one number, nobody counts as the same user.

mod alarm;
mod connection;
mod doorbell;
mod errors;
mod rings;
mod wakers;

use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::task::{Context, Poll, ready};

use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use tokio::net::{UnixListener, UnixStream};

use self::connection::ShmConnection;
use super::{Acceptor, BoxFuture, Connection, Transport};
use crate::address::PeerAddr;
use crate::error::{Error, Misuse, SystemError};
use crate::process::random_name;
use crate::sys::fork::{OnceBox, Owner, PerProcess};
use crate::sys::machine::{self, IpcDomain};
use crate::sys::{drop_thread, memfd, peer};

/// Prefix of every name: other programs use abstract sockets, too.
const PREFIX: &str = "tensorpipe/shm/";

/// The longest name: an abstract address has 107 bytes.
const LONGEST_NAME: usize = 64;

const BACKLOG: i32 = 1024;

/// Transport `shm`: `shm://NAME`, between processes of one user on one machine.
#[derive(Debug, Default)]
pub struct ShmTransport {
    any_user: bool,
}

impl ShmTransport {
    /// For processes of the same user. If the system lacks something for it, the route says so.
    pub fn new() -> Self {
        Self::default()
    }

    /// Accepts every user of the machine. A user who can connect can write nonsense into the rings, which ends the pipe with an
    /// error. Such a user can also read what was left in the rings.
    ///
    /// Where the system promises no more memory than it has (`vm.overcommit_memory` = 2), other users are refused: they could
    /// free pages of a ring and use up what is left, and the next access would end this process by a signal.
    pub fn any_user(mut self) -> Self {
        self.any_user = true;
        self
    }
}

/// Where this process is, or why it has no shared memory. A shortage that passes is not remembered.
fn here() -> Result<IpcDomain, String> {
    // A forked child may differ from its parent here.
    static HERE: PerProcess<OnceBox<IpcDomain>> = PerProcess::new();
    memfd::probe().map_err(|error| format!("this system gives no shared memory: {error}"))?;
    let known = HERE.get(OnceBox::new);
    if let Some(known) = known.get() {
        return Ok(at_present(*known));
    }
    let found = IpcDomain::here()?;
    Ok(at_present(*known.get_or_init(|| found)))
}

/// A process may become another user's.
fn at_present(known: IpcDomain) -> IpcDomain {
    let user = machine::user();
    IpcDomain { user, ..known }
}

impl Transport for ShmTransport {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn domain(&self) -> Vec<u8> {
        match here() {
            Ok(place) => place.encode(),
            Err(_) => Vec::new(),
        }
    }

    fn reaches(&self, theirs: &[u8]) -> Result<(), String> {
        let ours = here()?;
        let theirs = IpcDomain::decode(theirs)
            .ok_or_else(|| "the peer has no shared memory to offer".to_owned())?;
        if !self.any_user {
            machine::knows_users()?;
        }
        if drop_thread::is_kept_from_closing() {
            return Err("connections of other users take long to close".to_owned());
        }
        ours.meets(&theirs, self.any_user)
    }

    fn connect<'a>(
        &'a self,
        address: &'a str,
    ) -> BoxFuture<'a, Result<Box<dyn Connection>, Error>> {
        Box::pin(async move {
            let at = abstract_address(address)?;
            // Checked before connecting: without memfd, waiting for a listener would not help.
            memfd::probe()?;
            let failed = |call, error| SystemError::new(call, format!("shm://{address}"), error);
            let socket = connected(&at).map_err(|error| failed("connect", error))?;
            check_user(&socket, self.any_user).map_err(|error| failed("connect", error))?;
            let connection = ShmConnection::offer(socket)?;
            Ok(Box::new(connection) as Box<dyn Connection>)
        })
    }

    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Box<dyn Acceptor>, Error>> {
        Box::pin(async move {
            let at = abstract_address(address)?;
            memfd::probe()?;
            let failed = |error| SystemError::new("listen", format!("shm://{address}"), error);
            Ok(Box::new(ShmAcceptor {
                owner: Owner::here(),
                name: address.to_owned(),
                listener: bound(&at).map_err(failed)?,
                any_user: self.any_user,
            }) as Box<dyn Acceptor>)
        })
    }

    fn upgrade_address(&self) -> Option<String> {
        here().ok().and_then(|_| random_name().ok())
    }
}

fn abstract_address(name: &str) -> Result<SockAddr, Error> {
    let bad = |reason: String| Misuse::Address {
        url: format!("shm://{name}"),
        reason,
    };
    if name.is_empty() || name.len() > LONGEST_NAME || name.contains('\0') {
        let reason = format!("a name has 1 to {LONGEST_NAME} bytes and no zero byte");
        return Err(bad(reason).into());
    }
    // The system marks an abstract name by a leading zero byte.
    SockAddr::unix(format!("\0{PREFIX}{name}")).map_err(|error| bad(error.to_string()).into())
}

fn socket() -> io::Result<Socket> {
    Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)
}

fn connected(at: &SockAddr) -> io::Result<UnixStream> {
    let socket = socket()?;
    // Returns at once: refused, backlog full (EAGAIN), or connected.
    socket.connect(at)?;
    UnixStream::from_std(socket.into())
}

fn bound(at: &SockAddr) -> io::Result<UnixListener> {
    let socket = socket()?;
    socket.bind(at)?;
    socket.listen(BACKLOG)?;
    UnixListener::from_std(socket.into())
}

/// Any process may listen at an abstract name: check that it belongs to this user, or to one that may be let in.
fn check_user(socket: &UnixStream, any_user: bool) -> io::Result<()> {
    let (theirs, ours) = (socket.peer_cred()?.uid(), machine::user());
    let is_known = || theirs == ours && machine::knows_users().is_ok();
    let allowed = match (any_user, theirs == ours) {
        (true, _) if !memfd::is_strict() || is_known() => Ok(()),
        (true, _) => Err(format!(
            "the peer may be another user (uid {theirs}), and `vm.overcommit_memory` is 2, or cannot be read: its rings could end this process by a signal"
        )),
        (false, true) => machine::knows_users(),
        (false, false) => Err(format!(
            "the peer runs as uid {theirs}, this process as {ours}"
        )),
    };
    allowed.map_err(|what| io::Error::new(io::ErrorKind::PermissionDenied, what))
}

struct ShmAcceptor {
    owner: Owner,
    name: String,
    listener: UnixListener,
    any_user: bool,
}

impl Acceptor for ShmAcceptor {
    fn address(&self) -> String {
        self.name.clone()
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Box<dyn Connection>, Error>> {
        let at = || format!("shm://{}", self.name);
        if drop_thread::is_kept_from_closing() {
            let error = io::Error::from_raw_os_error(libc::ENOBUFS);
            let what = format!(
                "{}, while connections of other users take long to close",
                at()
            );
            return Poll::Ready(Err(SystemError::new("accept", what, error).into()));
        }
        let accepted = ready!(self.listener.poll_accept(cx));
        let accepted = accepted.map_err(|error| SystemError::new("accept", at(), error));
        // From here on, an error concerns one connection only: others can still be accepted.
        let opened = accepted.and_then(|(socket, _)| {
            let of_one = |call| {
                let object = || format!("a connection to {}", at());
                move |error| SystemError::new(call, object(), error)
            };
            if let Err(error) = check_user(&socket, self.any_user) {
                drop_thread::close_later(socket);
                return Err(of_one("getsockopt")(error));
            }
            ShmConnection::await_offer(socket).map_err(of_one("epoll_ctl"))
        });
        Poll::Ready(match opened {
            Ok(connection) => Ok(Box::new(connection)),
            Err(error) => Err(error.into()),
        })
    }
}

impl Drop for ShmAcceptor {
    /// Nobody connects any more, and who has is let go of: closing the listener would close what they have sent, on this thread. In a forked
    /// child the socket is its parent's, too.
    fn drop(&mut self) {
        if self.owner.is_other_process() {
            return;
        }
        let listener = SockRef::from(&self.listener);
        if listener.shutdown(Shutdown::Read).is_ok() {
            while let Ok((unaccepted, _)) = listener.accept() {
                drop_thread::close_later(unaccepted);
            }
        }
    }
}

/// The process at the other end of a socket.
fn peer(socket: impl AsFd) -> PeerAddr {
    let Ok(peer) = peer::of_socket(socket) else {
        return PeerAddr::Unknown;
    };
    PeerAddr::Process {
        // The kernel gives 0 for a process that is not in this pid namespace.
        pid: u32::try_from(peer.pid).ok().filter(|pid| *pid > 0),
        uid: peer.user,
    }
}

/// The name of a connection by its two ends, for people.
fn ends(peer: &PeerAddr) -> String {
    format!("process {} <-> {}", std::process::id(), called(peer))
}

fn called(peer: &PeerAddr) -> String {
    match peer {
        PeerAddr::Process { pid: Some(pid), .. } => format!("process {pid}"),
        PeerAddr::Process { pid: None, .. } => {
            "a process of another pid namespace (another container)".to_owned()
        }
        _ => "a process that the system does not name".to_owned(),
    }
}

#[cfg(test)]
mod tests;
