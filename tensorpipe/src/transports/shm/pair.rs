//! The large rings between this process and another one, for what this one writes.
//!
//! A connection borrows one for a transfer, and gives it back. They are
//! kept warm: the first bytes through fresh memory are the slow ones. Invariant: a large ring belongs to two processes,
//! is lent to one of their connections at a time, and to the next one only when all that was written to it has been
//! read.
//!
//! A connection that falls asleep cannot see when that is. So it leaves a note here; whoever finds all of them lent
//! wakes those of which all has been read, and gets one the next time.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use tokio::time::Instant;

use super::wakers::Wakers;
use crate::ring::{self, Mapped};
use crate::sync::{Arc, Mutex, Weak, lock};
use crate::sys::fork::PerProcess;
use crate::sys::memfd::Mapping;
use crate::sys::peer::Peer;

/// Bytes of a large ring: what a transfer takes of it whose reader is away. Where the reader came by every 100 µs, a
/// message of 16 MiB took 30 ms through 64 KiB, 8.1 through 256 KiB, 4.4 through 512 KiB and 2.5 through 1 MiB.
pub(super) const LARGE: usize = 1 << 20;

/// What a transfer takes of it whose reader keeps up. As fast as with more where a processor has 1 or 2 MiB of
/// second-level cache, out of which a larger one drives what is written before it is read.
pub(super) const MEDIUM: usize = 256 << 10;

/// So many transfers at once; others use their small rings.
const MOST: usize = 4;

/// After so long unused its memory goes back to the system, when one of its connections looks, which they do as often.
pub(super) const IDLE: Duration = Duration::from_secs(10);

/// See the module's documentation. It goes with the last connection between the two.
#[derive(Debug, Default)]
pub(super) struct Pair(Mutex<Shelf>);

#[derive(Debug, Default)]
struct Shelf {
    /// The one used last is the last one.
    free: Vec<(Arc<Large>, Instant)>,
    /// By the number of its loan, and the note of a borrower that sleeps.
    lent: Vec<(u64, Option<Idle>)>,
    loans: u64,
    /// When the system last had no memory, or no descriptor, for one.
    failed: Option<Instant>,
}

/// A large ring.
#[derive(Debug)]
pub(super) struct Large {
    pub(super) memory: Arc<Mapping>,
    fd: OwnedFd,
}

/// What a borrower leaves when it falls asleep.
#[derive(Debug)]
struct Idle {
    ring: Mapped,
    /// Bytes written to the ring so far.
    written: u64,
    /// The connection's: whoever it wakes has the connection, and that this.
    wakers: Weak<Wakers>,
}

/// A large ring that is borrowed. Dropped instead of given back it is not lent again: its bytes may not have been read.
#[derive(Debug)]
pub(super) struct Loan {
    pair: Arc<Pair>,
    number: u64,
    large: Option<Arc<Large>>,
}

impl Pair {
    /// That of this process and another one, which says that it is `reader`. The kernel names who made the socket, which is
    /// not who reads where several processes accept at one that they have inherited: what one of them may still read must
    /// not be lent to the next.
    pub(super) fn with(peer: &Peer, reader: [u64; 2]) -> Arc<Self> {
        type Pairs = HashMap<(i32, u32, [u64; 2]), Weak<Pair>>;
        // A forked child has nothing in common with whom its parent talks to.
        static PAIRS: PerProcess<Mutex<Pairs>> = PerProcess::new();
        if peer.pid <= 0 {
            // Whoever cannot be told from others shares with nobody.
            return Arc::default();
        }
        let key = (peer.pid, peer.user, reader);
        let mut pairs = lock(PAIRS.get(Mutex::default));
        if let Some(known) = pairs.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        pairs.retain(|_, pair| pair.strong_count() > 0);
        let pair = Arc::default();
        pairs.insert(key, Arc::downgrade(&pair));
        pair
    }

    /// Lends one, if it can be that one; `None` if too many are lent, or the system has none. Those that are lent to no
    /// purpose come back soon.
    pub(super) fn borrow(self: &Arc<Self>, wanted: &Weak<Large>) -> Option<Loan> {
        let mut shelf = lock(&self.0);
        let is_wanted = |(large, _): &(Arc<Large>, _)| Arc::as_ptr(large) == wanted.as_ptr();
        let at = shelf.free.iter().position(is_wanted);
        let found = match at {
            Some(at) => Some(shelf.free.remove(at)),
            None => shelf.free.pop(),
        };
        if found.is_none() && shelf.lent.len() >= MOST {
            let idle = shelf.idle();
            drop(shelf);
            idle.iter().for_each(|wakers| wakers.wake_both());
            return None;
        }
        if found.is_none() && shelf.failed.is_some_and(is_recent) {
            return None;
        }
        shelf.loans += 1;
        let number = shelf.loans;
        shelf.lent.push((number, None));
        drop(shelf);
        let mut loan = Loan {
            pair: self.clone(),
            number,
            large: None,
        };
        loan.large = match found {
            Some((large, _)) => Some(large),
            None => Some(Arc::new(self.create()?)),
        };
        Some(loan)
    }

    fn create(&self) -> Option<Large> {
        match ring::create_place(LARGE) {
            Ok((memory, fd)) => Some(Large {
                memory: Arc::new(memory),
                fd,
            }),
            Err(error) => {
                tracing::debug!(%error, "a transfer goes through a small ring");
                lock(&self.0).failed = Some(Instant::now());
                None
            }
        }
    }

    /// Lets go of those that nobody has used for long.
    pub(super) fn tidy(&self) {
        let mut shelf = lock(&self.0);
        let (free, old) = std::mem::take(&mut shelf.free)
            .into_iter()
            .partition(|(_, since)| is_recent(*since));
        shelf.free = free;
        drop(shelf);
        // System calls, without the lock.
        drop::<Vec<_>>(old);
    }
}

impl Shelf {
    /// Borrowers that sleep beside a large ring of which all has been read. Each of them once, until it falls asleep
    /// again.
    fn idle(&mut self) -> Vec<Arc<Wakers>> {
        let notes = self.lent.iter_mut().map(|(_, note)| note);
        let idle = notes.filter_map(|note| note.take_if(|idle| idle.ring.is_read_to(idle.written)));
        idle.filter_map(|idle| idle.wakers.upgrade()).collect()
    }
}

fn is_recent(since: Instant) -> bool {
    since.elapsed() < IDLE
}

impl Large {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Loan {
    pub(super) fn large(&self) -> Option<&Arc<Large>> {
        self.large.as_ref()
    }

    /// Its borrower has written so far to `ring`, falls asleep, and is woken by `wakers`.
    pub(super) fn falls_asleep(&self, ring: Mapped, written: u64, wakers: Weak<Wakers>) {
        let idle = Idle {
            ring,
            written,
            wakers,
        };
        let mut shelf = lock(&self.pair.0);
        let mut lent = shelf.lent.iter_mut();
        let before = lent
            .find(|(number, _)| *number == self.number)
            .and_then(|(_, note)| note.replace(idle));
        drop(shelf);
        drop(before);
    }

    /// Everything in it has been read.
    pub(super) fn give_back(mut self) {
        if let Some(large) = self.large.take_if(|large| large.memory.is_here()) {
            let mut shelf = lock(&self.pair.0);
            shelf.free.push((large, Instant::now()));
        }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        // In a forked child the lock may be held by a thread that is not here.
        if self
            .large
            .as_ref()
            .is_none_or(|large| large.memory.is_here())
        {
            let mut shelf = lock(&self.pair.0);
            let at = shelf.lent.iter().position(|(lent, _)| *lent == self.number);
            let note = at.map(|at| shelf.lent.swap_remove(at));
            drop(shelf);
            drop(note);
        }
    }
}

#[cfg(test)]
impl Pair {
    /// How many are lent, and how many are kept for the next one.
    pub(super) fn count(&self) -> (usize, usize) {
        let shelf = lock(&self.0);
        (shelf.lent.len(), shelf.free.len())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::sys::peer;

    #[test]
    fn connections_between_the_same_two_processes_share_a_few_large_rings() {
        let (one, two) = UnixStream::pair().unwrap();
        let with = |socket, reader| Pair::with(&peer::of_socket(socket).unwrap(), reader);
        let pair = with(&one, [1, 2]);
        assert!(
            Arc::ptr_eq(&pair, &with(&two, [1, 2])),
            "both ends are here"
        );
        let forked = with(&one, [1, 3]);
        assert!(
            !Arc::ptr_eq(&pair, &forked),
            "another process with its socket"
        );
        // Other tests may have borrowed from that one.
        let pair = Arc::<Pair>::default();
        let loans: Vec<_> = std::iter::from_fn(|| pair.borrow(&Weak::new())).collect();
        assert_eq!(loans.len(), MOST);
        let all: Vec<_> = loans
            .iter()
            .map(|loan| loan.large().cloned().unwrap())
            .collect();
        loans.into_iter().for_each(Loan::give_back);
        let wanted = Arc::downgrade(&all[1]);
        let loan = pair.borrow(&wanted).unwrap();
        assert!(
            Arc::ptr_eq(loan.large().unwrap(), &all[1]),
            "the one it had before"
        );
        let other = pair.borrow(&wanted).unwrap();
        assert!(
            !Arc::ptr_eq(other.large().unwrap(), &all[1]),
            "lent once at a time"
        );
    }

    #[test]
    fn one_that_was_not_read_to_its_end_is_not_lent_again() {
        let pair = Arc::<Pair>::default();
        let loan = pair.borrow(&Weak::new()).unwrap();
        let large = Arc::downgrade(loan.large().unwrap());
        drop(loan);
        assert_eq!(large.strong_count(), 0);
        assert_eq!(pair.count(), (0, 0));
    }

    #[test]
    fn unused_memory_goes_back_to_the_system() {
        let pair = Arc::<Pair>::default();
        pair.borrow(&Weak::new()).unwrap().give_back();
        pair.tidy();
        let mut shelf = lock(&pair.0);
        assert_eq!(shelf.free.len(), 1, "it was used a moment ago");
        let Some(long_ago) = Instant::now().checked_sub(IDLE) else {
            return;
        };
        shelf.free[0].1 = long_ago;
        drop(shelf);
        pair.tidy();
        assert_eq!(pair.count(), (0, 0));
    }
}
