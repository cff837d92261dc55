//! What a server measured of a call, as it travels: a block behind the header of the reply, for callers who ask.

use std::time::Duration;

use super::stats::ServerTimes;
use crate::codec::REPLY_HEADER;
use crate::header::{Header, STATS};

/// See the module's documentation. All numbers, saturating.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(super) times: ServerTimes,
    /// Of the call's message, as its reader counts: see [`MessageStats`](tensorpipe::MessageStats).
    pub(super) streamed: u64,
    pub(super) copied: u64,
    pub(super) channels: u64,
}

impl Figures {
    const LEN: usize = 48;

    /// The length of a reply's header with figures.
    pub(crate) const HEADER: usize = REPLY_HEADER + Self::LEN;

    /// Puts them behind the header that `metadata` begins with. What follows moves.
    pub(crate) fn put(&self, metadata: &mut Vec<u8>) {
        let Self {
            times,
            streamed,
            copied,
            channels,
        } = *self;
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let fields = [
            nanos(times.receiving),
            nanos(times.waiting),
            nanos(times.handling),
            streamed,
            copied,
            channels,
        ];
        metadata[1] = Self::HEADER as u8;
        metadata[2] |= STATS;
        let bytes = fields.into_iter().flat_map(u64::to_le_bytes);
        metadata.splice(REPLY_HEADER..REPLY_HEADER, bytes);
    }

    /// Those that a reply brings.
    pub(crate) fn find(header: &Header, metadata: &[u8]) -> Option<Self> {
        if header.flags & STATS == 0 {
            return None;
        }
        let (fields, _) = metadata.get(REPLY_HEADER..header.len)?.as_chunks::<8>();
        let [receiving, waiting, handling, streamed, copied, channels] =
            *fields.first_chunk::<6>()?;
        let time = |nanos| Duration::from_nanos(u64::from_le_bytes(nanos));
        Some(Self {
            times: ServerTimes {
                receiving: time(receiving),
                waiting: time(waiting),
                handling: time(handling),
            },
            streamed: u64::from_le_bytes(streamed),
            copied: u64::from_le_bytes(copied),
            channels: u64::from_le_bytes(channels),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::{Kind, examples::examples};

    fn figures() -> Figures {
        Figures {
            times: ServerTimes {
                receiving: Duration::from_micros(2),
                waiting: Duration::from_nanos(1),
                handling: Duration::from_millis(1),
            },
            streamed: 3,
            copied: 4,
            channels: 1,
        }
    }

    fn reply() -> Vec<u8> {
        let mut metadata = Header::plain(Kind::Value, 5).to_vec();
        metadata.extend_from_slice(b"body");
        figures().put(&mut metadata);
        metadata
    }

    #[test]
    fn they_stand_between_header_and_body() {
        let metadata = reply();
        let header = Header::decode(&metadata).unwrap();
        assert_eq!((header.kind, header.call), (Kind::Value, 5));
        assert_eq!(&metadata[header.len..], b"body");
        assert_eq!(Figures::find(&header, &metadata), Some(figures()));
    }

    #[test]
    fn wire_md_shows_them() {
        let shown = &examples("figures")["VALUE with figures"];
        assert_eq!(shown, &reply()[..Figures::HEADER]);
    }

    #[test]
    fn those_of_a_peer_that_makes_them_up_are_not_there() {
        let metadata = reply();
        for len in 0..=u8::MAX {
            let mut lies = metadata.clone();
            lies[1] = len;
            let Ok(header) = Header::decode(&lies) else {
                continue;
            };
            let found = Figures::find(&header, &lies);
            assert_eq!(
                found.is_some(),
                usize::from(len) >= Figures::HEADER,
                "{len}"
            );
        }
        let mut unflagged = metadata;
        unflagged[2] = 0;
        let header = Header::decode(&unflagged).unwrap();
        assert_eq!(Figures::find(&header, &unflagged), None);
        let mut endless = figures();
        endless.times.handling = Duration::MAX;
        let mut metadata = Header::plain(Kind::Value, 5).to_vec();
        endless.put(&mut metadata);
        let header = Header::decode(&metadata).unwrap();
        let found = Figures::find(&header, &metadata).unwrap();
        assert_eq!(found.times.handling, Duration::from_nanos(u64::MAX));
    }
}
