//! The lanes' protocol: a few bytes on the pipe's connection, and a header before each chunk on the others. Integers are little-endian.

use super::{CONNECTIONS_MAX, ChannelFault, JoinToken, OpId};

/// A tensor travels in chunks of this many bytes. Each begins at a multiple of it, and the last may be shorter. Long enough that scheduling
/// chunks costs nothing, short enough that a slow connection holds up little.
pub(super) const CHUNK: u64 = 512 << 10;

/// The header's length, in bytes.
pub(super) const HEADER_LEN: usize = 28;

/// A frame on a further connection.
///
/// ```text
///  0      1   4     8                       20       28
///  kind   0   len   message, part, piece    offset         kind 1: a chunk; its bytes follow
///  kind   0   n     0                       0              kind 2: n chunks of yours are taken
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Chunk(ChunkHead),
    /// So many chunks that came on this connection are in place, in order.
    Taken(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkHead {
    /// The operation as its reader numbers it.
    pub(super) op: OpId,
    pub(super) offset: u64,
    pub(super) len: u32,
}

impl Frame {
    pub(super) fn encode(self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        match self {
            Self::Chunk(head) => {
                out[0] = 1;
                out[4..8].copy_from_slice(&head.len.to_le_bytes());
                out[8..20].copy_from_slice(&head.op.key());
                out[20..].copy_from_slice(&head.offset.to_le_bytes());
            }
            Self::Taken(chunks) => {
                out[0] = 2;
                out[4..8].copy_from_slice(&chunks.to_le_bytes());
            }
        }
        out
    }

    pub(super) fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, ChannelFault> {
        let [kind, _, _, _, l0, l1, l2, l3, rest @ ..] = *bytes;
        let (mut op, mut offset) = ([0; 12], [0; 8]);
        op.copy_from_slice(&rest[..12]);
        offset.copy_from_slice(&rest[12..]);
        let len = u32::from_le_bytes([l0, l1, l2, l3]);
        match kind {
            1 if len == 0 || u64::from(len) > CHUNK => {
                Err(ChannelFault(format!("a chunk of {len} bytes")))
            }
            1 => Ok(Self::Chunk(ChunkHead {
                op: OpId::from_key(op, false),
                offset: u64::from_le_bytes(offset),
                len,
            })),
            2 if len > 0 => Ok(Self::Taken(len)),
            2 => Err(ChannelFault("no chunk is confirmed".to_owned())),
            other => Err(ChannelFault(format!("a frame of the unknown kind {other}"))),
        }
    }
}

/// A frame on the pipe's connection, about one tensor: a byte for the kind, then tokens, if any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ControlMessage {
    /// Reader: memory is ready, send. Contains tokens if the reader can give some out and is not connected yet.
    Go(Vec<JoinToken>),
    /// Writer: join with these tokens.
    Tokens(Vec<JoinToken>),
    /// Reader: it cannot join.
    CannotJoin,
    /// Writer: the tensor has to travel on the pipe's connection.
    NotStriped,
    /// Reader: send it on the pipe's connection.
    Stream,
    /// Reader: all of it has arrived.
    Done,
}

impl ControlMessage {
    pub(super) fn encode(&self) -> Vec<u8> {
        let (kind, tokens): (u8, &[JoinToken]) = match self {
            Self::Go(tokens) => (0, tokens),
            Self::Tokens(tokens) => (1, tokens),
            Self::CannotJoin => (2, &[]),
            Self::NotStriped => (3, &[]),
            Self::Stream => (4, &[]),
            Self::Done => (5, &[]),
        };
        let mut out = vec![kind];
        out.extend(tokens.as_flattened());
        out
    }

    pub(super) fn decode(body: &[u8]) -> Result<Self, ChannelFault> {
        let malformed = || ChannelFault(format!("a control frame of {} bytes", body.len()));
        let (kind, rest) = body.split_first().ok_or_else(malformed)?;
        let (tokens, more) = rest.as_chunks::<16>();
        if !more.is_empty() || tokens.len() > usize::from(CONNECTIONS_MAX) {
            return Err(malformed());
        }
        match (kind, tokens.is_empty()) {
            (0, _) => Ok(Self::Go(tokens.to_vec())),
            (1, false) => Ok(Self::Tokens(tokens.to_vec())),
            (2, true) => Ok(Self::CannotJoin),
            (3, true) => Ok(Self::NotStriped),
            (4, true) => Ok(Self::Stream),
            (5, true) => Ok(Self::Done),
            (kind, _) => Err(ChannelFault(format!("a control frame of kind {kind}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;

    #[test]
    fn frames_are_what_they_were() {
        let head = ChunkHead {
            op: OpId::incoming(1 << 40, 300).piece(NonZeroU16::MAX),
            offset: 3 * CHUNK,
            len: 70_000,
        };
        for frame in [Frame::Chunk(head), Frame::Taken(5)] {
            assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
        }
        let tokens = vec![[7; 16], [8; 16]];
        let says = [
            ControlMessage::Go(tokens.clone()),
            ControlMessage::Go(vec![]),
            ControlMessage::Tokens(tokens),
        ];
        let others = [
            ControlMessage::CannotJoin,
            ControlMessage::NotStriped,
            ControlMessage::Stream,
            ControlMessage::Done,
        ];
        for say in says.into_iter().chain(others) {
            assert_eq!(ControlMessage::decode(&say.encode()), Ok(say));
        }
    }

    #[test]
    fn nonsense_is_named() {
        let long = |len: u32| {
            let mut frame = Frame::Taken(len).encode();
            frame[0] = 1;
            Frame::decode(&frame)
        };
        assert!(long(0).is_err() && long(CHUNK as u32 + 1).is_err());
        assert!(long(CHUNK as u32).is_ok());
        assert!(Frame::decode(&Frame::Taken(0).encode()).is_err());
        assert!(Frame::decode(&[9; HEADER_LEN]).is_err());
        for body in [&[][..], &[9], &[0, 1], &[1], &[5; 17], &[0; 1 + 17 * 16]] {
            assert!(ControlMessage::decode(body).is_err(), "{body:?}");
        }
    }
}
