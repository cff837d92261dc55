//! Two pipes, a virtual clock, and links between them that are slow, stall, and are cut at a given byte. Beside them a channel
//! may have connections of its own, where parts overtake each other and the frames of the pipe.
//!
//! [`End`] is the smallest driver that does what the real one does; a story writes on one end, runs the clock, and
//! checks what the other end was told. Invariant: nothing here depends on wall time or chance.

mod driver;
mod end;
pub(crate) mod frames;
mod message;

pub(crate) use end::End;
#[cfg(test)]
pub(crate) use message::reject;
pub(crate) use message::{Msg, answer, choose, hello, limits, message, purpose};

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::OpId;
use super::flow::AtOnce;
use super::wire::hello::WireLimits;

/// Channels that were negotiated.
const CHANNELS: usize = 2;

/// The clock's step.
const TICK: Duration = Duration::from_millis(1);

/// More steps than any story takes.
const STEPS_MAX: usize = 1_000_000;

/// One direction of a connection.
#[derive(Debug, Default)]
pub(crate) struct Link {
    pub(crate) latency: Duration,
    /// `None`: as many as there are.
    pub(crate) bytes_per_tick: Option<usize>,
    /// Takes nothing while this is set.
    pub(crate) stalled: bool,
    /// Bytes after which the connection is gone.
    pub(crate) cut_at: Option<u64>,
    pub(crate) sent: u64,
    /// What it still takes in this tick, in bytes.
    room: usize,
    under_way: VecDeque<(Instant, Vec<u8>)>,
}

impl Link {
    /// One that takes so many bytes.
    pub(crate) fn taking(room: usize) -> Self {
        Self {
            room,
            ..Self::default()
        }
    }

    pub(crate) fn room(&self) -> usize {
        if self.stalled { 0 } else { self.room }
    }

    pub(crate) fn send(&mut self, bytes: &[u8], now: Instant) {
        self.room -= bytes.len().min(self.room);
        let left = self.cut_at.map_or(u64::MAX, |at| at - self.sent.min(at));
        let kept = &bytes[..bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
        self.sent += bytes.len() as u64;
        if !kept.is_empty() {
            self.under_way
                .push_back((now + self.latency, kept.to_vec()));
        }
    }

    fn receive(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.stalled || self.under_way.front()?.0 > now {
            return None;
        }
        Some(self.under_way.pop_front()?.1)
    }
}

/// Two ends and what lies between.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) a: End,
    pub(crate) b: End,
    pub(crate) a_to_b: Link,
    pub(crate) b_to_a: Link,
    pub(crate) now: Instant,
    /// How much longer a part takes on a connection of its channel's own than the one before it.
    lane_latency: Duration,
    /// Such parts: when they come, and whether to `a`.
    lanes: Vec<(Instant, bool, OpId, Vec<u8>)>,
}

impl Pair {
    /// Two open pipes with the usual limits.
    pub(crate) fn new() -> Self {
        Self::with(limits(), limits(), None)
    }

    /// The same, where `b` reads only what it is told to.
    pub(crate) fn lazy() -> Self {
        Self::new().told()
    }

    /// Two open pipes, where `b` takes what these limits say.
    pub(crate) fn reader(change: impl FnOnce(&mut WireLimits)) -> Self {
        let mut reader = limits();
        change(&mut reader);
        Self::with(limits(), reader, None)
    }

    /// `b` reads only what it is told to.
    pub(crate) fn told(mut self) -> Self {
        self.b.lazy = true;
        self
    }

    /// Channel 1 needs no go-ahead.
    pub(crate) fn at_once(mut self) -> Self {
        for end in [&mut self.a, &mut self.b] {
            end.pipe.set_at_once(AtOnce::new([false, true]));
        }
        self
    }

    /// Bytes take so many milliseconds from end to end.
    pub(crate) fn latency(mut self, millis: u64) -> Self {
        for link in [&mut self.a_to_b, &mut self.b_to_a] {
            link.latency = Duration::from_millis(millis);
        }
        self
    }

    /// Channel 1 has connections of its own. Part 0 comes at once, each other one so many milliseconds behind the last.
    pub(crate) fn own_lanes(mut self, millis: u64) -> Self {
        (self.a.own_lanes, self.b.own_lanes) = (true, true);
        self.lane_latency = Duration::from_millis(millis);
        self
    }

    /// The link from `a` to `b` takes so many bytes in a millisecond.
    pub(crate) fn rate(mut self, bytes: usize) -> Self {
        self.a_to_b.bytes_per_tick = Some(bytes);
        self
    }

    /// Two open pipes; `silence` arms the keep-alive.
    pub(crate) fn with(a: WireLimits, b: WireLimits, silence: Option<Duration>) -> Self {
        let now = Instant::now();
        Self {
            a: End::open(a, b, silence, now),
            b: End::open(b, a, silence, now),
            a_to_b: Link::default(),
            b_to_a: Link::default(),
            now,
            lane_latency: Duration::ZERO,
            lanes: Vec::new(),
        }
    }

    /// Two ends that shake hands first; `a` connects.
    pub(crate) fn connecting(a: WireLimits, b: WireLimits) -> Self {
        let mut pair = Self::with(a, b, None);
        pair.a.connect();
        pair.b.listen();
        pair
    }

    /// One tick. Returns whether anything moved.
    pub(crate) fn step(&mut self) -> bool {
        self.now += TICK;
        let mut moved = false;
        let now = self.now;
        for (end, link) in [
            (&mut self.a, &mut self.a_to_b),
            (&mut self.b, &mut self.b_to_a),
        ] {
            link.room = link.bytes_per_tick.unwrap_or(usize::MAX);
            end.timeout(now);
            moved |= end.transmit(link, now);
        }
        for (end, link) in [
            (&mut self.b, &mut self.a_to_b),
            (&mut self.a, &mut self.b_to_a),
        ] {
            // What has come in since the last step comes in one piece.
            let mut arrived = Vec::new();
            while let Some(bytes) = link.receive(now) {
                arrived.extend_from_slice(&bytes);
            }
            if !arrived.is_empty() {
                end.receive(&arrived, now);
                moved = true;
            }
            moved |= !link.stalled && !link.under_way.is_empty();
        }
        moved | self.step_lanes()
    }

    fn step_lanes(&mut self) -> bool {
        for (to_a, end) in [(false, &mut self.a), (true, &mut self.b)] {
            for (op, bytes) in end.app.lane_out.drain(..) {
                let at = self.now + self.lane_latency * u32::from(op.part);
                let op = OpId::incoming(op.message, op.part);
                self.lanes.push((at, to_a, op, bytes));
            }
        }
        let moves = !self.lanes.is_empty();
        let here = |(at, ..): &mut (Instant, _, _, _)| *at <= self.now;
        for (_, to_a, op, bytes) in self.lanes.extract_if(.., here) {
            let end = if to_a { &mut self.a } else { &mut self.b };
            end.lane_in.insert(op, bytes);
            end.take_lane();
        }
        moves
    }

    /// Until nothing moves any more.
    pub(crate) fn run(&mut self) {
        for _ in 0..STEPS_MAX {
            if !self.step() {
                return;
            }
        }
        panic!("the two ends never come to rest");
    }

    /// For so many milliseconds.
    pub(crate) fn run_for(&mut self, millis: u64) {
        (0..millis).for_each(|_| _ = self.step());
    }

    /// `a` writes, and the clock runs. Returns the message's number.
    pub(crate) fn send(&mut self, message: &Msg) -> u64 {
        let number = self.a.write(message);
        self.run();
        number
    }

    /// `b` reads, and the clock runs.
    pub(crate) fn read(&mut self, message: u64) {
        self.b.read(message);
        self.run();
    }

    /// `b` is told what `a` never said.
    pub(crate) fn tell(&mut self, bytes: &[u8]) {
        self.b.receive(bytes, self.now);
    }

    /// Everything that can still happen does. Nothing is left in either state then, and all credit has come back.
    pub(crate) fn settle(&mut self) {
        self.run();
        self.a.assert_clean();
        self.b.assert_clean();
    }
}
