//! WIRE.md shows the call headers that the code writes and reads: each kind has its section and its example.

use super::examples::{WIRE_MD, examples};
use super::{FailureCode, Header, Kind, STATS, StreamDirection, Tarpc, TraceContext};

pub(super) fn headers() -> [(&'static str, Header); 21] {
    let traced = TraceContext {
        trace_id: 7,
        span_id: 9,
    };
    let call = |time, trace| Header::call(5, 2, 0xaabb_ccdd, time, trace);
    let tarpc = |what| Header::plain(Kind::Tarpc(what), 2);
    [
        ("CALL", call(1_000_000, TraceContext::default())),
        ("CALL with a trace", call(0, traced)),
        (
            "CALL that asks for figures",
            Header {
                flags: STATS,
                ..call(1_000_000, TraceContext::default())
            },
        ),
        ("VALUE", Header::plain(Kind::Value, 5)),
        ("SERVICE_ERROR", Header::plain(Kind::ServiceError, 5)),
        (
            "FAILURE",
            Header::plain(Kind::Failure(FailureCode::Overloaded), 5),
        ),
        ("BIND", Header::plain(Kind::Bind, 1)),
        ("TARPC_REQUEST", tarpc(Tarpc::Request)),
        ("TARPC_CANCEL", tarpc(Tarpc::Cancel)),
        ("TARPC_RESPONSE", tarpc(Tarpc::Response)),
        (
            "ARGUMENT_ITEMS",
            Header::plain(Kind::Items(StreamDirection::Argument, 3), 5),
        ),
        (
            "REPLY_ITEMS",
            Header::plain(Kind::Items(StreamDirection::Reply, 1), 5),
        ),
        ("END", Header::plain(Kind::End, 5)),
        (
            "CREDIT",
            Header::plain(Kind::Credit(StreamDirection::Reply), 5),
        ),
        ("STOP", Header::plain(Kind::Stop, 5)),
        ("DRAINING", Header::plain(Kind::Draining, 0)),
        ("FETCH", Header::plain(Kind::Fetch, 6)),
        ("RELEASE", Header::plain(Kind::Release, 5)),
        ("SHARE", Header::plain(Kind::Share, 7)),
        ("CLAIM", Header::plain(Kind::Claim, 8)),
        (
            "TARPC_WRAPPED",
            Header::plain(Kind::Tarpc(Tarpc::Wrapped), 0),
        ),
    ]
}

#[test]
fn the_code_writes_and_reads_what_the_examples_show() {
    let examples = examples("call");
    for (name, header) in headers() {
        let shown = examples.get(name);
        assert_eq!(shown, Some(&header.to_vec()), "{name}");
        let read = Header::decode(&header.to_vec()).unwrap();
        assert_eq!((read.kind, read.call), (header.kind, header.call));
        assert_eq!(read.trace, header.trace, "{name}");
    }
    assert_eq!(examples.len(), headers().len());
}

#[test]
fn every_kind_has_its_section() {
    let mut kinds = 0;
    for code in 0..=u8::MAX {
        let mut header = [0; 52];
        (header[0], header[1]) = (code, 52);
        let Ok(Header { kind, .. }) = Header::decode(&header) else {
            continue;
        };
        kinds += 1;
        let examples = headers();
        // A failure's code is not what is asked for.
        let same = |a: Kind| a.code().0 == kind.code().0;
        let (name, _) = examples
            .iter()
            .find(|(_, header)| same(header.kind))
            .unwrap();
        let heading = format!("### {name}, kind {code}\n");
        assert!(WIRE_MD.contains(&heading), "{heading}");
    }
    assert_eq!(kinds, 19);
}
