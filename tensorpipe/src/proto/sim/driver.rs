//! What lies between a pipe and its links: the smallest driver, and two channels.
//!
//! Channel 0 streams on the pipe's own connection; channel 1 sends a part in CHANNEL frames.

use std::time::Instant;

use super::Link;
use super::end::{Chunk, End, Out, Phase, Source};
use crate::error::{PeerFault, ResetCode};
use crate::proto::handshake::{Reply, ServerHandshake};
use crate::proto::wire::descriptor::Carriage;
use crate::proto::wire::frame::CHANNEL_MAX;
use crate::proto::wire::hello::{Answer, Purpose};
use crate::proto::{Arriving, Event, Input, KeepAlive, Offer, OpId, PipeState, Segment};

impl End {
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
        self.leave(&bytes, segments);
        true
    }

    /// One frame leaves.
    pub(super) fn leave(&mut self, bytes: &[u8], segments: Vec<Segment<Source>>) {
        let mut frame = Vec::new();
        let mut rest = bytes;
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
        self.push_frame(frame);
        self.backlog.extend(marks);
        self.events();
    }

    pub(super) fn push_frame(&mut self, frame: Vec<u8>) {
        let announced = u32::from_le_bytes(frame[..4].try_into().unwrap()) as usize;
        assert_eq!(frame.len(), 8 + announced, "one whole frame at a time");
        self.frames.push((frame[4], frame.len()));
        if let Some(record) = &mut self.record {
            record.extend_from_slice(&frame);
        }
        self.backlog.push_back(Out::Bytes(frame));
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
            if self.chunk.is_some() {
                self.fill_chunk(now);
                if self.input.is_empty() {
                    return Ok(());
                }
                continue;
            }
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
                Input::Message(arriving) => {
                    self.events();
                    waits = 0;
                    self.arrive(arriving);
                }
                Input::Bulk(len) if self.direct => {
                    let target = self.pipe.bulk_target();
                    let dest = target.and_then(|op| self.pipe.take_dest(op));
                    let (got, left) = (0, len);
                    self.chunk = Some(Chunk { dest, got, left });
                    waits = 0;
                }
                Input::Bulk(len) => {
                    let target = self.pipe.bulk_target();
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
                    let arrived = self.pipe.bulk_received(len as u64, dest);
                    self.ready(arrived);
                }
            }
            self.events();
        }
        Ok(())
    }

    /// A message whose head is here.
    fn arrive(&mut self, arriving: Arriving) {
        let offer = self.pipe.offered(&arriving, &self.input);
        let Arriving {
            message,
            head,
            here,
        } = arriving;
        // Here the bytes of a part are the channel's word about it.
        let len_of = |offer: &Offer| head.part_len(offer.part.into());
        let offer = offer.filter(|offer| offer.word.len() as u64 == len_of(offer));
        let bulk = |carriage: &Carriage| *carriage != Carriage::Eager;
        let is_whole = offer.is_some() || !head.carriages().iter().any(bulk);
        if here.is_none() || !is_whole {
            self.pipe.expect_parts(message, &head);
        }
        let empty = |part| (head.part_len(part) == 0).then(Vec::new);
        let mut parts: Vec<_> = (0..head.carriages().len()).map(empty).collect();
        let Some(eager) = here else {
            self.arriving = Some((head.descriptor(), parts));
            let eager: Vec<_> = self.pipe.eager_parts(message).collect();
            for (part, len) in eager {
                let memory = vec![0; len as usize];
                self.pipe.set_dest(OpId::incoming(message, part), memory);
            }
            return self.pipe.start_eager(message);
        };
        let used = offer.as_ref().map_or(eager, |offer| offer.word.end);
        let bytes: Vec<u8> = self.input.drain(..used).collect();
        let mut at = 0;
        for (i, carriage) in head.carriages().iter().enumerate() {
            if *carriage == Carriage::Eager {
                let len = head.part_len(i) as usize;
                parts[i] = Some(bytes[at..at + len].to_vec());
                at += len;
            }
        }
        assert_eq!(at, eager);
        if let Some(offer) = offer {
            parts[usize::from(offer.part)] = Some(bytes[offer.word].to_vec());
            self.adopted.push(message);
        } else if !is_whole {
            self.pipe.has_eager(message);
        }
        self.arriving = Some((head.descriptor(), parts));
        self.ready(Some(message));
    }

    /// All of a message's own frame is here.
    fn ready(&mut self, message: Option<u64>) {
        let Some(message) = message else { return };
        let (descriptor, mut parts) = self.arriving.take().expect("its head was here");
        for (part, bytes) in self.pipe.take_parts(message) {
            parts[usize::from(part)] = Some(bytes);
        }
        if self.pipe.comes_ahead(message) && !self.out_of_memory {
            for part in 0..parts.len() as u16 {
                let op = OpId::incoming(message, part);
                let len = self.pipe.part_len(op).unwrap();
                if self.pipe.bulk_channel(message, part) == Some((0, true)) {
                    assert!(self.pipe.expect(op, vec![0; len as usize], len));
                }
            }
        }
        self.arrived.insert(message, (descriptor, parts));
        self.ready.push(message);
        self.offered.push(message);
        if self.skips {
            self.refuse(message, ResetCode::Skipped);
        } else if self.eager_reader {
            self.read(message);
        }
    }

    /// As the real driver: the protocol hears of a piece only that it came.
    fn fill_chunk(&mut self, now: Instant) {
        let Some(chunk) = &mut self.chunk else { return };
        let len = self.input.len().min(chunk.left as usize);
        if let Some((dest, at)) = &mut chunk.dest {
            dest[*at as usize..][..len].copy_from_slice(&self.input[..len]);
            *at += len as u64;
        }
        self.input.drain(..len);
        chunk.got += len as u64;
        chunk.left -= len as u64;
        if len > 0 {
            self.pipe.heard(now);
        }
        if chunk.left == 0
            && let Some(chunk) = self.chunk.take()
        {
            let dest = chunk.dest.map(|(dest, _)| dest);
            let arrived = self.pipe.bulk_received(chunk.got, dest);
            self.ready(arrived);
            self.events();
        }
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
        if !self.is_over() {
            self.pipe.assert_sound();
        }
    }

    pub(super) fn event(&mut self, event: Event<Source, Vec<u8>>) {
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
            Event::Channel { .. } if self.lanes_wait => {}
            Event::Channel { op, body, .. } => {
                self.pipe.part_received(op);
                self.part(op, Some(body.to_vec()));
            }
            Event::Cancel { op, .. } => {
                self.early.remove(&op);
                self.cancelled.push(op);
            }
            Event::Written { message } => self.written.push(message),
            Event::Refused { message, code, .. } => self.refused.push((message, code)),
            Event::Reset { message, code, .. } => {
                self.ready.retain(|ready| *ready != message);
                self.arrived.remove(&message);
                self.reading.remove(&message);
                self.early.retain(|op, _| op.message != message);
                self.resets.push((message, code));
            }
            Event::Flushed { message } => self.flushed.push(message),
            Event::GoAway { next, .. } => self.goaway.push(next),
            Event::Fin => self.fin = true,
            Event::FinAck => self.fin_ack = true,
            Event::Recalled => {}
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
        assert_eq!(self.pipe.unwritten(), 0, "{:?}", self.pipe.outgoing);
        assert!(
            self.pipe.incoming.messages.is_empty(),
            "{:?}",
            self.pipe.incoming
        );
        assert!(self.pipe.outbox.streams.is_empty());
        assert!(self.reading.is_empty() && self.early.is_empty());
        assert!(self.arriving.is_none() && self.arrived.is_empty());
        assert!(!self.pipe.has_control() && self.pipe.outbox.flush.is_empty());
        assert!(self.backlog.is_empty());
        assert_eq!(self.pipe.receive_window.outstanding(), Default::default());
    }
}
