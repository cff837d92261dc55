//! What the two lanes of a pipe say to each other about a tensor.

use super::Fault;
use super::exports::SLOTS;
use crate::error::legible;

/// The longest reason, in bytes.
const REASON: usize = 400;

/// From the writer's lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FromWriter {
    /// It can be read, through this export.
    Export(Ticket),
    /// It cannot be read now: ask for its bytes.
    Unavailable,
}

/// An export of the writer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    /// Its place in the export table.
    pub(super) slot: u32,
    /// A random number, not 0.
    pub(super) number: u64,
    /// Length of the memory, in bytes.
    pub(super) len: u64,
}

/// From the reader's lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FromReader {
    /// It has been read.
    Done,
    /// It could not be read: send the bytes on the pipe's connection.
    Bytes(Refusal),
}

/// Why the reader cannot read the writer's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) reason: String,
    /// Later attempts would fail as well.
    pub(super) lasting: bool,
}

const EXPORT: u8 = 1;
const UNAVAILABLE: u8 = 2;
const DONE: u8 = 1;
const BYTES: u8 = 2;
const BYTES_ALWAYS: u8 = 3;

impl FromWriter {
    pub(super) fn encode(&self) -> Vec<u8> {
        let Self::Export(ticket) = self else {
            return vec![UNAVAILABLE];
        };
        let mut out = Vec::with_capacity(21);
        out.push(EXPORT);
        out.extend_from_slice(&ticket.slot.to_le_bytes());
        out.extend_from_slice(&ticket.number.to_le_bytes());
        out.extend_from_slice(&ticket.len.to_le_bytes());
        out
    }

    pub(super) fn decode(body: &[u8]) -> Result<Self, Fault> {
        if body == [UNAVAILABLE] {
            return Ok(Self::Unavailable);
        }
        let ticket = body.strip_prefix(&[EXPORT]).and_then(Ticket::decode);
        let ticket = ticket.ok_or_else(|| Fault("an export that makes no sense".to_owned()))?;
        Ok(Self::Export(ticket))
    }
}

impl Ticket {
    fn decode(rest: &[u8]) -> Option<Self> {
        let (slot, rest) = rest.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let ticket = Self {
            slot: u32::from_le_bytes(*slot),
            number: u64::from_le_bytes(*number),
            len: u64::from_le_bytes(rest.try_into().ok()?),
        };
        (ticket.slot < SLOTS && ticket.number > 0).then_some(ticket)
    }
}

impl FromReader {
    pub(super) fn encode(&self) -> Vec<u8> {
        let refusal = match self {
            Self::Done => return vec![DONE],
            Self::Bytes(refusal) => refusal,
        };
        let kind = match refusal.lasting {
            true => BYTES_ALWAYS,
            false => BYTES,
        };
        let end = refusal.reason.floor_char_boundary(REASON);
        [&[kind], &refusal.reason.as_bytes()[..end]].concat()
    }

    pub(super) fn decode(body: &[u8]) -> Result<Self, Fault> {
        match body.split_first() {
            Some((&DONE, [])) => Ok(Self::Done),
            Some((&kind @ (BYTES | BYTES_ALWAYS), reason)) if reason.len() <= REASON => {
                Ok(Self::Bytes(Refusal {
                    reason: legible(&String::from_utf8_lossy(reason)),
                    lasting: kind == BYTES_ALWAYS,
                }))
            }
            _ => Err(Fault("an answer that makes no sense".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_and_what_is_none_is_a_fault() {
        let ticket = Ticket {
            slot: SLOTS - 1,
            number: u64::MAX,
            len: 1 << 40,
        };
        let export = FromWriter::Export(ticket);
        let bytes = export.encode();
        assert_eq!(bytes.len(), 21);
        assert_eq!(FromWriter::decode(&bytes), Ok(export));
        assert_eq!(
            FromWriter::decode(&FromWriter::Unavailable.encode()),
            Ok(FromWriter::Unavailable)
        );
        let wild = FromWriter::Export(Ticket {
            slot: SLOTS,
            ..ticket
        });
        let longer = [&bytes[..], &[0]].concat();
        for bad in [&[][..], &[9], &bytes[..20], &longer, &wild.encode()] {
            assert!(FromWriter::decode(bad).is_err(), "{bad:?}");
        }
        for lasting in [true, false] {
            let reason = "why".to_owned();
            let answer = FromReader::Bytes(Refusal { reason, lasting });
            assert_eq!(FromReader::decode(&answer.encode()), Ok(answer));
        }
        assert_eq!(
            FromReader::decode(&FromReader::Done.encode()),
            Ok(FromReader::Done)
        );
        let long = FromReader::Bytes(Refusal {
            reason: "ü".repeat(1000),
            lasting: true,
        });
        assert!(FromReader::decode(&long.encode()).is_ok(), "it is cut");
        for bad in [&[][..], &[9], &[DONE, 0], &[BYTES; REASON + 2]] {
            assert!(FromReader::decode(bad).is_err(), "{bad:?}");
        }
    }
}
