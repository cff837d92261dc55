//! What lies between a pipe and its links: the smallest driver, and two channels.
//!
//! Channel 0 streams on the pipe's own connection; channel 1 sends a part in CHANNEL frames, or on connections of its own.

use std::collections::BTreeSet;
use std::time::Instant;

use super::end::{Chunk, Delivered, End, Out, Phase, Source};
use super::{CHANNELS, Link, answer};
use crate::error::{PeerFault, TEXT_MAX};
use crate::proto::handshake::{FirstFrame, Reply, ServerHandshake};
use crate::proto::wire::descriptor::Carriage;
use crate::proto::wire::frame::Header;
use crate::proto::wire::hello::Purpose;
use crate::proto::{Arriving, Event, Input, KeepAlive, OpId, PipeState, Reason, Segment};

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
    pub(crate) fn transmit(&mut self, link: &mut Link, now: Instant) -> bool {
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
                    let (mut bytes, mut segments) = (Vec::new(), Vec::new());
                    let is_open = matches!(self.phase, Phase::Open);
                    if !is_open || !self.pipe.poll_transmit(&mut bytes, &mut segments) {
                        break;
                    }
                    self.leave(&bytes, segments);
                }
            }
        }
        link.sent > before
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
        let (header, body) = frame.split_first_chunk().unwrap();
        let header = Header::decode(header).unwrap();
        assert_eq!(header.len as usize, body.len(), "one whole frame at a time");
        self.frames.push((header.kind.unwrap(), frame.len()));
        self.record.extend_from_slice(&frame);
        self.backlog.push_back(Out::Bytes(frame));
        self.backlog.extend(marks);
        self.events();
    }

    pub(crate) fn receive(&mut self, bytes: &[u8], now: Instant) {
        for piece in bytes.chunks(self.split) {
            if self.is_over() {
                return;
            }
            self.input.extend_from_slice(piece);
            if let Err(fault) = self.consume(now) {
                self.fault.get_or_insert(fault);
            }
        }
    }

    fn consume(&mut self, now: Instant) -> Result<(), PeerFault> {
        self.shake_hands(now)?;
        while matches!(self.phase, Phase::Open) && !self.is_over() && self.take_in(now)? {}
        Ok(())
    }

    /// Takes in frames up to a message or to bytes of a part, or takes in such bytes. Returns `false` if it waits for more.
    pub(crate) fn take_in(&mut self, now: Instant) -> Result<bool, PeerFault> {
        if self.chunk.is_some() {
            return Ok(self.fill_chunk(now));
        }
        if self.input.len() < self.need {
            return Ok(false);
        }
        let (used, next) = self.pipe.handle(&self.input, now)?;
        self.input.drain(..used);
        self.need = 0;
        match next {
            Input::NeedMore(len) => {
                // Either it moves on, or it waits for more than there is.
                assert!(used > 0 || len > self.input.len(), "it needs {len}");
                self.need = len;
            }
            Input::Message(arriving) => {
                self.events();
                self.arrive(arriving);
            }
            Input::Bulk(left) => {
                assert!(left > 0);
                let target = self.pipe.bulk_target();
                let dest = target.and_then(|op| self.pipe.take_dest(op));
                let dest = dest.map(|(dest, at)| {
                    assert_eq!(dest.len() as u64, at, "in order, and nothing else");
                    dest
                });
                self.chunk = Some(Chunk { dest, left });
            }
        }
        self.events();
        Ok(self.input.len() >= self.need)
    }

    /// A message whose head is here.
    fn arrive(&mut self, arriving: Arriving) {
        let offer = self.pipe.offered(&arriving, &self.input);
        let Arriving {
            message,
            head,
            here,
        } = arriving;
        let len_of = |part: u16| head.part_len(part.into());
        // Here the bytes of a part are the channel's word about it.
        let offer = offer.filter(|offer| offer.word.len() as u64 == len_of(offer.part));
        let rides = |carriage: &Carriage| *carriage == Carriage::Eager;
        let carriages = head.carriages().iter();
        let mut parts: Vec<_> = carriages.map(|part| rides(part).then(Vec::new)).collect();
        let missing = (0..).zip(head.carriages());
        let missing = missing.filter(|(_, part)| offer.is_none() && !rides(part));
        let missing: BTreeSet<u16> = missing.map(|(part, _)| part).collect();
        let is_whole = missing.is_empty();
        if here.is_none() || !is_whole {
            self.pipe.expect_parts(message, &head);
        }
        if let Some(eager) = here {
            let used = offer.as_ref().map_or(eager, |offer| offer.word.end);
            let bytes: Vec<u8> = self.input.drain(..used).collect();
            let mut rest = &bytes[..eager];
            for (part, place) in (0..).zip(&mut parts) {
                if let Some(place) = place {
                    let riding = rest.split_off(..len_of(part) as usize);
                    *place = riding.unwrap().to_vec();
                }
            }
            assert!(rest.is_empty());
            if let Some(offer) = offer {
                parts[usize::from(offer.part)] = Some(bytes[offer.word].to_vec());
                self.adopted.push(message);
            }
        }
        let in_hand = Delivered {
            message,
            metadata: head.metadata.to_vec(),
            parts,
            missing,
            is_read: false,
        };
        self.in_hand.insert(message, in_hand);
        if here.is_none() {
            return self.pipe.start_eager(message, |_| Vec::new());
        }
        if !is_whole {
            self.pipe.mark_eager_received(message);
        }
        self.ready(message);
    }

    /// All of a message's own frame is here.
    fn ready(&mut self, message: u64) {
        let in_hand = self.app.in_hand.get_mut(&message);
        let in_hand = in_hand.expect("its head was here");
        for (part, bytes) in self.pipe.take_parts(message) {
            in_hand.parts[usize::from(part)] = Some(bytes);
        }
        if self.pipe.comes_ahead(message) && !self.app.is_full {
            for part in &in_hand.missing {
                if self.pipe.bulk_channel(message, *part) == Some((0, true)) {
                    let op = OpId::incoming(message, *part);
                    let len = self.pipe.part_len(op).unwrap();
                    assert!(self.pipe.expect(op, Vec::new(), len));
                }
            }
        }
        self.ready.push(message);
        let before = self.offered.replace(message);
        assert!(before < Some(message), "each once, in order");
        if !self.lazy {
            self.read(message);
        }
    }

    /// As the real driver: the protocol hears of a piece only that it came. Returns `false` if the rest is still to come.
    fn fill_chunk(&mut self, now: Instant) -> bool {
        let Some(chunk) = &mut self.chunk else {
            return true;
        };
        let len = self.input.len().min(chunk.left as usize);
        let bytes = self.input.drain(..len);
        match &mut chunk.dest {
            Some(dest) => dest.extend(bytes),
            None => drop(bytes),
        }
        chunk.left -= len as u64;
        if len > 0 {
            self.pipe.heard(now);
        }
        let Some(chunk) = self.chunk.take_if(|chunk| chunk.left == 0) else {
            return false;
        };
        let arrived = self.pipe.bulk_received(chunk.dest);
        arrived.into_iter().for_each(|message| self.ready(message));
        self.events();
        true
    }

    fn shake_hands(&mut self, now: Instant) -> Result<(), PeerFault> {
        let (used, peer) = match &mut self.phase {
            Phase::Open => return Ok(()),
            Phase::Connecting(handshake) => match handshake.handle(&self.input)? {
                (used, Some(Reply::Answer(answer))) => (used, Some(answer.limits)),
                (used, _) => (used, None),
            },
            Phase::Listening(handshake) => match handshake.handle(&self.input)? {
                (used, Some(FirstFrame::Hello(Purpose::Pipe { limits, .. }))) => {
                    let answer = ServerHandshake::answer(&answer(self.ours));
                    self.backlog.push_back(Out::Bytes(answer));
                    (used, Some(limits))
                }
                (used, _) => (used, None),
            },
        };
        self.input.drain(..used);
        if let Some(peer) = peer {
            self.phase = Phase::Open;
            self.pipe = PipeState::new(self.ours, peer, CHANNELS, KeepAlive::new(None, now));
            for message in std::mem::take(&mut self.on_open) {
                self.write(&message);
            }
            if self.close_after {
                self.pipe.close();
            }
        }
        Ok(())
    }

    pub(crate) fn events(&mut self) {
        while let Some(event) = self.pipe.poll_event() {
            self.event(event);
        }
        if !self.is_over() {
            self.assert_bounded();
        }
    }

    /// Whatever its peer has sent, a pipe holds no more than it has allowed.
    fn assert_bounded(&self) {
        let (incoming, window) = (&self.pipe.incoming, &self.pipe.receive_window);
        let (held, ours) = (window.outstanding(), &self.ours);
        assert!(
            held.messages <= ours.window_messages
                && held.bytes <= ours.window_bytes
                && held.ahead <= window.ahead().promised,
            "{held:?}"
        );
        assert_eq!(held.messages, incoming.messages.len() as u64);
        let mut parts = incoming.messages.values().flat_map(|of| &of.parts);
        assert!(parts.all(|part| part.got <= part.len), "{incoming:?}");
    }

    pub(super) fn event(&mut self, event: Event<Source, Vec<u8>>) {
        if let Event::Start { op, .. }
        | Event::StreamSent { op }
        | Event::StreamReceived { op, .. }
        | Event::Cancel { op, .. }
        | Event::Channel { op, .. } = &event
        {
            let over = self.cancelled.contains(op);
            assert!(!over, "{event:?} after it was cancelled");
        }
        if let Event::Refused(Reason { text, .. })
        | Event::Reset(Reason { text, .. })
        | Event::GoAway { text, .. } = &event
        {
            assert!(text.len() <= TEXT_MAX && !text.contains(char::is_control));
        }
        match event {
            Event::Start {
                op,
                channel,
                source,
            } => {
                self.started.push(op);
                if channel == 0 {
                    let len = source.len() as u64;
                    return self.pipe.stream(op, source, len);
                }
                match self.own_lanes {
                    true => self.lane_out.push((op, source.to_vec())),
                    false => self.pipe.channel(op, &source),
                }
                self.pipe.part_sent(op);
            }
            Event::StreamSent { op } => self.pipe.part_sent(op),
            Event::StreamReceived { op, dest } if op.number().is_some() => {
                dest.into_iter()
                    .for_each(|dest| self.pieces.push((op, dest)));
            }
            Event::StreamReceived { op, dest } => {
                if let Some(dest) = &dest {
                    let len = Some(dest.len() as u64);
                    assert_eq!(len, self.pipe.part_len(op));
                    self.pipe.part_received(op);
                }
                self.part(op, dest);
            }
            Event::Channel { op, body, .. } if self.lanes_wait => {
                self.pieces.push((op, body.to_vec()));
            }
            Event::Channel {
                op,
                channel: 1,
                body,
            } if !op.outgoing => {
                self.pipe.part_received(op);
                self.part(op, Some(body.to_vec()));
            }
            // Neither channel has anything to say about what this side sends, nor the first about what it receives.
            Event::Channel { .. } => {}
            Event::Cancel { op, .. } => self.cancelled.push(op),
            Event::Written { message } => self.written.push(message),
            Event::Refused(Reason { message, code, .. }) => self.refused.push((message, code)),
            Event::Reset(Reason { message, code, .. }) => {
                self.drop_message(message);
                self.resets.push((message, code));
            }
            Event::Flushed { message } => self.flushed.push(message),
            Event::GoAway { next, .. } => self.goaway.push(next),
            Event::Fin => self.fin = true,
            Event::FinAck => self.fin_ack = true,
            Event::Recalled => {}
        }
    }

    /// Handles parts that have come on connections of channel 1's own: a part waits there until its message is read, and is dropped once
    /// nobody will read it.
    pub(super) fn take_lane(&mut self) {
        for (op, bytes) in std::mem::take(&mut self.lane_in) {
            let in_hand = self.in_hand.get(&op.message);
            let comes = op.message >= self.pipe.incoming.next;
            if in_hand.map_or(comes, |of| !of.is_read) {
                self.lane_in.insert(op, bytes);
            } else if in_hand.is_some_and(|of| of.missing.contains(&op.part)) {
                self.pipe.part_received(op);
                self.part(op, Some(bytes));
            }
        }
        self.events();
    }

    fn part(&mut self, op: OpId, bytes: Option<Vec<u8>>) {
        let in_hand = self.in_hand.get_mut(&op.message);
        let in_hand = in_hand.expect("nothing is told of what was given up");
        in_hand.missing.remove(&op.part);
        in_hand.parts[usize::from(op.part)] = bytes;
        self.check_read(op.message);
    }

    fn is_over(&self) -> bool {
        self.fault.is_some() || self.silent.is_some()
    }

    pub(super) fn assert_clean(&self) {
        assert_eq!(self.fault, None);
        assert_eq!(self.pipe.unwritten(), 0, "{:?}", self.pipe.outgoing);
        let incoming = &self.pipe.incoming;
        assert!(incoming.messages.is_empty(), "{incoming:?}");
        assert!(self.pipe.outbox.streams.is_empty());
        assert!(self.in_hand.is_empty());
        assert!(!self.pipe.has_control() && self.pipe.outbox.flush.is_empty());
        assert!(self.backlog.is_empty());
        assert_eq!(self.pipe.receive_window.outstanding(), Default::default());
    }
}
