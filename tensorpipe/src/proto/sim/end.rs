//! One end: the smallest driver, the channels, and an application that keeps a diary.
//!
//! Channel 0 streams on the pipe's own connection; channel 1 sends a part in CHANNEL frames.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Link, Msg};
use crate::error::{PeerFault, ResetCode};
use crate::proto::handshake::{ClientHandshake, Reply, ServerHandshake};
use crate::proto::wire::frame::CHANNEL_MAX;
use crate::proto::wire::hello::{Answer, Brochure, Purpose, WireLimits};
use crate::proto::{Event, Input, KeepAlive, Mark, OpId, PipeState, Segment};

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
enum Out {
    Bytes(Vec<u8>),
    Mark(Mark),
}

#[derive(Debug, Default)]
enum Phase {
    Connecting(ClientHandshake),
    Listening(ServerHandshake),
    #[default]
    Open,
}

#[derive(Debug)]
struct Reading {
    delivered: Delivered,
    missing: BTreeSet<u16>,
}

/// See the module's documentation. The diary's fields are in the order of their happening.
#[derive(Debug)]
pub(in crate::proto) struct End {
    pub(in crate::proto) pipe: Pipe,
    ours: WireLimits,
    phase: Phase,
    input: Vec<u8>,
    backlog: VecDeque<Out>,
    /// At most so many bytes come in at once.
    pub(in crate::proto) split: usize,
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
    pub(in crate::proto) silent: Option<(Duration, Instant)>,
    /// Everything sent, if wanted.
    pub(in crate::proto) record: Option<Vec<u8>>,
    /// Kind and length of each frame sent.
    pub(in crate::proto) frames: Vec<(u8, usize)>,

    reading: BTreeMap<u64, Reading>,
    /// Parts that came before the application read their message.
    early: BTreeMap<OpId, Option<Vec<u8>>>,
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
            silent: None,
            record: None,
            frames: Vec::new(),
            reading: BTreeMap::new(),
            early: BTreeMap::new(),
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

    // The application.

    pub(in crate::proto) fn write(&mut self, message: &Msg) -> u64 {
        self.pipe
            .write(message.descriptor(), message.outgoing())
            .unwrap()
    }

    pub(in crate::proto) fn read(&mut self, message: u64) {
        self.read_but(message, &[]);
    }

    /// Reads a message but for some parts.
    pub(in crate::proto) fn read_but(&mut self, message: u64, skip: &[u16]) {
        self.ready.retain(|ready| *ready != message);
        let Some(descriptor) = self.pipe.take_descriptor(message) else {
            return;
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
        let mut missing = BTreeSet::new();
        assert!(
            self.pipe.grant(message, skip),
            "message {message} was ready"
        );
        for (i, len) in lengths.iter().enumerate() {
            let part = i as u16;
            let op = incoming(message, part);
            match self.pipe.bulk_channel(message, part) {
                None => assert_eq!(parts[i].as_ref().unwrap().len() as u64, *len),
                Some((_, true)) => match self.early.remove(&op) {
                    Some(bytes) => parts[i] = bytes.filter(|_| !skip.contains(&part)),
                    None => _ = missing.insert(part),
                },
                Some((_, false)) if skip.contains(&part) => {}
                Some((0, false)) => {
                    assert!(self.pipe.expect(op, vec![0; *len as usize]));
                    missing.insert(part);
                }
                Some(_) => _ = missing.insert(part),
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

    fn check_read(&mut self, message: u64) {
        let whole = |reading: &Reading| reading.missing.is_empty();
        if self.reading.get(&message).is_some_and(whole) {
            let reading = self.reading.remove(&message).unwrap();
            self.delivered.push(reading.delivered);
            self.pipe.finish(message);
        }
    }

    // The driver.

    pub(super) fn timeout(&mut self, now: Instant) {
        if self.is_over() || self.pipe.next_timeout().is_none_or(|at| at > now) {
            return;
        }
        if let Err(quiet) = self.pipe.handle_timeout(now) {
            self.silent = Some((quiet, now));
        }
    }

    /// Returns whether anything left.
    pub(super) fn transmit(&mut self, link: &mut Link, now: Instant) -> bool {
        let before = link.sent;
        while !self.is_over() {
            match self.backlog.front_mut() {
                Some(Out::Mark(mark)) => {
                    let mark = *mark;
                    self.backlog.pop_front();
                    self.pipe.written(mark);
                    self.events();
                }
                Some(Out::Bytes(bytes)) => {
                    let room = bytes.len().min(link.room());
                    if room == 0 {
                        break;
                    }
                    link.send(&bytes[..room], now);
                    bytes.drain(..room);
                    if bytes.is_empty() {
                        self.backlog.pop_front();
                    }
                }
                None => {
                    if !self.poll() {
                        break;
                    }
                }
            }
        }
        link.sent > before
    }

    fn poll(&mut self) -> bool {
        if !matches!(self.phase, Phase::Open) {
            return false;
        }
        let (mut bytes, mut segments) = (Vec::new(), Vec::new());
        if !self.pipe.poll_transmit(&mut bytes, &mut segments) {
            return false;
        }
        let mut frame = Vec::new();
        let mut rest = &bytes[..];
        let mut marks = Vec::new();
        for segment in segments {
            match segment {
                Segment::Control(len) => {
                    frame.extend_from_slice(&rest[..len]);
                    rest = &rest[len..];
                }
                Segment::Data { source, range } => {
                    frame.extend_from_slice(&source[range.start as usize..range.end as usize]);
                }
                Segment::Mark(mark) => marks.push(Out::Mark(mark)),
            }
        }
        assert!(rest.is_empty(), "every byte belongs to a segment");
        let announced = u32::from_le_bytes(frame[..4].try_into().unwrap()) as usize;
        assert_eq!(frame.len(), 8 + announced, "one whole frame at a time");
        self.frames.push((frame[4], frame.len()));
        if let Some(record) = &mut self.record {
            record.extend_from_slice(&frame);
        }
        self.backlog.push_back(Out::Bytes(frame));
        self.backlog.extend(marks);
        self.events();
        true
    }

    pub(in crate::proto) fn receive(&mut self, bytes: &[u8], now: Instant) {
        for piece in bytes.chunks(self.split) {
            self.input.extend_from_slice(piece);
            if let Err(fault) = self.consume(now) {
                self.fault.get_or_insert(fault);
            }
        }
    }

    fn consume(&mut self, now: Instant) -> Result<(), PeerFault> {
        self.shake_hands(now)?;
        let mut waits = 0;
        while matches!(self.phase, Phase::Open) && !self.is_over() {
            let (used, next) = self.pipe.handle(&self.input, now)?;
            self.input.drain(..used);
            if used > 0 {
                waits = 0;
            }
            match next {
                Input::NeedMore(len) => {
                    if len > self.input.len() {
                        self.events();
                        return Ok(());
                    }
                    waits += 1;
                    assert!(waits < 2, "it has what it asks for");
                }
                Input::Head { message } => {
                    let parts: Vec<_> = self.pipe.eager_parts(message).collect();
                    for (part, len) in parts {
                        let memory = vec![0; len as usize];
                        self.pipe.set_dest(incoming(message, part), memory);
                    }
                    self.pipe.start_eager(message);
                }
                Input::Bulk { target, len } => {
                    let len = self.input.len().min(len as usize);
                    if len == 0 {
                        return Ok(());
                    }
                    let dest = target.and_then(|op| self.pipe.take_dest(op));
                    let dest = dest.map(|(mut dest, at)| {
                        dest[at as usize..][..len].copy_from_slice(&self.input[..len]);
                        dest
                    });
                    self.input.drain(..len);
                    waits = 0;
                    self.pipe.bulk_received(len as u64, dest);
                }
            }
            self.events();
        }
        Ok(())
    }

    fn shake_hands(&mut self, now: Instant) -> Result<(), PeerFault> {
        let (used, peer) = match &mut self.phase {
            Phase::Open => return Ok(()),
            Phase::Connecting(handshake) => match handshake.handle(&self.input)? {
                (used, Some(Reply::Answer(answer))) => (used, Some(answer.limits)),
                (used, _) => (used, None),
            },
            Phase::Listening(handshake) => match handshake.handle(&self.input)? {
                (used, Some(Purpose::Pipe { limits, .. })) => {
                    let answer = ServerHandshake::answer(&Answer {
                        name: "b".into(),
                        process: [2; 16],
                        limits: self.ours,
                        moved: None,
                        channels: Vec::new(),
                        refusals: Vec::new(),
                    });
                    self.backlog.push_back(Out::Bytes(answer));
                    (used, Some(limits))
                }
                (used, _) => (used, None),
            },
        };
        self.input.drain(..used);
        if let Some(peer) = peer {
            self.phase = Phase::Open;
            self.pipe = PipeState::new(self.ours, peer, 2, KeepAlive::new(None, now));
            for message in std::mem::take(&mut self.on_open) {
                self.write(&message);
            }
            if self.close_after {
                self.pipe.close();
            }
        }
        Ok(())
    }

    pub(in crate::proto) fn events(&mut self) {
        while let Some(event) = self.pipe.poll_event() {
            self.event(event);
        }
    }

    fn event(&mut self, event: Event<Source, Vec<u8>>) {
        if let Event::Start { op, .. }
        | Event::StreamSent { op }
        | Event::StreamReceived { op, .. }
        | Event::Cancel { op, .. }
        | Event::Channel { op, .. } = &event
        {
            assert!(
                !self.cancelled.contains(op),
                "{event:?} after it was cancelled"
            );
        }
        match event {
            Event::Ready { message } => {
                self.ready.push(message);
                self.offered.push(message);
                if self.skips {
                    self.refuse(message, ResetCode::Skipped);
                } else if self.eager_reader {
                    self.read(message);
                }
            }
            Event::Ahead { .. } if self.out_of_memory => {}
            Event::Ahead { message } => {
                for part in 0.. {
                    let op = incoming(message, part);
                    let Some(len) = self.pipe.part_len(op) else {
                        break;
                    };
                    if self.pipe.bulk_channel(message, part) == Some((0, true)) {
                        assert!(self.pipe.expect(op, vec![0; len as usize]));
                    }
                }
            }
            Event::Start {
                op,
                channel: 0,
                source,
            } => {
                self.started.push(op);
                let len = source.len() as u64;
                self.pipe.stream(op, source, len);
            }
            Event::Start { op, source, .. } => {
                self.started.push(op);
                for piece in source.chunks(CHANNEL_MAX) {
                    self.pipe.channel(op, piece.to_vec());
                }
                self.pipe.part_sent(op);
            }
            Event::StreamSent { op } => self.pipe.part_sent(op),
            Event::StreamReceived { op, dest } => {
                if dest.is_some() {
                    self.pipe.part_received(op);
                }
                self.part(op, dest);
            }
            Event::Channel { op, body, .. } => {
                self.pipe.part_received(op);
                self.part(op, Some(body));
            }
            Event::Cancel { op, .. } => self.cancelled.push(op),
            Event::Written { message } => self.written.push(message),
            Event::Refused { message, code, .. } => self.refused.push((message, code)),
            Event::Reset { message, code, .. } => {
                self.ready.retain(|ready| *ready != message);
                self.reading.remove(&message);
                self.early.retain(|op, _| op.message != message);
                self.resets.push((message, code));
            }
            Event::Flushed { message } => self.flushed.push(message),
            Event::GoAway { next, .. } => self.goaway.push(next),
            Event::Fin => self.fin = true,
            Event::FinAck => self.fin_ack = true,
        }
    }

    fn part(&mut self, op: OpId, bytes: Option<Vec<u8>>) {
        match self.reading.get_mut(&op.message) {
            Some(reading) => {
                reading.missing.remove(&op.part);
                reading.delivered.parts[usize::from(op.part)] = bytes;
                self.check_read(op.message);
            }
            None => _ = self.early.insert(op, bytes),
        }
    }

    fn is_over(&self) -> bool {
        self.fault.is_some() || self.silent.is_some()
    }

    pub(super) fn assert_clean(&self) {
        assert_eq!(self.fault, None);
        assert!(self.pipe.outgoing.is_empty(), "{:?}", self.pipe.outgoing);
        assert!(
            self.pipe.incoming.messages.is_empty(),
            "{:?}",
            self.pipe.incoming
        );
        assert!(self.pipe.outbox.streams.is_empty());
        assert!(self.reading.is_empty() && self.early.is_empty());
        assert!(!self.pipe.has_control() && self.pipe.outbox.flush.is_empty());
        assert!(self.backlog.is_empty());
        assert_eq!(self.pipe.receive_window.outstanding(), Default::default());
    }
}

pub(in crate::proto) fn incoming(message: u64, part: u16) -> OpId {
    OpId {
        message,
        part,
        outgoing: false,
    }
}
