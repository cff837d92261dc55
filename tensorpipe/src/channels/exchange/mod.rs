//! This process's exchange: what it has with other processes of this machine, beside its pipes to them.
//!
//! Channel `lease` meets there those who lend and borrow, and has descriptors passed; channel `cma` asks there whose memory it reads. There
//! is one exchange for each process (a forked child makes its own). It costs nothing until one of them needs it. Then it costs a thread, a
//! listening socket under a random name, and one connection for each process on either side, for as long as the process runs.
//!
//! ```text
//!   ProcessDescriptor ── in device descriptors ──  who can meet, and under which name       process_descriptor.rs
//!   Exchange, its thread ── packets ──       descriptors passed, questions answered   broker.rs, call.rs, packet.rs
//!   Invitation                               which process is at a pipe's other end   invitation.rs
//!   Borrower ── ledger ── Lender             one for each pair of processes           borrower.rs, copies.rs, lender.rs, spans.rs, offer.rs
//! ```
//!
//! Invariant: who the other is, is what the kernel says about the socket. A peer's descriptor only says where to go.

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
#[cfg(feature = "cuda")]
pub(super) use self::lender::{Debt, Owing};
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

/// The name of its thread: the system shows 15 bytes of it.
const THREAD: &str = "tp-exchange";

/// See the module's documentation.
#[derive(Debug)]
pub(in crate::channels) struct Exchange {
    owner: Owner,
    process: Token,
    name: String,
    /// Why it has no name, so that nobody comes here.
    nameless: Option<SystemError>,
    /// Wakes the broker; there once it runs.
    eventfd: OnceLock<Arc<EventFd>>,
    opening: Mutex<()>,
    commands: Mutex<Vec<Command>>,
    /// By number.
    invitations: Mutex<HashMap<Token, Weak<Invitation>>>,
    /// By which processes ask that have the key of a pipe.
    passes: Mutex<HashMap<Token, Weak<Pass>>>,
    borrowers: Mutex<HashMap<ProcessIdentity, Weak<Borrower>>>,
    /// By the name of their exchange, which only one process can have.
    lenders: Mutex<HashMap<String, Weak<Lender>>>,
    /// Where this process says what there is to read, for those of the same user who ask.
    exports: OnceLock<u64>,
    /// Bytes of other processes' segments that are mapped here, and how many may be.
    mapped: AtomicU64,
    most_mapped: AtomicU64,
}

/// A segment that is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::channels) enum Wanted {
    /// Of main memory: it is mapped.
    Main(SegmentId),
    /// Of a device's: its descriptor is kept for the channel.
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

/// What the broker is asked to do.
#[derive(Debug)]
enum Command {
    /// Bring an invitation to a lender, and get a segment of its mapped; tell how it went.
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
    /// Copies are made for a borrower: look after a while whether they still are.
    Tidy,
    /// Close the connection of the lender with this id: nothing of it is borrowed any more.
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

    /// Starts the broker, if it does not run. Tried again by the next who needs it.
    pub(in crate::channels) fn open(self: &Arc<Self>) -> Result<(), SystemError> {
        if self.eventfd.get().is_some() {
            return Ok(());
        }
        if let Some(error) = &self.nameless {
            return Err(error.clone());
        }
        let _opening = lock(&self.opening);
        if self.eventfd.get().is_some() {
            return Ok(());
        }
        let refused = |call, errno: Errno| SystemError::new(call, self.name.as_str(), errno.into());
        let listener =
            PacketSocket::listen(&self.name).map_err(|errno| refused("listen", errno))?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let eventfd = EventFd::from_value_and_flags(0, flags);
        let eventfd = Arc::new(eventfd.map_err(|errno| refused("eventfd", errno))?);
        let broker = Broker::new(self.clone(), listener, eventfd.clone());
        let broker = broker.map_err(|error| SystemError::new("dup", "eventfd", error))?;
        let thread = std::thread::Builder::new().name(THREAD.to_owned());
        let started = thread.spawn(move || broker.work());
        started.map_err(|error| SystemError::new("clone", "the thread of the exchange", error))?;
        let _ = self.eventfd.set(eventfd);
        Ok(())
    }

    /// Asks the broker, who must run or has nothing to do with it; not from a forked child, whose eventfd is its parent's.
    fn ask(&self, command: Command) {
        if self.owner.is_other_process() {
            return;
        }
        let Some(eventfd) = self.eventfd.get() else {
            return;
        };
        lock(&self.commands).push(command);
        // Full only if it was rung 2^64 times.
        let _ = eventfd.write(1);
    }

    fn take_commands(&self) -> Vec<Command> {
        std::mem::take(&mut lock(&self.commands))
    }

    /// Tells whoever asks that channel `cma` has its export table at this address.
    pub(in crate::channels) fn publish_exports(&self, address: u64) {
        let _ = self.exports.set(address);
    }

    fn exports(&self) -> Option<u64> {
        self.exports.get().copied()
    }

    /// A context may borrow so many bytes: all of them together as many as the one that may borrow most.
    pub(in crate::channels) fn may_map(&self, bytes: u64) {
        self.most_mapped.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Counts a segment of another process; in words why not.
    fn maps(&self, bytes: u64) -> Result<(), String> {
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

    fn unmaps(&self, bytes: u64) {
        self.mapped.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// For a lane that has something to lend, of a pipe with this key.
    ///
    /// # Errors
    /// Where the broker cannot be started: nobody could come.
    pub(in crate::channels) fn invite(
        self: &Arc<Self>,
        key: Option<&PipeKey>,
    ) -> Result<Arc<Invitation>, LendError> {
        self.open()?;
        Ok(Invitation::new(self, key)?)
    }

    /// For a lane whose memory is read, of a pipe with this key.
    pub(in crate::channels) fn lets_pass(&self, key: &PipeKey) -> Arc<Pass> {
        let number = key.pass(&self.name);
        entry(&mut lock(&self.passes), number, || Pass::new(number))
    }

    /// Whether this process is meant, by its id or by the key of a pipe that it is at the end of.
    fn is_meant(&self, to: &Token) -> bool {
        *to == self.process || lock(&self.passes).contains_key(to)
    }

    fn invitation(&self, number: Token) -> Option<Arc<Invitation>> {
        lock(&self.invitations).get(&number)?.upgrade()
    }

    /// A process to lend to, as the kernel knows it; with its pidfd.
    fn borrower(self: &Arc<Self>, who: ProcessIdentity, process: &Arc<OwnedFd>) -> Arc<Borrower> {
        let make = || Borrower::new(self, process.clone());
        let mut borrowers = lock(&self.borrowers);
        if let Some(known) = borrowers.get(&who).and_then(Weak::upgrade)
            && known.has_ended()
        {
            // Before Linux 6.9 a later process of the same number looks the same.
            borrowers.remove(&who);
        }
        entry(&mut borrowers, who, make)
    }

    /// The process with this number, if it borrows: who asks has the number from the kernel.
    pub(in crate::channels) fn known_borrower(&self, pid: u32) -> Option<Arc<Borrower>> {
        let borrowers = lock(&self.borrowers);
        let known = borrowers.iter().find(|(who, _)| who.is(pid))?.1.upgrade();
        known.filter(|known| !known.has_ended())
    }

    /// A process that lends, whose exchange has this name.
    pub(in crate::channels) fn lender(self: &Arc<Self>, name: &str) -> Arc<Lender> {
        let make = || Lender::new(name, self);
        entry(&mut lock(&self.lenders), name.to_owned(), make)
    }
}

/// Why another process's exchange is not to be had.
#[derive(Debug)]
pub(in crate::channels) enum ExchangeError {
    /// It is not there, or this machine has no more to give: later it may be better.
    Absent(Errno),
    /// Whoever has its name is somebody else.
    Untrusted(String),
}

/// Connects to the exchange of another process of this user; which one it is, the kernel says.
pub(in crate::channels) fn meet(name: &str) -> Result<(PacketSocket, Peer), ExchangeError> {
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
    /// Later attempts are no better.
    pub(in crate::channels) lasting: bool,
}

impl LendError {
    /// Perhaps the next time.
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
