//! One end: a pipe, and an application that keeps a diary of what it is told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Msg;
use crate::descriptor::Descriptor;
use crate::error::{PeerFault, ResetCode};
use crate::proto::handshake::{ClientHandshake, ServerHandshake};
use crate::proto::wire::hello::{Brochure, Purpose, WireLimits};
use crate::proto::{Event, KeepAlive, Mark, Offered, OpId, PipeState, Written};

pub(in crate::proto) type Source = Arc<[u8]>;
pub(in crate::proto) type Pipe = PipeState<Source, Vec<u8>>;

/// A message as the application got it; a skipped part is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::proto) struct Delivered {
    pub(in crate::proto) message: u64,
    pub(in crate::proto) metadata: Vec<u8>,
    pub(in crate::proto) parts: Vec<Option<Vec<u8>>>,
}

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
    /// Messages that came whole, until the application reads them.
    pub(super) whole: BTreeMap<u64, (Descriptor, Vec<Vec<u8>>)>,
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
            whole: BTreeMap::new(),
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
        let (descriptor, parts) = (message.descriptor(), message.outgoing());
        let waits = |out: &Out| matches!(out, Out::Mark(_));
        if !self.through || self.backlog.iter().any(waits) {
            return self.pipe.write(descriptor, parts).unwrap();
        }
        let mut frame = Vec::new();
        match self.pipe.write_through(descriptor, parts, &mut frame) {
            Ok(Written::Queued(number)) => number,
            Ok(Written::Through(through)) => {
                for (source, len) in through.eager {
                    frame.extend_from_slice(&source[..len as usize]);
                }
                self.push_frame(frame);
                let number = through.number;
                // The link may take all of it at once, or not.
                if number % 2 == 0 {
                    self.pipe.left_in_part(number);
                    self.backlog.push_back(Out::Mark(Mark::Message(number)));
                } else if through.starts.is_empty() {
                    self.written.push(number);
                }
                for (op, channel, source) in through.starts {
                    self.event(Event::Start {
                        op,
                        channel,
                        source,
                    });
                }
                self.events();
                number
            }
            Err(misuse) => panic!("{misuse}"),
        }
    }

    pub(in crate::proto) fn read(&mut self, message: u64) {
        self.read_but(message, &[]);
    }

    /// Reads a message but for some parts.
    pub(in crate::proto) fn read_but(&mut self, message: u64, skip: &[u16]) {
        self.ready.retain(|ready| *ready != message);
        let (descriptor, whole) = match self.whole.remove(&message) {
            Some((descriptor, parts)) => (descriptor, parts),
            None => match self.pipe.take_descriptor(message) {
                Some(descriptor) => (descriptor, Vec::new()),
                None => return,
            },
        };
        let lengths = (descriptor.payloads.iter().map(|payload| payload.len))
            .chain(descriptor.tensors.iter().map(|tensor| tensor.byte_len()));
        let mut parts: Vec<_> = lengths.map(|len| (len == 0).then(Vec::new)).collect();
        let lengths: Vec<_> = (descriptor.payloads.iter().map(|payload| payload.len))
            .chain(descriptor.tensors.iter().map(|tensor| tensor.byte_len()))
            .collect();
        for (part, bytes) in self.pipe.take_parts(message) {
            parts[usize::from(part)] = Some(bytes);
        }
        for (part, bytes) in whole.into_iter().enumerate() {
            parts[part] = Some(bytes);
        }
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
                    assert!(self.pipe.expect(op, vec![0; *len as usize]));
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

    /// Takes a message whose only missing part the channel has.
    pub(super) fn adopt(&mut self, offered: Offered) {
        let descriptor = offered.head.descriptor;
        let word = self.input[offered.body.clone()].to_vec();
        let rest: Vec<u8> = self.input.drain(..offered.len).collect();
        let payloads = descriptor.payloads.iter().map(|payload| payload.len);
        let lens = payloads.chain(descriptor.tensors.iter().map(|tensor| tensor.byte_len()));
        let mut at = 0;
        let parts = lens.enumerate().map(|(part, len)| {
            if part == usize::from(offered.part) {
                return word.clone();
            }
            at += len as usize;
            rest[at - len as usize..at].to_vec()
        });
        let message = offered.message;
        self.whole
            .insert(message, (descriptor.clone(), parts.collect()));
        self.adopted.push(message);
        self.event(Event::Ready { message });
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
