//! Frames made by hand from WIRE.md, not by the code under test, and a connection to send them on.

use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use super::stream::Stream;

pub(crate) const HELLO: u8 = 1;
pub(crate) const ANSWER: u8 = 2;
pub(crate) const REJECT: u8 = 3;
pub(crate) const STAY: u8 = 4;
pub(crate) const JOINED: u8 = 5;
pub(crate) const MESSAGE: u8 = 16;
pub(crate) const DATA: u8 = 17;
pub(crate) const GRANT: u8 = 18;
pub(crate) const WINDOW: u8 = 19;
pub(crate) const RESET: u8 = 20;
pub(crate) const REFUSE: u8 = 21;
pub(crate) const FLUSH: u8 = 22;
pub(crate) const FLUSHED: u8 = 23;
pub(crate) const PING: u8 = 24;
pub(crate) const PONG: u8 = 25;
pub(crate) const FIN: u8 = 27;
pub(crate) const FIN_ACK: u8 = 28;
pub(crate) const CHANNEL: u8 = 29;

/// How long a connection that is at fault may stand.
pub(crate) const SOON: Duration = Duration::from_secs(5);

pub(crate) fn preface() -> Vec<u8> {
    b"\x93TPIPE\r\n\x01\0\x01\0".to_vec()
}

pub(crate) fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    header(kind, body.len() as u32, body)
}

/// A frame that says another length than it has.
pub(crate) fn header(kind: u8, len: u32, body: &[u8]) -> Vec<u8> {
    let mut out = len.to_le_bytes().to_vec();
    out.extend_from_slice(&[kind, 0, 0, 0]);
    out.extend_from_slice(body);
    out
}

pub(crate) fn text(text: &[u8]) -> Vec<u8> {
    let mut out = (text.len() as u16).to_le_bytes().to_vec();
    out.extend_from_slice(text);
    out
}

/// Limits that take everything.
pub(crate) fn limits() -> Vec<u8> {
    let mut out = 68u16.to_le_bytes().to_vec();
    for value in [256u32 << 10, 64 << 10, 256 << 10, 1 << 20] {
        out.extend_from_slice(&value.to_le_bytes());
    }
    out.extend_from_slice(&4096u16.to_le_bytes());
    out.extend_from_slice(&[0, 0]);
    for value in [8u64 << 30, 64 << 30, 128 << 30, 1024, 4 << 20, 0] {
        out.extend_from_slice(&value.to_le_bytes());
    }
    out
}

/// The body of a HELLO for a new pipe, with transports and channels of these names.
pub(crate) fn hello_body(transports: &[&str], channels: &[&str]) -> Vec<u8> {
    let mut out = vec![0];
    out.extend(text(b"attacker"));
    out.extend([0x11; 16]);
    out.extend(limits());
    out.push(transports.len() as u8);
    for name in transports {
        out.extend(text(name.as_bytes()));
        out.extend(text(b"ip"));
    }
    out.push(channels.len() as u8);
    for name in channels {
        out.extend(text(name.as_bytes()));
        out.extend([0, 1, 0]);
        out.extend(text(b"any"));
    }
    out
}

/// What a peer of good will begins with.
pub(crate) fn hello() -> Vec<u8> {
    [preface(), frame(HELLO, &hello_body(&["tcp"], &["basic"]))].concat()
}

/// A tensor of a MESSAGE: its flags (1 eager) and channel, the rest of its fields.
pub(crate) fn tensor(flags: u8, channel: u8, dtype: u8, shape: &[u64]) -> Vec<u8> {
    let mut out = vec![flags, channel, dtype, shape.len() as u8];
    shape
        .iter()
        .for_each(|dim| out.extend_from_slice(&dim.to_le_bytes()));
    // From the CPU; no metadata.
    out.push(0);
    out.extend_from_slice(&[0; 4]);
    out
}

/// The body of a MESSAGE without payloads.
pub(crate) fn message_body(metadata: &[u8], tensors: &[Vec<u8>], content: &[u8]) -> Vec<u8> {
    let mut fields = (metadata.len() as u32).to_le_bytes().to_vec();
    fields.extend_from_slice(&[0; 2]);
    fields.extend_from_slice(&(tensors.len() as u16).to_le_bytes());
    fields.extend(tensors.concat());
    let mut out = (fields.len() as u32).to_le_bytes().to_vec();
    out.extend(fields);
    out.extend_from_slice(metadata);
    out.extend_from_slice(content);
    out
}

pub(crate) fn message(metadata: &[u8], tensors: &[Vec<u8>], content: &[u8]) -> Vec<u8> {
    frame(MESSAGE, &message_body(metadata, tensors, content))
}

pub(crate) fn data(message: u64, part: u16, content: &[u8]) -> Vec<u8> {
    let mut body = message.to_le_bytes().to_vec();
    body.extend_from_slice(&part.to_le_bytes());
    body.extend_from_slice(&[0; 2]);
    body.extend_from_slice(content);
    frame(DATA, &body)
}

/// RESET or REFUSE.
pub(crate) fn reason(kind: u8, message: u64, code: u8, why: &[u8]) -> Vec<u8> {
    let mut body = message.to_le_bytes().to_vec();
    body.push(code);
    body.extend(text(why));
    frame(kind, &body)
}

/// Bytes that look random and are the same each time.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut noise = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut noise);
    noise
}

/// One frame that came in.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) body: Vec<u8>,
}

/// A connection of a hostile peer's.
#[derive(Debug)]
pub(crate) struct Raw(pub(crate) Stream);

impl Raw {
    pub(crate) fn connect(url: &str) -> Self {
        Self(Stream::connect(url))
    }

    /// An open pipe.
    pub(crate) fn open(url: &str) -> Self {
        let mut raw = Self::connect(url);
        raw.send(&hello());
        raw.expect_preface();
        let answer = raw.frame().expect("an answer");
        assert_eq!(answer.kind, ANSWER, "{answer:?}");
        raw
    }

    pub(crate) fn expect_preface(&mut self) {
        self.0.set_read_timeout(SOON);
        let mut found = [0; 12];
        self.0.read_exact(&mut found).expect("a preface");
        assert_eq!(found.to_vec(), preface());
    }

    /// Sends; a peer that has cut the connection is no fault here. Returns whether it has not.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> bool {
        self.0.set_write_timeout(SOON);
        self.0.write_all(bytes).is_ok()
    }

    /// The next frame, or `None` at the end.
    pub(crate) fn frame(&mut self) -> Option<Frame> {
        self.0.set_read_timeout(SOON);
        let mut header = [0; 8];
        self.0.read_exact(&mut header).ok()?;
        let len = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        let mut body = vec![0; len as usize];
        self.0.read_exact(&mut body).ok()?;
        Some(Frame {
            kind: header[4],
            body,
        })
    }

    /// The next frame of this kind; others are dropped.
    pub(crate) fn frame_of(&mut self, kind: u8) -> Frame {
        loop {
            let frame = self
                .frame()
                .unwrap_or_else(|| panic!("the end instead of a frame of kind {kind}"));
            if frame.kind == kind {
                return frame;
            }
        }
    }

    /// Asks for a PONG, and returns the messages that come before it.
    pub(crate) fn messages_before_a_pong(&mut self) -> Vec<Frame> {
        assert!(self.send(&frame(PING, &[1; 8])));
        let frames = std::iter::from_fn(|| self.frame());
        let before = frames.take_while(|frame| frame.kind != PONG);
        before.filter(|frame| frame.kind == MESSAGE).collect()
    }

    /// Waits until the other side cuts the connection. Returns what came before.
    pub(crate) fn is_cut(&mut self, what: &str, within: Duration) -> Vec<u8> {
        let begun = Instant::now();
        let mut came = Vec::new();
        let mut piece = [0; 4096];
        loop {
            let left = within.saturating_sub(begun.elapsed());
            assert!(
                !left.is_zero(),
                "{what}: the connection still stands after {within:?}"
            );
            self.0.set_read_timeout(left);
            match self.0.read(&mut piece) {
                Ok(0) => return came,
                Ok(len) => came.extend_from_slice(&piece[..len]),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    _ => return came,
                },
            }
        }
    }

    pub(crate) fn finish_sending(&mut self) {
        self.0.finish_sending();
    }
}
