//! An open pipe whose peer says anything, driven as the real driver does, by an application that does anything.

mod application;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use super::{OURS, THEIRS};
use crate::descriptor::Descriptor;
use crate::error::PeerFault;
use crate::proto::wire::descriptor::Carriage;
use crate::proto::{Arriving, Event, Input, KeepAlive, OpId, PipeState};

/// Channels that were negotiated; number 0 streams on the pipe's own connection.
const CHANNELS: usize = 2;

const SILENCE: Duration = Duration::from_secs(10);

/// The first byte is the length of the pieces in which the peer's bytes come, the second that of the application's
/// script, one byte a command, which follows; the peer's bytes are the rest. When the script is at its end, the
/// application reads and sends whatever there is.
pub fn frames(data: &[u8]) {
    let Some(([piece, script], rest)) = data.split_first_chunk::<2>() else {
        return;
    };
    let (script, bytes) = rest.split_at(usize::from(*script).min(rest.len()));
    let mut scene = Scene::new(script);
    let piece = match *piece {
        0 => bytes.len().max(1),
        piece => usize::from(piece),
    };
    for piece in bytes.chunks(piece) {
        scene.input.extend_from_slice(piece);
        // A fault ends the pipe.
        if scene.consume().is_err() {
            return scene.end();
        }
    }
    scene.settle();
    scene.end();
}

/// Memory of a part: only its length is of interest.
#[derive(Debug)]
struct Room(u64);

/// A run of bytes that belong to a part.
#[derive(Debug)]
struct Bulk {
    left: u64,
    got: u64,
    dest: Option<Room>,
}

struct Scene<'a> {
    pipe: PipeState<u64, Room>,
    now: Instant,
    script: std::slice::Iter<'a, u8>,
    input: Vec<u8>,
    need: usize,
    bulk: Option<Bulk>,
    /// Of the message whose own frame is coming in.
    arriving: Option<Descriptor>,
    /// Of those that the application has not taken.
    arrived: BTreeMap<u64, Descriptor>,
    /// Offered and not decided on.
    ready: VecDeque<u64>,
    /// Being read: bulk parts that are missing.
    reading: BTreeMap<u64, BTreeSet<u16>>,
    /// Parts of which nothing more may be told.
    cancelled: BTreeSet<OpId>,
}

impl<'a> Scene<'a> {
    /// Three messages of ours are with the peer: an eager one, and two that wait for its go-ahead.
    fn new(script: &'a [u8]) -> Self {
        let now = Instant::now();
        let mut scene = Self {
            pipe: PipeState::new(OURS, THEIRS, CHANNELS, KeepAlive::new(Some(SILENCE), now)),
            now,
            script: script.iter(),
            input: Vec::new(),
            need: 0,
            bulk: None,
            arriving: None,
            arrived: BTreeMap::new(),
            ready: VecDeque::new(),
            reading: BTreeMap::new(),
            cancelled: BTreeSet::new(),
        };
        scene.write(&[10]);
        scene.write(&[3000, 0]);
        scene.write(&[5, 2000, 100]);
        while scene.transmit() {}
        scene
    }

    /// What the driver does with bytes that have come in.
    fn consume(&mut self) -> Result<(), PeerFault> {
        loop {
            if let Some(bulk) = &mut self.bulk {
                let len = (self.input.len() as u64).min(bulk.left);
                self.input.drain(..len as usize);
                bulk.left -= len;
                bulk.got += len;
                if bulk.left > 0 {
                    self.act();
                    return Ok(());
                }
                if let Some(bulk) = self.bulk.take() {
                    let message = self.pipe.bulk_received(bulk.got, bulk.dest);
                    self.is_here(message);
                }
            } else if self.input.is_empty() || self.input.len() < self.need {
                self.act();
                return Ok(());
            } else {
                self.parse()?;
            }
            self.events();
            self.act();
        }
    }

    fn parse(&mut self) -> Result<(), PeerFault> {
        let (used, next) = self.pipe.handle(&self.input, self.now)?;
        self.input.drain(..used);
        match next {
            Input::NeedMore(len) => {
                // Either it moves on, or it waits for more than there is.
                assert!(used > 0 || len > self.input.len(), "it needs {len}");
                self.need = len;
            }
            Input::Message(arriving) => self.arrive(arriving),
            Input::Bulk(len) => {
                let target = self.pipe.bulk_target();
                assert!(len > 0 && len <= 1 << 14, "{len} bytes in one frame");
                let dest = target.and_then(|op| self.pipe.take_dest(op));
                let dest = dest.map(|(dest, at)| {
                    assert!(at + len <= dest.0, "{at} and {len} of {}", dest.0);
                    dest
                });
                self.bulk = Some(Bulk {
                    left: len,
                    got: 0,
                    dest,
                });
                self.need = 0;
            }
        }
        Ok(())
    }

    /// A message whose head is here.
    fn arrive(&mut self, arriving: Arriving) {
        self.events();
        self.need = 0;
        let offer = self.pipe.offered(&arriving, &self.input);
        let Arriving {
            message,
            head,
            here,
        } = arriving;
        let offer = offer.filter(|offer| {
            assert!(offer.word.start <= offer.word.end && offer.word.end <= self.input.len());
            self.script.next().is_some_and(|byte| byte % 2 == 0)
        });
        let all_eager = (head.carriages().iter()).all(|carriage| *carriage == Carriage::Eager);
        let is_whole = here.is_some() && (all_eager || offer.is_some());
        if !is_whole {
            self.pipe.expect_parts(message, &head);
        }
        self.arriving = Some(head.descriptor());
        let Some(eager) = here else {
            let parts: Vec<_> = self.pipe.eager_parts(message).collect();
            for (part, len) in parts {
                assert!(len <= u64::from(OURS.eager_part));
                self.pipe.set_dest(OpId::incoming(message, part), Room(len));
            }
            return self.pipe.start_eager(message);
        };
        let used = offer.as_ref().map_or(eager, |offer| offer.word.end);
        self.input.drain(..used);
        if let Some(offer) = offer {
            let op = OpId::incoming(message, offer.part);
            self.pipe.channel_late(op, vec![1]);
        } else if !is_whole {
            self.pipe.has_eager(message);
        }
        self.is_here(Some(message));
    }

    /// All of a message's own frame is here.
    fn is_here(&mut self, message: Option<u64>) {
        let Some(message) = message else { return };
        let Some(descriptor) = self.arriving.take() else {
            panic!("{message} has no head");
        };
        drop(self.pipe.take_parts(message));
        if self.pipe.comes_ahead(message) {
            for part in 0..OURS.parts {
                let op = OpId::incoming(message, part);
                if let (Some(len), Some((0, true))) = (
                    self.pipe.part_len(op),
                    self.pipe.bulk_channel(message, part),
                ) {
                    assert!(self.pipe.expect(op, Room(len), len));
                }
            }
        }
        self.arrived.insert(message, descriptor);
        self.ready.push_back(message);
    }

    fn events(&mut self) {
        while let Some(event) = self.pipe.poll_event() {
            self.event(event);
        }
        self.pipe.assert_sound();
    }

    fn event(&mut self, event: Event<u64, Room>) {
        if let Event::Start { op, .. }
        | Event::StreamSent { op }
        | Event::StreamReceived { op, .. }
        | Event::Channel { op, .. } = &event
        {
            assert!(!self.cancelled.contains(op), "{event:?} after its end");
        }
        if let Event::Start { channel, .. }
        | Event::Cancel { channel, .. }
        | Event::Channel { channel, .. } = &event
        {
            assert!(usize::from(*channel) < CHANNELS, "{event:?}");
        }
        match event {
            Event::Start {
                op,
                channel: 0,
                source,
            } => self.pipe.stream(op, source, source),
            Event::Start { op, .. } | Event::StreamSent { op } => self.pipe.part_sent(op),
            Event::StreamReceived { op, dest } => {
                if dest.is_some() {
                    self.pipe.part_received(op);
                }
                self.part(op);
            }
            Event::Channel { op, channel, .. } if channel != 0 && !op.outgoing => {
                self.pipe.part_received(op);
                self.part(op);
            }
            Event::Cancel { op, .. } => _ = self.cancelled.insert(op),
            Event::Reset { message, .. } => {
                self.ready.retain(|ready| *ready != message);
                self.reading.remove(&message);
            }
            Event::Refused { text, .. } | Event::GoAway { text, .. } => {
                assert!(text.len() <= 1024 && !text.contains(char::is_control));
            }
            Event::Written { .. }
            | Event::Flushed { .. }
            | Event::Channel { .. }
            | Event::Fin
            | Event::FinAck
            | Event::Recalled => {}
        }
    }

    fn part(&mut self, op: OpId) {
        if let Some(missing) = self.reading.get_mut(&op.message) {
            missing.remove(&op.part);
            if missing.is_empty() {
                self.reading.remove(&op.message);
                self.pipe.finish(op.message);
            }
        }
    }

    /// Everything that can leave, leaves.
    fn settle(&mut self) {
        self.events();
        while self.transmit() {}
    }

    fn end(mut self) {
        self.pipe.abandon();
        assert!(self.pipe.poll_event().is_none());
        assert!(!self.pipe.has_control());
    }
}
