//! One end: a pipe, and an application that keeps a diary of what it is told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Msg;
use crate::descriptor::Descriptor;
use crate::error::{PeerFault, ResetCode};
use crate::proto::handshake::{ClientHandshake, ServerHandshake};
use crate::proto::wire::hello::{Brochure, Purpose, WireLimits};
use crate::proto::{KeepAlive, Mark, OpId, PipeState, Room, Segment, Written};

pub(in crate::proto) type Source = Arc<[u8]>;
pub(in crate::proto) type Pipe = PipeState<Source, Vec<u8>>;

/// A message as the application got it; a skipped part is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::proto) struct Delivered {
    pub(in crate::proto) message: u64,
    pub(in crate::proto) metadata: Vec<u8>,
    pub(in crate::proto) parts: Vec<Option<Vec<u8>>>,
}

/// What is here of a message.
type Arrived = (Descriptor, Vec<Option<Vec<u8>>>);

#[derive(Debug)]
pub(super) enum Out {
    Bytes(Vec<u8>),
    Mark(Mark),
}

#[derive(Debug, Default)]
pub(super) enum Phase {
    Connecting(ClientHandshake),
    Listening(ServerHandshake),
    #[default]
    Open,
}

/// Bulk bytes that are coming in past the protocol.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) dest: Option<(Vec<u8>, u64)>,
    pub(super) got: u64,
    pub(super) left: u64,
}

#[derive(Debug)]
pub(super) struct Reading {
    pub(super) delivered: Delivered,
    pub(super) missing: BTreeSet<u16>,
}

/// See the module's documentation. The diary's fields are in the order of their happening.
#[derive(Debug)]
pub(in crate::proto) struct End {
    pub(in crate::proto) pipe: Pipe,
    pub(super) ours: WireLimits,
    pub(super) phase: Phase,
    pub(super) input: Vec<u8>,
    pub(super) backlog: VecDeque<Out>,
    /// At most so many bytes come in at once.
    pub(in crate::proto) split: usize,
    /// Whether bulk bytes go straight into place, past the protocol, which hears of a chunk when it is complete, and of
    /// each piece only that there is one.
    pub(in crate::proto) direct: bool,
    pub(super) chunk: Option<Chunk>,
    /// Whether a message that finds nothing before it leaves without being queued.
    pub(in crate::proto) through: bool,
    /// Whether the application reads whatever is offered.
    pub(in crate::proto) eager_reader: bool,
    /// Whether it skips whatever is offered, at once.
    pub(in crate::proto) skips: bool,
    /// Whether there is no memory for what comes ahead.
    pub(in crate::proto) out_of_memory: bool,
    /// Written as soon as the handshake is done.
    pub(in crate::proto) on_open: Vec<Msg>,
    /// And then it closes.
    pub(in crate::proto) close_after: bool,

    /// Offered and not yet decided on.
    pub(in crate::proto) ready: Vec<u64>,
    /// Ever offered.
    pub(in crate::proto) offered: Vec<u64>,
    pub(in crate::proto) delivered: Vec<Delivered>,
    pub(in crate::proto) written: Vec<u64>,
    pub(in crate::proto) refused: Vec<(u64, ResetCode)>,
    pub(in crate::proto) resets: Vec<(u64, ResetCode)>,
    pub(in crate::proto) flushed: Vec<u64>,
    pub(in crate::proto) started: Vec<OpId>,
    pub(in crate::proto) cancelled: Vec<OpId>,
    pub(in crate::proto) goaway: Vec<u64>,
    pub(in crate::proto) fin: bool,
    pub(in crate::proto) fin_ack: bool,
    pub(in crate::proto) fault: Option<PeerFault>,
    /// What a channel says of a part does not complete it.
    pub(in crate::proto) lanes_wait: bool,
    pub(in crate::proto) silent: Option<(Duration, Instant)>,
    /// Everything sent, if wanted.
    pub(in crate::proto) record: Option<Vec<u8>>,
    /// Kind and length of each frame sent.
    pub(in crate::proto) frames: Vec<(u8, usize)>,

    /// Here whole with what their channel said.
    pub(in crate::proto) adopted: Vec<u64>,
    pub(super) reading: BTreeMap<u64, Reading>,
    /// Parts that came before the application read their message.
    pub(super) early: BTreeMap<OpId, Option<Vec<u8>>>,
    /// The message whose own frame is coming in, with the parts of it that are here.
    pub(super) arriving: Option<Arrived>,
    /// Messages until the application reads them.
    pub(super) arrived: BTreeMap<u64, Arrived>,
}

impl End {
    pub(super) fn open(
        ours: WireLimits,
        peer: WireLimits,
        silence: Option<Duration>,
        now: Instant,
    ) -> Self {
        Self {
            pipe: PipeState::new(ours, peer, 2, KeepAlive::new(silence, now)),
            ours,
            phase: Phase::Open,
            input: Vec::new(),
            backlog: VecDeque::new(),
            split: usize::MAX,
            direct: false,
            chunk: None,
            through: false,
            eager_reader: true,
            skips: false,
            out_of_memory: false,
            on_open: Vec::new(),
            close_after: false,
            ready: Vec::new(),
            offered: Vec::new(),
            delivered: Vec::new(),
            written: Vec::new(),
            refused: Vec::new(),
            resets: Vec::new(),
            flushed: Vec::new(),
            started: Vec::new(),
            cancelled: Vec::new(),
            goaway: Vec::new(),
            fin: false,
            fin_ack: false,
            fault: None,
            lanes_wait: false,
            silent: None,
            record: None,
            frames: Vec::new(),
            reading: BTreeMap::new(),
            early: BTreeMap::new(),
            arriving: None,
            arrived: BTreeMap::new(),
            adopted: Vec::new(),
        }
    }

    pub(super) fn connect(&mut self) {
        let hello = ClientHandshake::hello(&Purpose::Pipe {
            name: "a".into(),
            process: [1; 16],
            limits: self.ours,
            brochure: Brochure::default(),
        });
        self.phase = Phase::Connecting(ClientHandshake::default());
        self.backlog.push_back(Out::Bytes(hello));
    }

    pub(super) fn listen(&mut self) {
        self.phase = Phase::Listening(ServerHandshake::default());
    }

    pub(in crate::proto) fn write(&mut self, message: &Msg) -> u64 {
        let waits = |out: &Out| matches!(out, Out::Mark(_));
        let leaves = self.through && !self.backlog.iter().any(waits);
        let (mut out, mut segments) = (Vec::new(), Vec::new());
        let room = leaves.then_some(Room {
            out: &mut out,
            segments: &mut segments,
        });
        let mut parts = message.outgoing(self.pipe.peer_limits());
        let written = self.pipe.write(&message.metadata, &mut parts, room);
        let Written { number, sent, kept } = written.unwrap_or_else(|misuse| panic!("{misuse}"));
        if sent {
            segments.insert(0, Segment::Control(out.len()));
            // The link may take all of it at once, or not.
            if number % 2 == 0 {
                self.pipe.left_in_part(number);
                segments.push(Segment::Mark(Mark::Message(number)));
            } else if !kept {
                self.written.push(number);
            }
            self.leave(&out, segments);
        }
        number
    }

    pub(in crate::proto) fn read(&mut self, message: u64) {
        self.read_but(message, &[]);
    }

    /// Reads a message but for some parts.
    pub(in crate::proto) fn read_but(&mut self, message: u64, skip: &[u16]) {
        self.ready.retain(|ready| *ready != message);
        let Some((descriptor, mut parts)) = self.arrived.remove(&message) else {
            return;
        };
        let lengths: Vec<_> = (descriptor.payloads.iter().map(|payload| payload.len))
            .chain(descriptor.tensors.iter().map(|tensor| tensor.byte_len()))
            .collect();
        let mut missing = BTreeSet::new();
        assert!(
            self.pipe.grant(message, skip),
            "message {message} was ready"
        );
        for (i, len) in lengths.iter().enumerate() {
            let part = i as u16;
            let op = OpId::incoming(message, part);
            match self.pipe.bulk_channel(message, part) {
                None => assert_eq!(parts[i].as_ref().unwrap().len() as u64, *len),
                Some((_, true)) => match self.early.remove(&op) {
                    Some(bytes) => parts[i] = bytes.filter(|_| !skip.contains(&part)),
                    None => _ = missing.insert(part),
                },
                Some((_, false)) if skip.contains(&part) => _ = self.early.remove(&op),
                Some((0, false)) => {
                    assert!(self.pipe.expect(op, vec![0; *len as usize], *len));
                    missing.insert(part);
                }
                // One that is sent at once may be here.
                Some(_) => match self.early.remove(&op) {
                    Some(bytes) => parts[i] = bytes,
                    None => _ = missing.insert(part),
                },
            }
        }
        let delivered = Delivered {
            message,
            metadata: descriptor.metadata.to_vec(),
            parts,
        };
        self.reading.insert(message, Reading { delivered, missing });
        self.check_read(message);
        self.events();
    }

    /// Does not want a message, or no more of it.
    pub(in crate::proto) fn refuse(&mut self, message: u64, code: ResetCode) {
        self.ready.retain(|ready| *ready != message);
        self.arrived.remove(&message);
        self.reading.remove(&message);
        self.early.retain(|op, _| op.message != message);
        self.pipe.refuse(message, code, "no");
        self.events();
    }

    pub(in crate::proto) fn reset(&mut self, message: u64) {
        self.pipe.reset(message, ResetCode::Cancelled, "enough");
        self.events();
    }

    /// Messages that the application has begun to read.
    pub(in crate::proto) fn under_way(&self) -> Vec<u64> {
        self.reading.keys().copied().collect()
    }

    /// What was delivered, in the order in which it was written.
    pub(in crate::proto) fn in_order(&self) -> Vec<Delivered> {
        let mut all = self.delivered.clone();
        all.sort_by_key(|delivered| delivered.message);
        all
    }

    /// The application drops what it was reading.
    pub(in crate::proto) fn forget(&mut self, message: u64) {
        self.reading.remove(&message);
        self.pipe.finish(message);
        self.events();
    }

    pub(super) fn check_read(&mut self, message: u64) {
        let whole = |reading: &Reading| reading.missing.is_empty();
        if self.reading.get(&message).is_some_and(whole) {
            let reading = self.reading.remove(&message).unwrap();
            self.delivered.push(reading.delivered);
            self.pipe.finish(message);
        }
    }
}
