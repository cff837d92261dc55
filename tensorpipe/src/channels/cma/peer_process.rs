//! A process whose memory is read here. It is met once, at its exchange, where the kernel says which process it is.
//!
//! One thread meets it; others that need the result wait asynchronously. A failed meeting is not retried for a while, during which tensors
//! come as bytes.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::pin::pin;
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::exports::SLOT;
use super::frame::{Refusal, Ticket};
use crate::channels::exchange::{self, ANSWER_TIMEOUT, ExchangeError, PACKET_MAX, Packet};
use crate::process::Token;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering, Weak, lock};
use crate::sys::fork::PerProcess;
use crate::sys::process_memory::{self, MemoryReadError, Process};
use crate::sys::unix_fds::PacketSocket;
use crate::sys::workers;

/// See the module's documentation. Lanes hold it.
#[derive(Debug)]
pub(super) struct PeerProcess {
    /// The token by which the peer's exchange knows that it is meant.
    to: Token,
    exchange: String,
    last: Mutex<Option<Meeting>>,
    /// A thread is meeting it.
    is_being_met: AtomicBool,
    /// Wakes everybody who waits for the meeting, on any runtime.
    over: Notify,
}

/// How the last meeting went.
#[derive(Debug)]
struct Meeting {
    result: Result<Arc<PeerMemory>, Refusal>,
    /// When a failure may be retried; `None` for a success or a lasting failure.
    over: Option<Instant>,
}

/// A peer process that was met.
#[derive(Debug)]
pub(super) struct PeerMemory {
    pub(super) process: Process,
    exports: u64,
}

impl PeerProcess {
    /// The process whose exchange has this name and knows this token: its id, or the [`Pass`](exchange::Pass) of a pipe.
    pub(super) fn of(to: Token, exchange: &str) -> Arc<Self> {
        static ALL: PerProcess<Mutex<HashMap<Token, Weak<PeerProcess>>>> = PerProcess::new();
        let mut all = lock(ALL.get(Mutex::default));
        if let Some(known) = all.get(&to).and_then(Weak::upgrade)
            && known.exchange == exchange
        {
            return known;
        }
        all.retain(|_, known| known.strong_count() > 0);
        let made = Arc::new(Self {
            to,
            exchange: exchange.to_owned(),
            last: Mutex::default(),
            is_being_met: AtomicBool::new(false),
            over: Notify::new(),
        });
        all.insert(to, Arc::downgrade(&made));
        made
    }

    /// How the last meeting went; `None` if there was none, or if a failure may be retried.
    pub(super) fn known(&self) -> Option<Result<Arc<PeerMemory>, Refusal>> {
        let last = lock(&self.last);
        let is_over = |over: Instant| over <= Instant::now();
        let last = last.as_ref().filter(|last| !last.over.is_some_and(is_over));
        last.map(|last| last.result.clone())
    }

    /// Meets the process, unless that was done before. Waits a bounded time for its exchange.
    pub(super) async fn connect(self: &Arc<Self>) -> Result<Arc<PeerMemory>, Refusal> {
        let over = self.over.notified();
        let mut over = pin!(over);
        over.as_mut().enable();
        if let Some(known) = self.known() {
            return known;
        }
        if !self.is_being_met.swap(true, Ordering::AcqRel) {
            let turn = Turn(self.clone());
            workers::run(&Handle::current(), move || turn.connect());
        }
        // Longer than the exchange may take to answer: the runtime may have no thread free for the meeting.
        let _ = tokio::time::timeout(2 * ANSWER_TIMEOUT, over).await;
        self.known().unwrap_or_else(|| {
            Err(Refusal {
                reason: "no thread was free to meet the writer's exchange".to_owned(),
                lasting: false,
            })
        })
    }

    fn introduce(&self) -> Result<PeerMemory, Refusal> {
        let now = |errno: Errno| Refusal {
            reason: format!("the writer's exchange: {errno}"),
            lasting: false,
        };
        let (socket, _) = exchange::connect(&self.exchange).map_err(|unmet| Refusal {
            reason: unmet.to_string(),
            lasting: matches!(unmet, ExchangeError::Untrusted(_)),
        })?;
        let process = Process::behind(&socket).map_err(|error| Refusal {
            lasting: error.is_lasting(),
            reason: error.to_string(),
        })?;
        let ask = Packet::Where { to: self.to };
        socket.send(&ask.encode(), None).map_err(now)?;
        let mut bytes = [0; PACKET_MAX];
        let Some(len) = answer(&socket, &mut bytes).map_err(now)? else {
            // It may be stopped, or its machine busy.
            return Err(Refusal {
                reason: format!("the writer's exchange says nothing for {ANSWER_TIMEOUT:?}"),
                lasting: false,
            });
        };
        // The process has answered, and the pidfd is older than the answer, so the pidfd is of that process.
        match Packet::decode(&bytes[..len]) {
            Some(Packet::Here(exports)) => Ok(PeerMemory { process, exports }),
            _ => Err(Refusal {
                reason: "the writer's exchange makes no sense".to_owned(),
                lasting: true,
            }),
        }
    }
}

/// The right to meet a peer process. Dropping it wakes everybody who waits, also when a runtime shuts down.
struct Turn(Arc<PeerProcess>);

impl Turn {
    fn connect(self) {
        if self.0.known().is_some() {
            return;
        }
        let result = self.0.introduce().map(Arc::new);
        let passes = matches!(&result, Err(refusal) if !refusal.lasting);
        *lock(&self.0.last) = Some(Meeting {
            result,
            over: passes.then(|| Instant::now() + ANSWER_TIMEOUT),
        });
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.is_being_met.store(false, Ordering::Release);
        self.0.over.notify_waiters();
    }
}

/// Waits for an answer. `None`: it did not come in time.
fn answer(socket: &PacketSocket, bytes: &mut [u8]) -> Result<Option<usize>, Errno> {
    let until = Instant::now() + ANSWER_TIMEOUT;
    loop {
        match socket.recv(bytes) {
            Err(Errno::EAGAIN) => {}
            Err(errno) => return Err(errno),
            Ok(received) if received.len == 0 => return Err(Errno::ECONNRESET),
            Ok(received) => return Ok(Some(received.len)),
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let millis = u16::try_from(left.as_millis() + 1).unwrap_or(u16::MAX);
        let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::from(millis)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

impl PeerMemory {
    /// Address of an export's memory; `None` if the export is not in the table (any more).
    pub(super) fn read_export(&self, ticket: Ticket) -> Result<Option<u64>, MemoryReadError> {
        let at = u64::from(ticket.slot) * SLOT as u64;
        let at = self
            .exports
            .checked_add(at)
            .ok_or(MemoryReadError::Unmapped)?;
        let mut slot = [0; SLOT];
        self.process.read(at, &mut slot)?;
        let mut words = slot.as_chunks::<8>().0.iter().copied();
        let mut word = || words.next().map_or(0, u64::from_le_bytes);
        let (number, address, len) = (word(), word(), word());
        Ok((number == ticket.number && len == ticket.len).then_some(address))
    }
}

impl From<MemoryReadError> for Refusal {
    fn from(unread: MemoryReadError) -> Self {
        let (reason, lasting) = match unread {
            MemoryReadError::Ended => ("the writer's process has ended".to_owned(), false),
            MemoryReadError::Unmapped => {
                let reason = "the writer's memory cannot be read from outside its process";
                (reason.to_owned(), false)
            }
            MemoryReadError::Denied(errno) => {
                let lasting = matches!(
                    errno,
                    Errno::EPERM | Errno::ENOSYS | Errno::EACCES | Errno::ESRCH
                );
                (process_memory::why(errno), lasting)
            }
        };
        Self { reason, lasting }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fork::tests::children_can;

    #[test]
    fn a_forked_child_knows_nobody() {
        let known = PeerProcess::of([7; 16], "an exchange");
        assert!(Arc::ptr_eq(
            &known,
            &PeerProcess::of([7; 16], "an exchange")
        ));
        assert!(children_can(|| drop(PeerProcess::of(
            [7; 16],
            "an exchange"
        ))));
    }
}
