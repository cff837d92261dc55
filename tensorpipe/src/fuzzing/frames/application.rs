//! What the application does: one command of the script after another, and what leaves because of it.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::{CHANNELS, Room, SILENCE, Scene, THEIRS};
use crate::error::ResetCode;
use crate::proto::{OpId, OutgoingPart, Segment};

impl Scene<'_> {
    /// One command of the application's.
    pub(super) fn act(&mut self) {
        let Some(command) = self.script.next() else {
            self.read(&[]);
            self.transmit();
            return self.events();
        };
        let number = u64::from(command >> 4);
        match command & 15 {
            0 => self.read(&[]),
            1 => self.read(&[0]),
            2 => {
                if let Some(message) = self.ready.pop_front() {
                    self.pipe.refuse(message, ResetCode::Refused, "no");
                }
            }
            3 => {
                if let Some((message, _)) = self.reading.pop_first() {
                    self.pipe.refuse(message, ResetCode::Cancelled, "");
                }
            }
            4 => {
                if let Some((message, _)) = self.reading.pop_last() {
                    self.pipe.finish(message);
                }
            }
            5 => self.write(&[number * 300]),
            6 => self.pipe.reset(number, ResetCode::Cancelled, "enough"),
            7 => {
                if let Some(last) = self.pipe.last_written() {
                    self.pipe.flush(last);
                }
            }
            8 => self.pipe.close(),
            9 => _ = self.pipe.go_away("bye"),
            10 => _ = (0..=number).all(|_| self.transmit()),
            11 => {
                self.now += SILENCE / 2;
                // A silent peer is given up; here it goes on.
                let _ = self.pipe.handle_timeout(self.now);
            }
            // Bytes go on coming.
            _ => {}
        }
        self.events();
    }

    pub(super) fn read(&mut self, skip: &[u16]) {
        let Some(message) = self.ready.pop_front() else {
            return;
        };
        let Some(descriptor) = self.arrived.remove(&message) else {
            // Taken back meanwhile.
            return;
        };
        assert!(self.pipe.grant(message, skip), "{message} was ready");
        let parts = descriptor.payloads.len() + descriptor.tensors.len();
        let mut missing = BTreeSet::new();
        for part in 0..parts as u16 {
            let op = OpId::incoming(message, part);
            let len = self.pipe.part_len(op).unwrap_or_default();
            match self.pipe.bulk_channel(message, part) {
                Some((channel, false)) if !skip.contains(&part) => {
                    if channel == 0 {
                        assert!(self.pipe.expect(op, Room(len), len));
                    }
                    missing.insert(part);
                }
                _ => {}
            }
        }
        if missing.is_empty() {
            self.pipe.finish(message);
        } else {
            self.reading.insert(message, missing);
        }
    }

    /// Writes a message of payloads of these lengths; even parts stream, odd ones go by the other channel.
    pub(super) fn write(&mut self, lengths: &[u64]) {
        let mut riding = 0;
        let part = |(i, len): (usize, &u64)| {
            let rides = *len <= 64 && riding + len <= u64::from(THEIRS.eager_message);
            riding += if rides { *len } else { 0 };
            OutgoingPart {
                len: *len,
                metadata: Bytes::new(),
                tensor: None,
                target: None,
                channel: (!rides).then_some((i % CHANNELS) as u8),
                source: *len,
                flags_at: 0,
            }
        };
        let mut parts = lengths.iter().enumerate().map(part).collect();
        // Refused once it closes.
        let _ = self.pipe.write(b"meta", &mut parts, None);
    }

    /// One frame leaves, whole. Returns whether there was one.
    pub(super) fn transmit(&mut self) -> bool {
        let (mut bytes, mut segments) = (Vec::new(), Vec::new());
        if !self.pipe.poll_transmit(&mut bytes, &mut segments) {
            return false;
        }
        let mut len = 0;
        let mut marks = Vec::new();
        for segment in segments {
            match segment {
                Segment::Control(bytes) => len += bytes as u64,
                Segment::Data { source, range } => {
                    assert!(range.start < range.end && range.end <= source);
                    len += range.end - range.start;
                }
                Segment::Mark(mark) => marks.push(mark),
            }
        }
        let body = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        assert_eq!(len, 8 + u64::from(body), "one whole frame at a time");
        for mark in marks {
            self.pipe.written(mark);
        }
        self.events();
        true
    }
}
