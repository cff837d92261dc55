//! Headers survive a round trip, and headers cut short are refused.

use super::*;

#[test]
fn headers_come_back_and_short_ones_are_refused() {
    let trace = TraceContext {
        trace_id: 7 << 100 | 3,
        span_id: 9,
    };
    // One header of each kind, and one in which every byte of the trace counts.
    let each = wire_md::headers().map(|(_, header)| header);
    let traced = Header::call(u64::MAX, 1, 2, 3, trace);
    let denied = Header::plain(Kind::Failure(FailureCode::Denied), 8);
    for header in each.into_iter().chain([traced, denied]) {
        let bytes = header.to_vec();
        let decoded = Header::decode(&bytes).unwrap();
        let trace = if header.trace.trace_id != 0 { TRACE } else { 0 };
        assert_eq!(
            decoded,
            Header {
                body_at: bytes.len(),
                flags: header.flags | trace,
                ..header
            }
        );
        for cut in 0..bytes.len() {
            assert!(Header::decode(&bytes[..cut]).is_err());
        }
        // A later version's header is longer.
        let mut longer = bytes.clone();
        longer[1] += 4;
        longer.extend_from_slice(&[1, 2, 3, 4]);
        assert_eq!(Header::decode(&longer).unwrap().body_at, bytes.len() + 4);
    }
}

/// The places behind the header count as part of it, so the body begins after them.
#[test]
fn places_stand_between_the_header_and_the_body() {
    for header in [
        Header::call(5, 1, 2, 3, TraceContext::default()),
        Header::plain(Kind::Fetch, 5),
    ] {
        let mut bytes = header.to_vec();
        let begin = bytes.len();
        bytes[2] |= PLACES;
        bytes.extend_from_slice(&[3, 0, 7, 8, 9, 1]);
        let decoded = Header::decode(&bytes).unwrap();
        assert_eq!((decoded.body_at, decoded.places_len), (begin + 5, 3));
        assert_eq!(decoded.places(&bytes), [7, 8, 9]);
        for cut in begin..begin + 5 {
            assert!(Header::decode(&bytes[..cut]).is_err(), "{cut}");
        }
    }
    // Other kinds ignore the flag.
    let mut bytes = Header::plain(Kind::Value, 5).to_vec();
    bytes[2] |= PLACES;
    assert_eq!(Header::decode(&bytes).unwrap().body_at, REPLY_HEADER);
}

#[test]
fn a_trace_without_an_id_is_not_passed_on() {
    let traced = TraceContext {
        trace_id: 1,
        span_id: 9,
    };
    let mut bytes = Header::call(5, 1, 2, 3, traced).to_vec();
    bytes[CALL_LEN] = 0;
    let decoded = Header::decode(&bytes).unwrap();
    let again = Header::decode(&decoded.to_vec()).unwrap();
    assert_eq!((again.body_at, again.flags), (CALL_LEN, 0));
}
