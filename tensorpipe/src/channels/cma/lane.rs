//! One end of channel `cma` on one pipe.
//!
//! An operation is in one table at a time. At the writer it is `shown` until the reader has read it or asks for the bytes; dropping the
//! entry removes the export. At the reader it is `told` until the application reads, or `wanted` until the export arrives, then `reading`
//! while a thread copies.

use std::collections::HashMap;

use super::copy::{Copy, Job, Outcome, Reading};
use super::exports::{Export, ExportTable};
use super::frame::{FromReader, FromWriter, Refusal, Ticket};
use super::peer_process::{PeerMemory, PeerProcess};
use super::{Degraded, Exchange, Fault, Lane, LaneHandle, LaneIo, Link, OpId, Pass, Want};
use crate::device::{Buffer, Destination, Pool};
use crate::sync::Arc;

pub(super) struct CmaLane {
    peer_process: Arc<PeerProcess>,
    /// Lets the peer find the export table, on a pipe with a key.
    _pass: Option<Arc<Pass>>,
    handle: LaneHandle,
    pool: Pool,
    degraded: Degraded,
    shown: HashMap<OpId, SentAs>,
    told: HashMap<OpId, FromWriter>,
    wanted: HashMap<OpId, Want>,
    reading: HashMap<OpId, UnderWay>,
}

/// The most exports of one pipe at once: a peer that does not read leaves room for others.
const SHOWN_MOST: usize = 128;

/// How far the reader is with a tensor.
enum UnderWay {
    /// The writer's process is being met.
    Meeting(Ticket, Destination),
    Copying(Arc<Job>),
}

impl UnderWay {
    fn cancel(&self) {
        if let Self::Copying(job) = self {
            job.cancel();
        }
    }
}

/// How the writer has sent a tensor.
enum SentAs {
    Shown(Export),
    /// It was not exported, for this reason.
    Unreadable(Buffer, String),
}

impl CmaLane {
    pub(super) fn new(peer_process: Arc<PeerProcess>, link: Link) -> Self {
        Self {
            peer_process,
            _pass: link.key.map(|key| Exchange::here().issue_pass(&key)),
            handle: link.handle,
            pool: link.pool,
            degraded: link.degraded,
            shown: HashMap::new(),
            told: HashMap::new(),
            wanted: HashMap::new(),
            reading: HashMap::new(),
        }
    }

    fn show(&self, source: &Buffer) -> Result<Export, String> {
        if let Some(reason) = self.degraded.sending() {
            return Err(reason.to_owned());
        }
        if self.shown.len() >= SHOWN_MOST {
            return Err("the peer has not read many".to_owned());
        }
        let (exchange, exports) = (Exchange::here(), ExportTable::here());
        exchange.publish_exports(exports.address());
        exchange.open().map_err(|error| error.to_string())?;
        exports.show(source)
    }

    /// The reader has read the tensor, or asks for its bytes.
    fn answered(&mut self, op: OpId, answer: FromReader, io: &mut LaneIo<'_>) -> Result<(), Fault> {
        let Some(outgoing) = self.shown.remove(&op) else {
            return Ok(());
        };
        match (answer, outgoing) {
            (FromReader::Done, SentAs::Shown(export)) => {
                drop(export);
                io.sent(op);
            }
            (FromReader::Done, SentAs::Unreadable(..)) => {
                return Err(Fault("what was not shown has been read".to_owned()));
            }
            (FromReader::Bytes(refusal), outgoing) => {
                let why = format!("the peer cannot read this process: {}", refusal.reason);
                if refusal.lasting {
                    self.degraded.cannot_send(&*why);
                }
                let (source, why) = match outgoing {
                    SentAs::Shown(export) => (export.source().clone(), why),
                    SentAs::Unreadable(source, reason) => (source, reason),
                };
                if io.divert(op, "basic", source.len() as u64, &why) {
                    io.stream(op, source);
                }
            }
        }
        Ok(())
    }

    /// Both an export and a place for the tensor are there. The place has no memory yet: so far, the writer has only made a claim.
    fn read(
        &mut self,
        op: OpId,
        ticket: Ticket,
        want: Want,
        io: &mut LaneIo<'_>,
    ) -> Result<(), Fault> {
        let len = match &want {
            Want::Into(dest) => dest.len() as u64,
            Want::Adopt { len, .. } => *len,
        };
        if ticket.len != len {
            return Err(Fault(format!(
                "a tensor of {} bytes instead of {len}",
                ticket.len
            )));
        }
        let Some(dest) = room(op, want, io) else {
            return Ok(());
        };
        match self.peer_process.known() {
            Some(met) => self.copy(op, met, ticket, dest, io),
            None => {
                self.reading.insert(op, UnderWay::Meeting(ticket, dest));
                let (peer_process, handle) = (self.peer_process.clone(), self.handle.clone());
                io.spawn(async move {
                    // `resume` gets the result from `known`.
                    let _ = peer_process.connect().await;
                    handle.resume(op);
                });
            }
        }
        Ok(())
    }

    /// The meeting with the writer's process has ended.
    fn copy(
        &mut self,
        op: OpId,
        met: Result<Arc<PeerMemory>, Refusal>,
        ticket: Ticket,
        dest: Destination,
        io: &mut LaneIo<'_>,
    ) {
        let met = match met {
            Ok(met) => met,
            Err(refusal) => return self.refused(op, dest, refusal, io),
        };
        let job = Arc::new(Job::default());
        self.reading.insert(op, UnderWay::Copying(job.clone()));
        let copy = Copy {
            op,
            job,
            handle: self.handle.clone(),
            reading: Some(Reading::new(met, ticket, dest, self.pool.clone())),
        };
        copy.start(io);
    }

    /// The writer's memory cannot be read.
    fn refused(&self, op: OpId, dest: Destination, refusal: Refusal, io: &mut LaneIo<'_>) {
        tracing::debug!(refusal.reason, "a tensor is asked for instead of read");
        if refusal.lasting {
            self.degraded.cannot_receive(refusal.reason.as_str());
        }
        io.expect_in(op, dest);
        io.control(op, FromReader::Bytes(refusal).encode());
    }

    /// Both the writer's frame and a place for the tensor are there.
    fn settle(
        &mut self,
        op: OpId,
        told: FromWriter,
        want: Want,
        io: &mut LaneIo<'_>,
    ) -> Result<(), Fault> {
        match told {
            FromWriter::Export(ticket) => return self.read(op, ticket, want, io),
            FromWriter::Unavailable => {
                let reason = "as the writer says".to_owned();
                let lasting = false;
                if io.receive(op, want) {
                    let refusal = Refusal { reason, lasting };
                    io.control(op, FromReader::Bytes(refusal).encode());
                }
            }
        }
        Ok(())
    }
}

impl Lane for CmaLane {
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        let (frame, outgoing) = match self.show(&source) {
            Ok(export) => {
                let ticket = Ticket {
                    slot: export.slot,
                    number: export.number,
                    len: source.len() as u64,
                };
                (FromWriter::Export(ticket), SentAs::Shown(export))
            }
            Err(reason) => {
                tracing::debug!(reason, "a tensor is sent instead of read");
                (FromWriter::Unavailable, SentAs::Unreadable(source, reason))
            }
        };
        self.shown.insert(op, outgoing);
        io.control(op, frame.encode());
    }

    fn recv(&mut self, op: OpId, want: Want, io: &mut LaneIo<'_>) {
        match self.told.remove(&op) {
            None => drop(self.wanted.insert(op, want)),
            Some(told) => {
                if let Err(fault) = self.settle(op, told, want, io) {
                    io.fault(op, fault);
                }
            }
        }
    }

    fn control(&mut self, op: OpId, body: &[u8], io: &mut LaneIo<'_>) -> Result<(), Fault> {
        if op.outgoing {
            return self.answered(op, FromReader::decode(body)?, io);
        }
        let told = FromWriter::decode(body)?;
        match self.wanted.remove(&op) {
            // For a piece, the reader calls `recv` before the writer may send.
            None if op.number().is_some() => Err(Fault(format!("too much about {op:?}"))),
            // The protocol allows one frame for each operation, so this is bounded.
            None => {
                self.told.insert(op, told);
                Ok(())
            }
            Some(want) => self.settle(op, told, want, io),
        }
    }

    fn resume(&mut self, op: OpId, io: &mut LaneIo<'_>) -> Result<(), Fault> {
        let job = match self.reading.remove(&op) {
            Some(UnderWay::Copying(job)) => job,
            Some(UnderWay::Meeting(ticket, dest)) => {
                let met = self.peer_process.known().unwrap_or_else(|| {
                    Err(Refusal {
                        reason: "the writer's exchange was not met in time".to_owned(),
                        lasting: false,
                    })
                });
                self.copy(op, met, ticket, dest, io);
                return Ok(());
            }
            None => return Ok(()),
        };
        match job.take_outcome() {
            Some(Outcome::Read(dest)) => {
                io.copied(dest.len() as u64);
                io.control(op, FromReader::Done.encode());
                io.received(op, dest.freeze());
            }
            Some(Outcome::Refused(dest, refusal)) => self.refused(op, dest, refusal, io),
            Some(Outcome::Failed(error)) => io.failed(op, error),
            // The writer's connection has ended with its process, or will: the pipe reports that.
            Some(Outcome::Ended) | None => {}
        }
        Ok(())
    }

    fn cancel(&mut self, op: OpId, _: &mut LaneIo<'_>) {
        self.shown.remove(&op);
        self.told.remove(&op);
        self.wanted.remove(&op);
        if let Some(reading) = self.reading.remove(&op) {
            reading.cancel();
        }
    }
}

impl Drop for CmaLane {
    fn drop(&mut self) {
        self.reading.values().for_each(UnderWay::cancel);
    }
}

/// A place to fill; `None`: there is none, and the operation has failed.
fn room(op: OpId, want: Want, io: &mut LaneIo<'_>) -> Option<Destination> {
    match want {
        Want::Into(dest) => Some(dest.into()),
        Want::Adopt { len, .. } => match io.reserve(op, len) {
            Ok(dest) => Some(dest),
            Err(error) => {
                io.failed(op, error);
                None
            }
        },
    }
}
