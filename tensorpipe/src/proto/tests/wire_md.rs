//! WIRE.md shows the bytes that the code writes and reads: each of its examples is compared, and each kind has one.

use std::collections::BTreeMap;

use crate::device::{Device, DeviceKind};
use crate::error::ResetCode;
use crate::proto::OpId;
use crate::proto::wire::descriptor::Head;
use crate::proto::wire::descriptor::tests::head;
use crate::proto::wire::frame::{Control, HEADER_LEN, Header, Kind};
use crate::proto::wire::hello::{
    Answer, Brochure, ChannelOffer, ChosenChannel, Purpose, Reject, TransportOffer, WireLimits,
    decode_stay, put_joined, put_stay, tests::limits,
};
use crate::proto::wire::preface;
use crate::wire_md::{WIRE_MD, examples};

fn body(bytes: &[u8]) -> (Header, &[u8]) {
    let (head, body) = bytes.split_first_chunk::<HEADER_LEN>().unwrap();
    let header = Header::decode(head).unwrap();
    (header, body)
}

fn wire_limits() -> WireLimits {
    WireLimits {
        window_ahead: 1 << 26,
        ..limits()
    }
}

fn gpu(index: u32) -> Device {
    Device::new(DeviceKind::CUDA, index)
}

fn hello() -> Purpose {
    Purpose::Pipe {
        name: "trainer".into(),
        process: [0x11; 16],
        limits: wire_limits(),
        brochure: Brochure {
            transports: vec![TransportOffer {
                name: "tcp".into(),
                domain: b"ip".to_vec(),
            }],
            channels: vec![ChannelOffer {
                name: "basic".into(),
                connections: 0,
                devices: vec![(Device::CPU, vec![]), (gpu(1), b"x".to_vec())],
            }],
        },
    }
}

fn answer() -> Answer {
    Answer {
        name: "server".into(),
        process: [0x22; 16],
        limits: wire_limits(),
        moved: Some(("shm".into(), "s1".into(), [0x33; 16])),
        channels: vec![ChosenChannel {
            name: "basic".into(),
            tokens: vec![[0x44; 16]],
            devices: vec![(Device::CPU, vec![])],
            pairs: vec![(Device::CPU, gpu(1))],
        }],
        refusals: vec![("channel xth".into(), "another process".into())],
    }
}

fn controls() -> [(&'static str, Control); 16] {
    [
        (
            "GRANT",
            Control::Grant {
                message: 7,
                skip: vec![1, 3],
            },
        ),
        (
            "WINDOW",
            Control::Window {
                messages: 1536,
                bytes: 6 << 20,
                ahead: 0,
            },
        ),
        ("RECALL", Control::Recall { ahead: 1 << 18 }),
        ("RECALLED", Control::Recalled { ahead: 5 << 16 }),
        ("RESET", reset(false)),
        ("RESET in answer", reset(true)),
        (
            "REFUSE",
            Control::Refuse {
                message: 7,
                code: ResetCode::Refused,
                text: "busy".into(),
            },
        ),
        ("FLUSH", Control::Flush { message: 9 }),
        ("FLUSHED", Control::Flushed { message: 9 }),
        ("PING", Control::Ping { nonce: 1 }),
        ("PONG", Control::Pong { nonce: 1 }),
        (
            "GOAWAY",
            Control::GoAway {
                next: 4,
                text: "bye".into(),
            },
        ),
        ("FIN", Control::Fin),
        ("FIN_ACK", Control::FinAck),
        (
            "CHANNEL",
            Control::Channel {
                op: OpId::incoming(3, 1).key(),
                yours: false,
                body: vec![1, 2, 3].into(),
            },
        ),
        (
            "CHANNEL of yours",
            Control::Channel {
                op: OpId::incoming(3, 1).key(),
                yours: true,
                body: vec![4].into(),
            },
        ),
    ]
}

fn reset(answer: bool) -> Control {
    Control::Reset {
        message: 7,
        code: ResetCode::Cancelled,
        text: if answer {
            String::new()
        } else {
            "enough".into()
        },
        answer,
    }
}

/// What the code writes, by the names of WIRE.md.
fn written() -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut add = |name: &str, put: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        put(&mut out);
        all.insert(name.to_owned(), out);
    };
    add("PREFACE", &|out| out.extend_from_slice(&preface()));
    add("HELLO", &|out| hello().put(out));
    add("HELLO to join", &|out| Purpose::Join([0x33; 16]).put(out));
    add("ANSWER", &|out| answer().put(out));
    let reject = Reject {
        transient: true,
        reason: "full".into(),
    };
    add("REJECT", &|out| reject.put(out));
    add("STAY", &|out| put_stay(out, "timeout"));
    add("JOINED", &|out| put_joined(out));
    add("MESSAGE", &|out| {
        head([1024, 2], b"").put(out);
        out.extend_from_slice(b"abc");
    });
    add("DATA", &|out| {
        Header::put(out, Kind::Data, 0, 16);
        out.extend_from_slice(&[7, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
        out.extend_from_slice(&[0xca, 0xfe, 0xba, 0xbe]);
    });
    for (name, control) in controls() {
        add(name, &|out| control.put(out));
    }
    all
}

fn hex(bytes: &[u8]) -> String {
    let lines = bytes.chunks(16).map(|line| {
        let words: Vec<_> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        words.join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_code_writes_what_the_examples_show() {
    let examples = examples("hex");
    for (name, bytes) in written() {
        let shown = examples.get(&name).map(|bytes| hex(bytes));
        assert_eq!(shown, Some(hex(&bytes)), "{name}");
    }
    assert_eq!(examples.len(), written().len());
}

#[test]
fn the_code_reads_what_the_examples_show() {
    let examples = examples("hex");
    let decoded = |name: &str| body(&examples[name]).1.to_vec();
    for (name, control) in controls() {
        let (header, body) = body(&examples[name]);
        let kind = header.kind.unwrap();
        assert_eq!(Control::decode(kind, header.flags, body).unwrap(), control);
    }
    assert_eq!(Purpose::decode(&decoded("HELLO")).unwrap(), hello());
    assert_eq!(Answer::decode(&decoded("ANSWER")).unwrap(), answer());
    assert!(Reject::decode(&decoded("REJECT")).unwrap().transient);
    assert_eq!(decode_stay(&decoded("STAY")).unwrap(), "timeout");
    let (header, message) = body(&examples["MESSAGE"]);
    let (found, len) = Head::decode(message, header.len, 2, &limits())
        .unwrap()
        .unwrap();
    assert_eq!(
        (found, &message[len..]),
        (head([1024, 2], b""), &b"abc"[..])
    );
}

#[test]
fn every_kind_has_its_section_with_its_code() {
    for code in 0..=u8::MAX {
        if let Ok(Header {
            kind: Some(kind), ..
        }) = Header::decode(&[0, 0, 0, 0, code, 0, 0, 0])
        {
            let heading = format!("### {} ({code})", kind.name());
            assert!(WIRE_MD.contains(&heading), "{heading}");
            assert!(
                examples("hex").contains_key(kind.name()),
                "{} has no example",
                kind.name()
            );
        }
    }
}
