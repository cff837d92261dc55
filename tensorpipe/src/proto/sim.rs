//! Two pipes, a virtual clock, and links between them that are slow, stall, and are cut at a given byte.
//!
//! [`End`] is the smallest driver that does what the real one does; a story writes on one end, runs the clock, and
//! looks at what the other end was told. Invariant: nothing here depends on wall time or chance.

mod driver;
mod end;
mod message;

pub(super) use end::End;
pub(super) use message::{Msg, limits, message};

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::wire::hello::WireLimits;

/// The clock's step.
pub(super) const TICK: Duration = Duration::from_millis(1);

/// More steps than any story takes.
const STEPS_MAX: usize = 1_000_000;

/// One direction of a connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) latency: Duration,
    pub(super) bytes_per_tick: usize,
    /// Takes nothing while this is set.
    pub(super) stalled: bool,
    /// Bytes after which the connection is gone.
    pub(super) cut_at: Option<u64>,
    pub(super) sent: u64,
    room: usize,
    under_way: VecDeque<(Instant, Vec<u8>)>,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            latency: Duration::ZERO,
            bytes_per_tick: usize::MAX,
            stalled: false,
            cut_at: None,
            sent: 0,
            room: usize::MAX,
            under_way: VecDeque::new(),
        }
    }
}

impl Link {
    pub(super) fn room(&self) -> usize {
        if self.stalled { 0 } else { self.room }
    }

    pub(super) fn send(&mut self, bytes: &[u8], now: Instant) {
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
pub(super) struct Pair {
    pub(super) a: End,
    pub(super) b: End,
    pub(super) a_to_b: Link,
    pub(super) b_to_a: Link,
    pub(super) now: Instant,
}

impl Pair {
    /// Two open pipes with the usual limits.
    pub(super) fn new() -> Self {
        Self::with(limits(), limits(), None)
    }

    /// Two open pipes; `silence` arms the keep-alive.
    pub(super) fn with(a: WireLimits, b: WireLimits, silence: Option<Duration>) -> Self {
        let now = Instant::now();
        Self {
            a: End::open(a, b, silence, now),
            b: End::open(b, a, silence, now),
            a_to_b: Link::default(),
            b_to_a: Link::default(),
            now,
        }
    }

    /// Two ends that shake hands first; `a` connects.
    pub(super) fn connecting(a: WireLimits, b: WireLimits) -> Self {
        let mut pair = Self::with(a, b, None);
        pair.a.connect();
        pair.b.listen();
        pair
    }

    /// One tick. Returns whether anything moved.
    pub(super) fn step(&mut self) -> bool {
        self.now += TICK;
        let mut moved = false;
        let now = self.now;
        for (end, link) in [
            (&mut self.a, &mut self.a_to_b),
            (&mut self.b, &mut self.b_to_a),
        ] {
            link.room = link.bytes_per_tick;
            end.timeout(now);
            moved |= end.transmit(link, now);
        }
        for (end, link) in [
            (&mut self.b, &mut self.a_to_b),
            (&mut self.a, &mut self.b_to_a),
        ] {
            // What has come in since the last look comes in one piece.
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
        moved
    }

    /// Until nothing moves any more.
    pub(super) fn run(&mut self) {
        for _ in 0..STEPS_MAX {
            if !self.step() {
                return;
            }
        }
        panic!("the two ends never come to rest");
    }

    pub(super) fn run_for(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.now < end {
            self.step();
        }
    }

    /// Nothing is left in either state, and all credit has come back.
    pub(super) fn assert_clean(&self) {
        self.a.assert_clean();
        self.b.assert_clean();
    }
}
