//! Messages of metadata alone, as most calls and answers are: written from bytes and found as bytes, with no head in between.
//!
//! Invariant: the frame, the credit that it takes and what is refused are those of the long way
//! ([`write`](PipeState::write), `Head::decode`), to which everything goes that is not as usual.

use bytes::Bytes;

use super::flow::Amount;
use super::pipe::PipeState;
use super::read::Held;
use super::wire::frame::{HEADER_LEN, Kind};
use super::write::credit_of;
use crate::error::PeerFault;

/// What stands before the metadata: the length of the fields, and of these the metadata's length and two counts of nothing.
const FIELDS: usize = 4 + 4 + 2 + 2;

impl<S: Clone, D> PipeState<S, D> {
    /// Appends the frame of a message of this `metadata` to `out` if it may leave at once, and returns its number. `None`,
    /// with nothing done: it takes the long way, which also says what is wrong with it.
    pub(crate) fn write_bare(&mut self, metadata: &[u8], out: &mut Vec<u8>) -> Option<u64> {
        let len = u32::try_from(metadata.len()).ok()?;
        if self.closing.asked
            || len > self.peer.metadata
            || !self.is_next()
            || !self.send_window.take(credit_of(len as usize, 0))
        {
            return None;
        }
        let mut front = [0; HEADER_LEN + FIELDS];
        front[..4].copy_from_slice(&(FIELDS as u32 + len).to_le_bytes());
        front[4] = Kind::Message as u8;
        front[8..12].copy_from_slice(&(FIELDS as u32 - 4).to_le_bytes());
        front[12..16].copy_from_slice(&len.to_le_bytes());
        out.reserve(front.len() + metadata.len());
        out.extend_from_slice(&front);
        out.extend_from_slice(metadata);
        Some(self.outgoing.pass())
    }

    /// The metadata of the message whose body, of `len` bytes, begins `body`, if it is all here and has nothing else.
    pub(super) fn bare<'a>(&self, len: u32, body: &'a [u8]) -> Option<&'a [u8]> {
        let (front, metadata) = body.get(..len as usize)?.split_first_chunk::<FIELDS>()?;
        let [a, b, c, d, e, f, g, h, none @ ..] = *front;
        let fields = u32::from_le_bytes([a, b, c, d]) as usize;
        let metadata_len = u32::from_le_bytes([e, f, g, h]);
        let usual = fields == FIELDS - 4
            && none == [0; 4]
            && metadata_len as usize == metadata.len()
            && metadata_len <= self.ours.metadata
            && self.closing.ignore_from.is_none();
        usual.then_some(metadata)
    }

    /// Such a message has come. Returns its number, and its metadata to keep.
    pub(super) fn bare_message(&mut self, metadata: &[u8]) -> Result<(u64, Bytes), PeerFault> {
        let credit = credit_of(metadata.len(), 0);
        self.receive_window.receive(Amount::of_whole(credit))?;
        let number = self.incoming.push(Held::Whole(credit));
        Ok((number, Bytes::copy_from_slice(metadata)))
    }
}

/// Where the metadata begins in the frame of a message.
pub(crate) fn metadata_at(frame: &[u8]) -> Option<usize> {
    let (fields, _) = frame.get(HEADER_LEN..)?.split_first_chunk()?;
    (HEADER_LEN + fields.len()).checked_add(u32::from_le_bytes(*fields) as usize)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::descriptor::{Descriptor, PayloadDescriptor};
    use crate::proto::KeepAlive;
    use crate::proto::wire::descriptor::{Carriage, Carriages, Head};
    use crate::proto::wire::hello::tests::limits;

    type State = PipeState<Vec<u8>, Vec<u8>>;

    fn state() -> State {
        State::new(limits(), limits(), 0, KeepAlive::new(None, Instant::now()))
    }

    fn long_way(metadata: &[u8]) -> Vec<u8> {
        let descriptor = Descriptor {
            metadata: Bytes::copy_from_slice(metadata),
            ..Descriptor::default()
        };
        let carriages = Carriages::new();
        let mut out = Vec::new();
        Head {
            descriptor,
            carriages,
        }
        .put(&mut out);
        out
    }

    #[test]
    fn its_frame_is_that_of_the_long_way() {
        let mut state = state();
        for metadata in [&b""[..], b"a", &[7; 300]] {
            let mut out = Vec::new();
            state.write_bare(metadata, &mut out).unwrap();
            assert_eq!(out, long_way(metadata));
            let (header, body) = out.split_at(HEADER_LEN);
            let len = u32::from_le_bytes(*header.first_chunk().unwrap());
            assert_eq!(state.bare(len, body), Some(metadata));
            for cut in 0..body.len() {
                assert_eq!(state.bare(len, &body[..cut]), None);
            }
        }
    }

    #[test]
    fn metadata_is_found_behind_whatever_stands_before_it() {
        let payload = PayloadDescriptor {
            len: 9,
            metadata: Bytes::from_static(b"of the payload"),
        };
        for payloads in 0..3 {
            let descriptor = Descriptor {
                metadata: Bytes::from_static(b"of all"),
                payloads: vec![payload.clone(); payloads],
                ..Descriptor::default()
            };
            let carriages = descriptor
                .payloads
                .iter()
                .map(|_| Carriage::Eager)
                .collect();
            let mut out = Vec::new();
            Head {
                descriptor,
                carriages,
            }
            .put(&mut out);
            let at = metadata_at(&out).unwrap();
            assert!(out[at..].starts_with(b"of all"), "{payloads}");
        }
        assert_eq!(metadata_at(&[0; HEADER_LEN + 3]), None);
    }

    #[test]
    fn what_is_not_as_usual_takes_the_long_way() {
        let mut state = state();
        let mut out = Vec::new();
        let too_long = vec![0; limits().metadata as usize + 1];
        assert_eq!(state.write_bare(&too_long, &mut out), None);
        let queued = state.write(Descriptor::default(), []).unwrap();
        assert_eq!(state.write_bare(b"overtakes", &mut out), None);
        assert_eq!((queued, out.len()), (0, 0));
        // Fields of a later version, a part, a length that is not the frame's.
        let frame = long_way(b"meta");
        let body = &frame[HEADER_LEN..];
        for (at, value) in [(0, 9), (4, 5), (4, 3), (8, 1), (10, 1)] {
            let mut other = body.to_vec();
            other[at] = value;
            assert_eq!(state.bare(body.len() as u32, &other), None, "byte {at}");
        }
    }

    #[test]
    fn its_credit_is_what_the_long_way_takes() {
        let (mut one, mut other) = (state(), state());
        let mut many = 0;
        while one.write_bare(b"some bytes", &mut Vec::new()).is_some() {
            many += 1;
        }
        let frame = long_way(b"some bytes");
        for _ in 0..many {
            let input = [frame.as_slice(), b"next"].concat();
            let now = Instant::now();
            other.handle(&input, now).unwrap();
        }
        let now = Instant::now();
        assert!(other.handle(&frame, now).is_err(), "more than its credit");
    }
}
