//! The wire form of a server's measurements: they end the reply's header, for callers who ask.

use std::time::Duration;

use tensorpipe::MessageStats;

use super::stats::ServerTimes;
use super::stream_traffic::Counted;
use crate::codec::REPLY_HEADER;
use crate::header::{Header, STATS};

/// See the module's documentation. All numbers saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerStats {
    pub(super) times: ServerTimes,
    /// How the call's message travelled, once it is complete.
    pub(super) request: Option<MessageStats>,
    /// How much of the stream argument has come, if the method has one.
    pub(super) argument: Option<Counted>,
}

impl ServerStats {
    const LEN: usize = 56;

    /// The length of the figures about the stream argument.
    const ARGUMENT_LEN: usize = 40;

    /// The length of the last field: how long the reply waited to leave.
    const LEAVING_LEN: usize = 8;

    /// The length of a reply's header with these figures.
    pub(crate) fn header_len(&self) -> usize {
        let argument = self.argument.map_or(0, |_| Self::ARGUMENT_LEN);
        REPLY_HEADER + Self::LEN + argument + Self::LEAVING_LEN
    }

    /// Where a reply's header has the field for how long the reply waited to leave. `None` if the header has no figures.
    pub(crate) fn leaving_at(header_len: usize) -> Option<usize> {
        (header_len > REPLY_HEADER).then(|| header_len - Self::LEAVING_LEN)
    }

    /// Inserts the figures after the header at the front of `metadata`. The bytes behind it move.
    pub(crate) fn put(&self, metadata: &mut Vec<u8>) {
        let Self {
            times,
            request,
            argument,
        } = self;
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let mut fields = vec![
            nanos(times.receiving),
            nanos(times.waiting),
            nanos(times.handling),
        ];
        fields.extend(request.map_or(UNKNOWN, numbers));
        if let Some(argument) = argument {
            fields.push(argument.items);
            fields.extend(numbers(argument.transfer));
        }
        fields.push(nanos(times.sending));
        metadata[1] = self.header_len() as u8;
        metadata[2] |= STATS;
        let bytes = fields.into_iter().flat_map(u64::to_le_bytes);
        metadata.splice(REPLY_HEADER..REPLY_HEADER, bytes);
    }

    /// The figures in a reply's metadata, if it has some.
    pub(crate) fn find(header: &Header, metadata: &[u8]) -> Option<Self> {
        if header.flags & STATS == 0 {
            return None;
        }
        let (fields, _) = metadata.get(REPLY_HEADER..header.body_at)?.as_chunks::<8>();
        let ([receiving, waiting, handling, request @ ..], more) =
            fields.split_first_chunk::<7>()?;
        let time = |nanos: &[u8; 8]| Duration::from_nanos(u64::from_le_bytes(*nanos));
        let request = travelled(request);
        let known = numbers(request) != UNKNOWN;
        let (argument, more) = match more.split_first_chunk::<5>() {
            // A later version that sends more fields marks a missing stream argument in this way.
            Some((argument, more)) => ((*argument != NO_ARGUMENT).then_some(argument), more),
            None => (None, more),
        };
        Some(Self {
            times: ServerTimes {
                receiving: time(receiving),
                waiting: time(waiting),
                handling: time(handling),
                // Older servers do not send it.
                sending: more.first().map_or(Duration::ZERO, time),
            },
            request: known.then_some(request),
            argument: argument.map(|[items, came @ ..]| Counted {
                items: u64::from_le_bytes(*items),
                // Not on the wire: the caller knows how much it sent.
                bytes: 0,
                transfer: travelled(came),
            }),
        })
    }
}

/// Marks that there is no stream argument, if more fields follow.
const NO_ARGUMENT: [[u8; 8]; 5] = [[u8::MAX; 8]; 5];

/// Marks unknown numbers.
const UNKNOWN: [u64; 4] = [u64::MAX; 4];

fn numbers(travelled: MessageStats) -> [u64; 4] {
    let MessageStats {
        streamed,
        copied,
        copied_by_writer,
        channels,
        ..
    } = travelled;
    [streamed, copied, copied_by_writer, channels]
}

fn travelled(numbers: &[[u8; 8]; 4]) -> MessageStats {
    let [streamed, copied, copied_by_writer, channels] = numbers.map(u64::from_le_bytes);
    let mut travelled = MessageStats::default();
    travelled.streamed = streamed;
    travelled.copied = copied;
    travelled.copied_by_writer = copied_by_writer;
    travelled.channels = channels;
    travelled
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::{Kind, examples::examples};

    fn figures() -> ServerStats {
        ServerStats {
            times: ServerTimes {
                receiving: Duration::from_micros(2),
                waiting: Duration::from_nanos(1),
                handling: Duration::from_millis(1),
                sending: Duration::from_nanos(5),
            },
            request: Some(of([3, 4, 7, 1])),
            argument: None,
        }
    }

    fn of(numbers: [u64; 4]) -> MessageStats {
        travelled(&numbers.map(u64::to_le_bytes))
    }

    fn of_stream() -> ServerStats {
        let argument = Counted {
            items: 9,
            bytes: 0,
            transfer: of([5, 6, 0, 2]),
        };
        ServerStats {
            argument: Some(argument),
            ..figures()
        }
    }

    fn reply(figures: ServerStats) -> Vec<u8> {
        let mut metadata = Header::plain(Kind::Value, 5).to_vec();
        metadata.extend_from_slice(b"body");
        figures.put(&mut metadata);
        metadata
    }

    #[test]
    fn they_stand_between_header_and_body() {
        let unknown = ServerStats {
            request: None,
            ..figures()
        };
        for figures in [figures(), of_stream(), unknown] {
            let metadata = reply(figures);
            let header = Header::decode(&metadata).unwrap();
            assert_eq!((header.kind, header.call), (Kind::Value, 5));
            assert_eq!(header.body_at, figures.header_len());
            assert_eq!(&metadata[header.body_at..], b"body");
            assert_eq!(ServerStats::find(&header, &metadata), Some(figures));
        }
    }

    #[test]
    fn those_of_an_older_server_do_not_tell_how_long_the_reply_waited() {
        for mut figures in [figures(), of_stream()] {
            let metadata = reply(figures);
            let mut older = metadata[..figures.header_len() - ServerStats::LEAVING_LEN].to_vec();
            older[1] = older.len() as u8;
            let header = Header::decode(&older).unwrap();
            figures.times.sending = Duration::ZERO;
            assert_eq!(ServerStats::find(&header, &older), Some(figures));
        }
    }

    #[test]
    fn those_of_a_later_server_that_tells_more_are_not_taken_for_an_argument() {
        let (none, more) = ([u8::MAX; 40], [3; 24]);
        for figures in [figures(), of_stream()] {
            let mut later = reply(figures);
            let header_len = figures.header_len();
            later.splice(header_len..header_len, more);
            if figures.argument.is_none() {
                let at = header_len - ServerStats::LEAVING_LEN;
                later.splice(at..at, none);
            }
            later[1] = (later.len() - b"body".len()) as u8;
            let header = Header::decode(&later).unwrap();
            assert_eq!(&later[header.body_at..], b"body");
            assert_eq!(ServerStats::find(&header, &later), Some(figures));
        }
    }

    #[test]
    fn wire_md_shows_them() {
        let examples = examples("figures");
        for (name, figures) in [
            ("VALUE with figures", figures()),
            ("VALUE with figures of a stream", of_stream()),
        ] {
            assert_eq!(examples[name], reply(figures)[..figures.header_len()]);
        }
    }

    #[test]
    fn those_of_a_peer_that_makes_them_up_are_not_there() {
        let metadata = reply(figures());
        for len in 0..=u8::MAX {
            let mut lies = metadata.clone();
            lies[1] = len;
            let Ok(header) = Header::decode(&lies) else {
                continue;
            };
            let found = ServerStats::find(&header, &lies);
            assert_eq!(
                found.is_some(),
                usize::from(len) >= figures().header_len() - ServerStats::LEAVING_LEN,
                "{len}"
            );
        }
        let mut unflagged = metadata;
        unflagged[2] = 0;
        let header = Header::decode(&unflagged).unwrap();
        assert_eq!(ServerStats::find(&header, &unflagged), None);
        let mut endless = figures();
        endless.times.handling = Duration::MAX;
        let mut metadata = Header::plain(Kind::Value, 5).to_vec();
        endless.put(&mut metadata);
        let header = Header::decode(&metadata).unwrap();
        let found = ServerStats::find(&header, &metadata).unwrap();
        assert_eq!(found.times.handling, Duration::from_nanos(u64::MAX));
    }
}
