//! Copies a tensor out of another process. The thread that drives the pipe copies in pieces, or two threads share a large copy. Either can
//! be cancelled.

use super::frame::{Refusal, Ticket};
use super::peer_process::PeerMemory;
use super::{LaneHandle, LaneIo, OpId};
use crate::device::{BufferMut, Destination, Pool};
use crate::error::{Error, SystemError};
use crate::pipe::Work;
use crate::stop;
use crate::sync::{Arc, AtomicBool, AtomicUsize, Mutex, Ordering, fence, lock};
use crate::sys::fork::PerProcess;
use crate::sys::process_memory::{MemoryReadError, Process};
use crate::sys::processors::Processors;

/// Bytes that are read at once: some tens of microseconds. Between two pieces, the copy checks whether it is still wanted, and lets other
/// work run.
const PIECE: usize = 256 << 10;

/// From this size on, in bytes, a second thread helps if a processor is left for it. A smaller copy is done before the thread would start.
const SHARED_FROM: usize = 4 << 20;

/// How reading an operation's memory ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It is all there.
    Read(BufferMut),
    /// It could not be read: the writer has to send it. The place for it takes no memory of the pool's.
    Refused(Destination, Refusal),
    /// There is no memory for it.
    Failed(Error),
    /// The writer's process has ended: the end of the pipe follows.
    Ended,
}

/// A read under way: reads the export, copies, reads the export again, and checks that it was the same process all the while.
#[derive(Debug)]
pub(super) struct Reading {
    met: Arc<PeerMemory>,
    ticket: Ticket,
    dest: Destination,
    pool: Pool,
    /// Bytes that the budget counts for the place.
    counted: u64,
    /// Where it lies, once that is known.
    from: Option<u64>,
    /// How much of it is here.
    done: usize,
}

#[derive(Debug)]
enum CopyError {
    Refused(Refusal),
    NoMemory(SystemError),
    Ended,
}

impl From<MemoryReadError> for CopyError {
    fn from(unread: MemoryReadError) -> Self {
        match unread {
            MemoryReadError::Ended => Self::Ended,
            other => Self::Refused(other.into()),
        }
    }
}

impl Reading {
    pub(super) fn new(met: Arc<PeerMemory>, ticket: Ticket, dest: Destination, pool: Pool) -> Self {
        Self {
            met,
            ticket,
            dest,
            pool,
            counted: 0,
            from: None,
            done: 0,
        }
    }

    /// Reads the export, and takes memory. What the writer only claims to export takes none. Returns the bytes that become resident, to
    /// be counted before the first step.
    fn open(&mut self) -> Result<u64, CopyError> {
        self.from = Some(read_export(&self.met, self.ticket)?);
        let cost = self.dest.cost(0..self.dest.len(), &self.pool);
        let cost = cost.map_err(CopyError::NoMemory)?;
        let opened = self.dest.open(&self.pool);
        opened.map_err(CopyError::NoMemory)?;
        self.counted = cost;
        Ok(cost)
    }

    /// Gives memory of the pool's back; returns how much of it was counted.
    fn close(&mut self) -> u64 {
        // Memory of the application's is never counted.
        match self.counted > 0 && self.dest.close() {
            true => std::mem::take(&mut self.counted),
            false => 0,
        }
    }

    /// Reads one more piece; `true`: it was the last one.
    fn step(&mut self) -> Result<bool, CopyError> {
        let at = self
            .from
            .and_then(|from| from.checked_add(self.done as u64));
        let dest = bytes(&mut self.dest)?;
        let len = dest.len();
        let piece = &mut dest[self.done..len.min(self.done + PIECE)];
        self.met
            .process
            .read(at.ok_or(MemoryReadError::Unmapped)?, piece)?;
        self.done += piece.len();
        if self.done < len {
            return Ok(false);
        }
        self.settle().map(|()| true)
    }

    /// All of it, with a second thread.
    fn read_together(&mut self, cancelled: &AtomicBool) -> Result<(), CopyError> {
        let from = self.from.ok_or(MemoryReadError::Unmapped)?;
        let dest = bytes(&mut self.dest)?;
        copy_together(&self.met.process, from, dest, cancelled)?;
        self.settle()
    }

    /// Checks that the copy is valid: the export is still there, and so is the process.
    fn settle(&self) -> Result<(), CopyError> {
        fence(Ordering::SeqCst);
        read_export(&self.met, self.ticket)?;
        Ok(self.met.process.runs()?)
    }

    fn outcome(self, read: Result<(), CopyError>) -> Outcome {
        match read {
            Ok(()) => self
                .dest
                .into_memory()
                .map_or(Outcome::Ended, Outcome::Read),
            Err(CopyError::NoMemory(error)) => Outcome::Failed(Error::OutOfMemory {
                bytes: self.ticket.len,
                reason: error.to_string().into(),
            }),
            Err(CopyError::Ended) => Outcome::Ended,
            Err(CopyError::Refused(refusal)) => Outcome::Refused(self.dest, refusal),
        }
    }
}

fn read_export(met: &PeerMemory, ticket: Ticket) -> Result<u64, CopyError> {
    met.read_export(ticket)?.ok_or_else(|| {
        CopyError::Refused(Refusal {
            reason: "the writer has taken its export down".to_owned(),
            lasting: false,
        })
    })
}

fn bytes(dest: &mut Destination) -> Result<&mut [u8], CopyError> {
    dest.as_bytes_mut().ok_or_else(|| {
        CopyError::Refused(Refusal {
            reason: "the place for it is not main memory".to_owned(),
            lasting: false,
        })
    })
}

/// Copies with a second thread, for which the caller has [permission](Helper).
fn copy_together(
    process: &Process,
    from: u64,
    dest: &mut [u8],
    cancelled: &AtomicBool,
) -> Result<(), MemoryReadError> {
    let pieces = Mutex::new(dest.chunks_mut(PIECE).enumerate());
    let failed = AtomicBool::new(false);
    let work = || {
        while !cancelled.load(Ordering::Relaxed) && !failed.load(Ordering::Relaxed) {
            let Some((i, piece)) = lock(&pieces).next() else {
                break;
            };
            let at = from.checked_add((i * PIECE) as u64);
            let read = at.ok_or(MemoryReadError::Unmapped);
            if let Err(unread) = read.and_then(|at| process.read(at, piece)) {
                failed.store(true, Ordering::Relaxed);
                return Err(unread);
            }
            stop::at(stop::MEMORY_HALF_READ);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("tensorpipe-cma".to_owned());
        // If the system has no thread left, this thread copies everything.
        let theirs = thread.spawn_scoped(scope, work).ok();
        let ours = work();
        let theirs = theirs.map_or(Ok(()), |thread| {
            thread.join().unwrap_or(Err(MemoryReadError::Unmapped))
        });
        ours.and(theirs)
    })
}

/// Permission to use one more thread. There are at most as many as other processors.
struct Helper;

struct Helpers {
    /// Processors that this process may use. Looked up once: reading the control group's files takes too long for every copy.
    processors: usize,
    hired: AtomicUsize,
}

/// Of this process: a forked child would never release its parent's helpers.
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
    pub(super) fn take_outcome(&self) -> Option<Outcome> {
        lock(&self.outcome).take()
    }

    /// It stops within a piece.
    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Stores the outcome, unless the copy was cancelled.
    fn ends(&self, outcome: Outcome) {
        if !self.cancelled.load(Ordering::Relaxed) {
            *lock(&self.outcome) = Some(outcome);
        }
    }
}

/// A copy under way, for the thread that makes it.
pub(super) struct Copy {
    pub(super) op: OpId,
    pub(super) job: Arc<Job>,
    pub(super) handle: LaneHandle,
    /// `None` once it is over.
    pub(super) reading: Option<Reading>,
}

impl Copy {
    /// Starts the copy: on two threads if it is large enough and a processor is left for a helper, else on the thread that drives.
    pub(super) fn start(self, io: &mut LaneIo<'_>) {
        let len = self
            .reading
            .as_ref()
            .map_or(0, |reading| reading.dest.len());
        match (len >= SHARED_FROM).then(Helper::hire).flatten() {
            Some(helper) => self.make_together(helper),
            None => io.work(self.op, self),
        }
    }

    fn make_together(mut self, helper: Helper) {
        let (op, handle) = (self.op, self.handle.clone());
        handle.resume_after(op, move || {
            if let Some(mut reading) = self.reading.take() {
                let opened = self.open(&mut reading);
                let read = opened.and_then(|()| reading.read_together(&self.job.cancelled));
                self.ends(reading, read);
            }
            drop(helper);
        });
    }

    /// Counts the memory that it takes. Where the budget has no room, the message is given up, which cancels the copy.
    fn open(&self, reading: &mut Reading) -> Result<(), CopyError> {
        match reading.open()? {
            0 => {}
            cost => self.handle.count(self.op, cost),
        }
        Ok(())
    }

    /// A copy that has failed takes no memory any more: the writer may never send the bytes, nor end the pipe.
    fn ends(&self, mut reading: Reading, read: Result<(), CopyError>) {
        if read.is_err() {
            match reading.close() {
                0 => {}
                counted => self.handle.uncount(self.op, counted),
            }
        }
        self.job.ends(reading.outcome(read));
    }
}

impl Work for Copy {
    fn step(&mut self) -> bool {
        let Some(mut reading) = self.reading.take() else {
            return false;
        };
        if self.job.cancelled.load(Ordering::Relaxed) {
            return false;
        }
        let read = match reading.from {
            Some(_) => reading.step(),
            None => self.open(&mut reading).map(|()| false),
        };
        stop::at(stop::MEMORY_HALF_READ);
        match read {
            Ok(false) => {
                self.reading = Some(reading);
                return true;
            }
            Ok(true) => self.ends(reading, Ok(())),
            Err(trouble) => self.ends(reading, Err(trouble)),
        }
        false
    }

    fn finish_on_thread(mut self: Box<Self>) {
        let (op, handle) = (self.op, self.handle.clone());
        handle.resume_after(op, move || while self.step() {});
    }
}

#[cfg(test)]
impl Reading {
    /// Reads all of it.
    pub(super) fn read(self) -> Outcome {
        self.read_after(|| {})
    }

    /// As `read`; between the look at the export and the copy, something happens.
    pub(super) fn read_after(mut self, happens: impl FnOnce()) -> Outcome {
        let opened = self.open().map(drop);
        happens();
        let read = opened.and_then(|()| match self.dest.len() >= SHARED_FROM {
            true => self.read_together(&AtomicBool::new(false)),
            false => loop {
                match self.step() {
                    Ok(false) => {}
                    read => break read.map(drop),
                }
            },
        });
        if read.is_err() {
            self.close();
        }
        self.outcome(read)
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
