//! This process's exchange: a broker for its dealings with other processes of this machine, beside its pipes to them.
//!
//! Over it, the lanes of channel `lease` learn who lends and who borrows, and get descriptors passed; channel `cma` asks there whose memory
//! it reads. There is one exchange for each process (a forked child makes its own). It costs a listening socket under a random name, from
//! when the first peer is told that name until the process ends. From when a lane needs it, it also costs a thread, and one connection for
//! each process that lends or borrows.
//!
//! ```text
//!   ProcessDescriptor ── in device descriptors ──  who can meet, and under which name       process_descriptor.rs
//!   Exchange, its thread ── packets ──       descriptors passed, questions answered   broker.rs, call.rs, packet.rs
//!   Invitation                               which process is at a pipe's other end   invitation.rs
//!   Borrower ── ledger ── Lender             one for each pair of processes           borrower.rs, copies.rs, lender.rs, spans.rs, offer.rs
//! ```
//!
//! Invariant: the kernel says, from the socket, which process the other end is. A peer's descriptor only says which socket to connect to.

mod borrower;
mod broker;
mod call;
mod client;
mod copies;
mod invitation;
mod lender;
mod offer;
mod packet;
mod process_descriptor;
mod spans;

pub(super) use self::borrower::{Borrower, Returned};
pub(super) use self::broker::ANSWER_TIMEOUT;
pub(super) use self::copies::Copies;
pub(super) use self::invitation::{Invitation, Pass};
#[cfg(feature = "cuda")]
pub(super) use self::lender::FETCH_TIMEOUT;
pub(super) use self::lender::{Borrowed, Lender, TakeResult};
pub(super) use self::offer::{OFFER_LEN, Offer};
pub(super) use self::packet::{PACKET_MAX, Packet};
pub(super) use self::process_descriptor::{Access, ProcessDescriptor};
#[cfg(feature = "cuda")]
pub(super) use self::spans::{Passed, Span};

use std::collections::HashMap;
use std::hash::Hash;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::sync::oneshot;

use self::broker::Broker;
use crate::error::SystemError;
use crate::keys::PipeKey;
use crate::process::{Token, process_id};
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, Weak, lock};
use crate::sys::fork::{Owner, PerProcess};
use crate::sys::peer::{Peer, ProcessIdentity};
use crate::sys::segment::SegmentId;
use crate::sys::unix_fds::PacketSocket;
use crate::sys::{machine, peer};

/// The name of the broker's thread: the system shows 15 bytes of it.
const THREAD: &str = "tp-exchange";

/// See the module's documentation.
#[derive(Debug)]
pub(in crate::channels) struct Exchange {
    owner: Owner,
    process: Token,
    name: String,
    /// Why the exchange has no name, in which case no process can connect to it.
    nameless: Option<SystemError>,
    /// What it listens on. The name is told only then: another user's process that knows it could take it before.
    listener: Mutex<Option<Arc<PacketSocket>>>,
    /// Wakes the broker; set once the broker runs.
    eventfd: OnceLock<Arc<EventFd>>,
    opening: Mutex<()>,
    commands: Mutex<Vec<Command>>,
    /// By the value that the peer has to bring.
    invitations: Mutex<HashMap<Token, Weak<Invitation>>>,
    /// By the number, made from a pipe's key, that a process sends when it asks for the export table.
    passes: Mutex<HashMap<Token, Weak<Pass>>>,
    borrowers: Mutex<HashMap<ProcessIdentity, Weak<Borrower>>>,
    /// By the name of their exchange, which belongs to one process only.
    lenders: Mutex<HashMap<String, Weak<Lender>>>,
    /// Address of this process's export table (channel `cma`), for processes of the same user that ask.
    exports: OnceLock<u64>,
    /// Bytes of other processes' segments that are mapped here, and the most that may be.
    mapped: AtomicU64,
    most_mapped: AtomicU64,
}

/// A segment to be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::channels) enum Wanted {
    /// In main memory: it is mapped here.
    Main(SegmentId),
    /// In a device's memory: its descriptor is kept for the channel.
    #[cfg_attr(
        not(feature = "cuda"),
        allow(dead_code, reason = "for devices that are built in")
    )]
    Device(SegmentId),
}

impl Wanted {
    fn id(self) -> SegmentId {
        match self {
            Self::Main(id) | Self::Device(id) => id,
        }
    }
}

/// What lanes ask of the broker.
#[derive(Debug)]
enum Command {
    /// Bring an invitation to a lender and map a segment of that lender's; report the result through `tell`.
    Fetch {
        lender: Arc<Lender>,
        invitation: Token,
        segment: Option<Wanted>,
        tell: oneshot::Sender<Result<(), LendError>>,
    },
    /// Tell a borrower that a segment is gone.
    Retire {
        borrower: Arc<Borrower>,
        segment: SegmentId,
    },
    /// A borrower now has copies: after a while, check whether they are still used.
    Tidy,
    /// Close the connection to the lender with this id: nothing of it is borrowed any more.
    Leave(u64),
}

impl Exchange {
    /// This process's.
    pub(in crate::channels) fn here() -> Arc<Self> {
        static HERE: PerProcess<Arc<Exchange>> = PerProcess::new();
        HERE.get(|| Arc::new(Self::new())).clone()
    }

    fn new() -> Self {
        let known =
            process_id().and_then(|process| Ok((process, process_descriptor::exchange_name()?)));
        let nameless = known.as_ref().err().cloned();
        let (process, name) = known.unwrap_or_default();
        Self {
            owner: Owner::here(),
            process,
            name,
            nameless,
            listener: Mutex::default(),
            eventfd: OnceLock::new(),
            opening: Mutex::default(),
            commands: Mutex::default(),
            invitations: Mutex::default(),
            passes: Mutex::default(),
            borrowers: Mutex::default(),
            lenders: Mutex::default(),
            exports: OnceLock::new(),
            mapped: AtomicU64::new(0),
            most_mapped: AtomicU64::new(0),
        }
    }

    pub(in crate::channels) fn process(&self) -> Token {
        self.process
    }

    pub(in crate::channels) fn name(&self) -> &str {
        &self.name
    }

    /// Listens unless it does. From then on nobody else can take the name.
    fn listen(&self) -> Result<Arc<PacketSocket>, SystemError> {
        if let Some(error) = &self.nameless {
            return Err(error.clone());
        }
        let mut listener = lock(&self.listener);
        if let Some(listener) = &*listener {
            return Ok(listener.clone());
        }
        // Without the name, which this may tell.
        let refused = |errno: Errno| SystemError::new("listen", "the exchange", errno.into());
        let made = Arc::new(PacketSocket::listen(&self.name).map_err(refused)?);
        *listener = Some(made.clone());
        Ok(made)
    }

    /// Starts the broker unless it runs. If that fails, the next caller tries again.
    pub(in crate::channels) fn open(self: &Arc<Self>) -> Result<(), SystemError> {
        if self.eventfd.get().is_some() {
            return Ok(());
        }
        let listener = self.listen()?;
        let _opening = lock(&self.opening);
        if self.eventfd.get().is_some() {
            return Ok(());
        }
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let eventfd = EventFd::from_value_and_flags(0, flags);
        let eventfd = eventfd
            .map_err(|errno| SystemError::new("eventfd", "of the exchange", errno.into()))?;
        let eventfd = Arc::new(eventfd);
        let broker = Broker::new(self.clone(), listener, eventfd.clone());
        let broker = broker.map_err(|error| SystemError::new("dup", "eventfd", error))?;
        let thread = std::thread::Builder::new().name(THREAD.to_owned());
        let started = thread.spawn(move || broker.work());
        started.map_err(|error| SystemError::new("clone", "the thread of the exchange", error))?;
        let _ = self.eventfd.set(eventfd);
        Ok(())
    }

    /// Queues a command for the broker. Does nothing if the broker never ran, or in a forked child, whose eventfd is the parent's.
    fn ask(&self, command: Command) {
        if self.owner.is_other_process() {
            return;
        }
        let Some(eventfd) = self.eventfd.get() else {
            return;
        };
        lock(&self.commands).push(command);
        // Fails only if the eventfd was written 2^64 times.
        let _ = eventfd.write(1);
    }

    fn take_commands(&self) -> Vec<Command> {
        std::mem::take(&mut lock(&self.commands))
    }

    /// Lets the exchange tell processes that ask that channel `cma` has its export table at this address.
    pub(in crate::channels) fn publish_exports(&self, address: u64) {
        let _ = self.exports.set(address);
    }

    fn exports(&self) -> Option<u64> {
        self.exports.get().copied()
    }

    /// A context may borrow so many bytes. The process may map as much as its most generous context allows.
    pub(in crate::channels) fn raise_map_limit(&self, bytes: u64) {
        self.most_mapped.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Counts a segment of another process; if the limit is reached, says so in words.
    fn count_mapped(&self, bytes: u64) -> Result<(), String> {
        let most = self.most_mapped.load(Ordering::Relaxed);
        let more = |now: u64| now.checked_add(bytes).filter(|now| *now <= most);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let counted = self.mapped.fetch_update(set, fetch, more);
        let full = |mapped| {
            format!(
                "{mapped} bytes of other processes are mapped, and {bytes} more would be over {most}"
            )
        };
        counted.map_err(full).map(|_| ())
    }

    fn uncount_mapped(&self, bytes: u64) {
        self.mapped.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// An invitation, for a lane that has something to lend, on a pipe with this key.
    ///
    /// # Errors
    /// If the broker cannot be started: then no peer could come.
    pub(in crate::channels) fn invite(
        self: &Arc<Self>,
        key: Option<&PipeKey>,
    ) -> Result<Arc<Invitation>, LendError> {
        self.open()?;
        Ok(Invitation::new(self, key)?)
    }

    /// A pass, for a lane whose memory its peer reads, on a pipe with this key.
    pub(in crate::channels) fn issue_pass(&self, key: &PipeKey) -> Arc<Pass> {
        let number = key.pass(&self.name);
        entry(&mut lock(&self.passes), number, || Pass::new(number))
    }

    /// Whether `to` means this process: it is its id, or a number from the key of one of its pipes.
    fn is_meant(&self, to: &Token) -> bool {
        *to == self.process || lock(&self.passes).contains_key(to)
    }

    fn invitation(&self, number: Token) -> Option<Arc<Invitation>> {
        lock(&self.invitations).get(&number)?.upgrade()
    }

    /// The borrower for a process that the kernel has identified, with its pidfd.
    fn borrower(self: &Arc<Self>, who: ProcessIdentity, process: &Arc<OwnedFd>) -> Arc<Borrower> {
        let make = || Borrower::new(self, process.clone());
        let mut borrowers = lock(&self.borrowers);
        if let Some(known) = borrowers.get(&who).and_then(Weak::upgrade)
            && known.has_ended()
        {
            // The process executes another program. Or, before Linux 6.9: a later process has the same pid.
            borrowers.remove(&who);
        }
        entry(&mut borrowers, who, make)
    }

    /// The process with this pid, if it borrows. The caller has the pid from the kernel.
    pub(in crate::channels) fn known_borrower(&self, pid: u32) -> Option<Arc<Borrower>> {
        let borrowers = lock(&self.borrowers);
        let known = borrowers.iter().find(|(who, _)| who.is(pid))?.1.upgrade();
        known.filter(|known| !known.has_ended())
    }

    /// The lender whose exchange has this name.
    pub(in crate::channels) fn lender(self: &Arc<Self>, name: &str) -> Arc<Lender> {
        let make = || Lender::new(name, self);
        entry(&mut lock(&self.lenders), name.to_owned(), make)
    }
}

/// Why another process's exchange cannot be reached.
#[derive(Debug)]
pub(in crate::channels) enum ExchangeError {
    /// It does not listen, or this machine is out of resources: a later attempt may succeed.
    Absent(Errno),
    /// Its name belongs to another user's process, or to one that the kernel does not identify.
    Untrusted(String),
}

/// Connects to the exchange of another process of this user. The kernel says which process answers.
pub(in crate::channels) fn connect(name: &str) -> Result<(PacketSocket, Peer), ExchangeError> {
    let socket = PacketSocket::connect(name).map_err(ExchangeError::Absent)?;
    let who =
        peer::of_socket(&socket).map_err(|error| ExchangeError::Untrusted(error.to_string()))?;
    if who.user != machine::user() {
        let user = who.user;
        return Err(ExchangeError::Untrusted(format!(
            "the peer's exchange is one of user {user}"
        )));
    }
    Ok((socket, who))
}

/// Why nothing was lent.
#[derive(Clone, Debug)]
pub(in crate::channels) struct LendError {
    pub(in crate::channels) reason: String,
    /// Later attempts would fail as well.
    pub(in crate::channels) lasting: bool,
}

impl LendError {
    /// The next attempt may succeed.
    fn now(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            lasting: false,
        }
    }
}

impl From<SystemError> for LendError {
    fn from(error: SystemError) -> Self {
        Self {
            reason: error.to_string(),
            lasting: error.is_lasting(),
        }
    }
}

impl From<ExchangeError> for LendError {
    fn from(unmet: ExchangeError) -> Self {
        Self {
            reason: unmet.to_string(),
            lasting: matches!(unmet, ExchangeError::Untrusted(_)),
        }
    }
}

impl std::fmt::Display for ExchangeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Absent(errno) => write!(f, "the peer's exchange: {errno}"),
            Self::Untrusted(reason) => f.write_str(reason),
        }
    }
}

fn entry<K: Eq + Hash, T>(
    all: &mut HashMap<K, Weak<T>>,
    key: K,
    make: impl FnOnce() -> T,
) -> Arc<T> {
    if let Some(known) = all.get(&key).and_then(Weak::upgrade) {
        return known;
    }
    all.retain(|_, known| known.strong_count() > 0);
    let made = Arc::new(make());
    all.insert(key, Arc::downgrade(&made));
    made
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fork::tests::children_can;

    #[test]
    fn a_forked_child_has_its_own() {
        let here = Exchange::here();
        assert!(Arc::ptr_eq(&here, &Exchange::here()));
        assert!(children_can(|| drop(Exchange::here())));
    }
}
