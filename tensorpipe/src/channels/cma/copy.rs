//! Copying a tensor out of another process: in pieces, by two threads where that pays, until somebody says stop.

use super::frame::{Refusal, Ticket};
use super::neighbour::Met;
use crate::device::BufferMut;
use crate::stop;
use crate::sync::{Arc, AtomicBool, AtomicUsize, Mutex, Ordering, fence, lock};
use crate::sys::fork::PerProcess;
use crate::sys::process_memory::{Process, Unread};
use crate::sys::processors::Processors;

/// What is read at once, in bytes: between two of them it is looked whether the copy is still wanted.
const PIECE: usize = 2 << 20;

/// From this size on, in bytes, a second thread helps: less is done before it runs.
const TOGETHER: usize = 4 << 20;

/// How reading an operation's memory ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It is all there.
    Read(BufferMut),
    /// It could not be read: the writer has to send it.
    Refused(BufferMut, Refusal),
    /// The writer's process has ended: the pipe's end is behind this.
    Ended,
}

/// Looks at the notice, copies, looks again. `None`: nobody wants it any more.
pub(super) fn fetch(
    met: Result<Arc<Met>, Refusal>,
    ticket: Ticket,
    mut dest: BufferMut,
    cancelled: &AtomicBool,
) -> Option<Outcome> {
    let read = met.map_err(Trouble::Refused);
    let read = read.and_then(|met| read_by(&met, ticket, &mut dest, cancelled));
    if cancelled.load(Ordering::Relaxed) {
        return None;
    }
    Some(match read {
        Ok(()) => Outcome::Read(dest),
        Err(Trouble::Ended) => Outcome::Ended,
        Err(Trouble::Refused(refusal)) => Outcome::Refused(dest, refusal),
    })
}

enum Trouble {
    Refused(Refusal),
    Ended,
}

impl From<Unread> for Trouble {
    fn from(unread: Unread) -> Self {
        match unread {
            Unread::Ended => Self::Ended,
            other => Self::Refused(other.into()),
        }
    }
}

fn read_by(
    met: &Met,
    ticket: Ticket,
    dest: &mut BufferMut,
    cancelled: &AtomicBool,
) -> Result<(), Trouble> {
    let gone = || {
        Trouble::Refused(Refusal {
            reason: "the writer has taken its notice down".to_owned(),
            lasting: false,
        })
    };
    let from = met.look(ticket)?.ok_or_else(gone)?;
    let Some(dest) = dest.as_bytes_mut() else {
        return Err(Trouble::Refused(Refusal {
            reason: "the place for it is not main memory".to_owned(),
            lasting: false,
        }));
    };
    copy(&met.process, from, dest, cancelled)?;
    fence(Ordering::SeqCst);
    met.look(ticket)?.ok_or_else(gone).map(drop)
}

fn copy(
    process: &Process,
    from: u64,
    dest: &mut [u8],
    cancelled: &AtomicBool,
) -> Result<(), Unread> {
    let together = dest.len() >= TOGETHER;
    let pieces = Mutex::new(dest.chunks_mut(PIECE).enumerate());
    let failed = AtomicBool::new(false);
    let work = || {
        while !cancelled.load(Ordering::Relaxed) && !failed.load(Ordering::Relaxed) {
            let Some((i, piece)) = lock(&pieces).next() else {
                break;
            };
            let at = from.checked_add((i * PIECE) as u64);
            let read = at.ok_or(Unread::Unmapped);
            if let Err(unread) = read.and_then(|at| process.read(at, piece)) {
                failed.store(true, Ordering::Relaxed);
                return Err(unread);
            }
            if together {
                stop::at(stop::MEMORY_HALF_READ);
            }
        }
        Ok(())
    };
    let helper = together.then(Helper::hire).flatten();
    if helper.is_none() {
        return work();
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("tensorpipe-cma".to_owned());
        // Where the system has no thread left, this one does it all.
        let theirs = thread.spawn_scoped(scope, work).ok();
        let ours = work();
        let theirs = theirs.map_or(Ok(()), |thread| {
            thread.join().unwrap_or(Err(Unread::Unmapped))
        });
        ours.and(theirs)
    })
}

/// Leave to use one more thread: there are no more of them than other processors.
struct Helper;

struct Helpers {
    /// Of those that this process may use. Looked up once: it takes files of the control group, for every copy too
    /// long.
    processors: usize,
    hired: AtomicUsize,
}

/// Of this process: those of its parent, who are not here, would never be let go.
fn helpers() -> &'static Helpers {
    static HELPERS: PerProcess<Helpers> = PerProcess::new();
    HELPERS.get(|| Helpers {
        processors: usize::from(Processors::here().usable),
        hired: AtomicUsize::new(0),
    })
}

impl Helper {
    fn hire() -> Option<Self> {
        let Helpers { processors, hired } = helpers();
        let one_more = |hired: usize| (hired + 1 < *processors).then_some(hired + 1);
        let more = hired.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        more.ok().map(|_| Self)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        helpers().hired.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A copy under way, as its lane holds it.
#[derive(Debug, Default)]
pub(super) struct Job {
    cancelled: AtomicBool,
    outcome: Mutex<Option<Outcome>>,
}

impl Job {
    /// Does it, on this thread. Returns whether anybody still wants to hear.
    pub(super) fn run(
        self: &Arc<Self>,
        met: Result<Arc<Met>, Refusal>,
        ticket: Ticket,
        dest: BufferMut,
    ) -> bool {
        let outcome = fetch(met, ticket, dest, &self.cancelled);
        let wanted = outcome.is_some();
        *lock(&self.outcome) = outcome;
        wanted
    }

    pub(super) fn take_outcome(&self) -> Option<Outcome> {
        lock(&self.outcome).take()
    }

    /// It stops within a piece.
    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helpers_are_bounded_and_come_back() {
        let processors = usize::from(Processors::here().usable);
        for _ in 0..3 {
            let hired: Vec<_> = std::iter::from_fn(Helper::hire).collect();
            // Other tests may have some.
            assert!(hired.len() < processors);
            assert!(Helper::hire().is_none());
            drop(hired);
            assert!(helpers().hired.load(Ordering::Relaxed) < processors);
        }
    }
}
