//! WIRE.md shows the bytes that the code writes and reads: each of its examples is compared, and each kind has one.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::descriptor::{Descriptor, PayloadDescriptor, TensorDescriptor};
use crate::device::{Device, DeviceKind};
use crate::error::{PeerFault, ResetCode};
use crate::keys::{Join, JoinKind, Nonce, Proof, Secret};
use crate::proto::OpId;
use crate::proto::handshake::{ExpectChallenge, ExpectProof, Heard, Proven, ServerHandshake};
use crate::proto::sim::frames::bulk;
use crate::proto::wire::descriptor::{Carriage, Carriages, Head};
use crate::proto::wire::frame::{Control, HEADER_LEN, Header, Kind, Reason};
use crate::proto::wire::hello::{
    Amount, Answer, Brochure, ChannelOffer, ChosenChannel, Purpose, Reject, TransportOffer,
    WireLimits, decode_joined, decode_stay, put_joined, put_stay,
};
use crate::proto::wire::preface;
use crate::proto::wire::proof::{
    decode_challenge, decode_key, decode_proof, put_challenge, put_key, put_proof,
};
use crate::tensor::DType;
use crate::wire_md::{WIRE_MD, examples};

fn body(bytes: &[u8]) -> (Header, &[u8]) {
    let (head, body) = bytes.split_first_chunk::<HEADER_LEN>().unwrap();
    let header = Header::decode(head).unwrap();
    (header, body)
}

fn wire_limits() -> WireLimits {
    WireLimits {
        chunk: 1 << 18,
        eager_part: 1 << 16,
        eager_message: 1 << 18,
        metadata: 1 << 20,
        parts: 1024,
        payload: 1 << 33,
        tensor: 1 << 36,
        message: 1 << 37,
        window_messages: 1024,
        window_bytes: 1 << 22,
        window_ahead: 1 << 26,
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

/// What the two ends of the examples prove, whose secret is the bytes from 0x80 to 0x8f.
struct Proofs {
    challenge: Proof,
    hello: Proof,
    answer: Proof,
    join: Proof,
    joined: Proof,
}

fn proofs() -> Proofs {
    let secret = Secret::new("trainer".into(), (0x80..0x90).collect()).unwrap();
    let (mut connector, first) = ExpectChallenge::begin(&secret, &[0x55; 32], None);
    let Ok((_, Some(Heard::Key(opened)))) = ServerHandshake::new(true).handle(&first) else {
        panic!("no KEY");
    };
    let (mut listener, challenge) = ExpectProof::challenge(&opened, &secret, &[0x66; 32], None);
    let Ok((_, Some(Proven::Listener(mut connector)))) = connector.handle(&challenge) else {
        panic!("no proof");
    };
    let hello = connector.hello(&hello());
    listener.handle(&hello).unwrap();
    let answer = listener.answer(&answer());
    let last = |bytes: &[u8]| *bytes.last_chunk().unwrap();
    let join = Join {
        kind: JoinKind::Move,
        over: "shm",
        token: &[0x33; 16],
        binding: None,
    };
    Proofs {
        challenge: last(&challenge),
        hello: last(&hello[..HEADER_LEN + 32]),
        answer: last(&answer[..HEADER_LEN + 32]),
        join: listener.key().join(&join),
        joined: connector.key().joined(&join),
    }
}

fn reject() -> Reject {
    Reject {
        transient: true,
        reason: "full".into(),
    }
}

/// A payload that rides and a tensor that does not.
fn message() -> Head {
    let payload = PayloadDescriptor {
        len: 3,
        metadata: Bytes::from_static(b"p"),
    };
    let tensor = TensorDescriptor {
        dtype: DType::F32,
        shape: [1024, 2].into(),
        source: Device::CPU,
        target: Some(gpu(1)),
        metadata: Bytes::new(),
    };
    Head::with(
        Descriptor {
            metadata: Bytes::from_static(b"meta"),
            payloads: vec![payload],
            tensors: vec![tensor],
        },
        Carriages::from_slice(&[Carriage::Eager, bulk(1, false)]),
    )
}

fn controls() -> [(&'static str, Control); 16] {
    let reason = |code, text| Reason::new(7, code, text);
    let reset = |text, answer| Control::Reset {
        reason: reason(ResetCode::Cancelled, text),
        answer,
    };
    let window = Amount {
        messages: 1536,
        bytes: 6 << 20,
        ahead: 0,
    };
    let (skip, text) = (vec![1, 3], "bye".to_owned());
    let channel = |op, body: &[u8]| Control::channel(op, body);
    [
        ("GRANT", Control::Grant { message: 7, skip }),
        ("WINDOW", Control::Window(window)),
        ("RECALL", Control::Recall { ahead: 1 << 18 }),
        ("RECALLED", Control::Recalled { ahead: 5 << 16 }),
        ("RESET", reset("enough", false)),
        ("RESET in answer", reset("", true)),
        (
            "REFUSE",
            Control::Refuse(reason(ResetCode::Refused, "busy")),
        ),
        ("FLUSH", Control::Flush { message: 9 }),
        ("FLUSHED", Control::Flushed { message: 9 }),
        ("PING", Control::Ping { nonce: 1 }),
        ("PONG", Control::Pong { nonce: 1 }),
        ("GOAWAY", Control::GoAway { next: 4, text }),
        ("FIN", Control::Fin),
        ("FIN_ACK", Control::FinAck),
        ("CHANNEL", channel(OpId::outgoing(3, 1), &[1, 2, 3])),
        ("CHANNEL of yours", channel(OpId::incoming(3, 1), &[4])),
    ]
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
    let join = |proof| Purpose::Join {
        token: [0x33; 16],
        proof,
    };
    let proofs = proofs();
    add("HELLO to join", &|out| join(None).put(out));
    add("HELLO to join with a key", &|out| {
        join(Some(proofs.join)).put(out)
    });
    add("ANSWER", &|out| answer().put(out));
    add("REJECT", &|out| reject().put(out));
    add("STAY", &|out| put_stay(out, "timeout"));
    add("JOINED", &|out| put_joined(out, None));
    add("JOINED with a key", &|out| {
        put_joined(out, Some(&proofs.joined))
    });
    add("KEY", &|out| put_key(out, "trainer", &[0x55; 32]));
    add("CHALLENGE", &|out| {
        put_challenge(out, &[0x66; 32], &proofs.challenge);
    });
    add("PROOF", &|out| put_proof(out, &proofs.hello));
    add("PROOF of ANSWER", &|out| put_proof(out, &proofs.answer));
    add("MESSAGE", &|out| {
        message().put(out);
        out.extend_from_slice(b"abc");
    });
    add("DATA", &|out| {
        Header::put(out, Kind::Data, 0, 16);
        out.extend_from_slice(&OpId::incoming(7, 1).key());
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

#[derive(Debug, PartialEq, Eq)]
enum Said {
    Hello(Purpose),
    Answer(Answer),
    Reject(Reject),
    Stay(String),
    Joined(Option<Proof>),
    Key(String, Nonce),
    Challenge(Nonce, Proof),
    Proof(Proof),
    Control(Control),
}

fn read(header: Header, body: &[u8]) -> Result<Said, PeerFault> {
    Ok(match header.kind.unwrap() {
        Kind::Hello => Said::Hello(Purpose::decode(body)?),
        Kind::Answer => Said::Answer(Answer::decode(body)?),
        Kind::Reject => Said::Reject(Reject::decode(body)?),
        Kind::Stay => Said::Stay(decode_stay(body)?),
        Kind::Joined => Said::Joined(decode_joined(body)?),
        Kind::Key => decode_key(body).map(|(name, nonce)| Said::Key(name, nonce))?,
        Kind::Challenge => {
            decode_challenge(body).map(|(nonce, proof)| Said::Challenge(nonce, proof))?
        }
        Kind::Proof => Said::Proof(decode_proof(body)?),
        kind => Said::Control(Control::decode(kind, header.flags, body)?),
    })
}

#[test]
fn the_code_reads_what_the_examples_show() {
    let examples = examples("hex");
    let shown = |name: &str| {
        let (header, body) = body(&examples[name]);
        read(header, body).unwrap()
    };
    for (name, control) in controls() {
        assert_eq!(shown(name), Said::Control(control));
    }
    assert_eq!(shown("HELLO"), Said::Hello(hello()));
    assert_eq!(shown("ANSWER"), Said::Answer(answer()));
    assert_eq!(shown("REJECT"), Said::Reject(reject()));
    assert_eq!(shown("STAY"), Said::Stay("timeout".into()));
    let proofs = proofs();
    assert_eq!(shown("KEY"), Said::Key("trainer".into(), [0x55; 32]));
    let challenge = Said::Challenge([0x66; 32], proofs.challenge);
    assert_eq!(shown("CHALLENGE"), challenge);
    assert_eq!(shown("PROOF"), Said::Proof(proofs.hello));
    assert_eq!(shown("JOINED"), Said::Joined(None));
    assert_eq!(
        shown("JOINED with a key"),
        Said::Joined(Some(proofs.joined))
    );
}

#[test]
fn of_a_message_its_head_is_read_when_all_of_it_is_here() {
    let examples = examples("hex");
    let (header, body) = body(&examples["MESSAGE"]);
    let decode = |len| Head::decode(&body[..len], header.len, 2, &wire_limits()).unwrap();
    let head_len = body.len() - b"abc".len();
    for len in head_len..=body.len() {
        assert_eq!(decode(len), Ok((message(), head_len)));
    }
    for cut in 0..head_len {
        let need = decode(cut).unwrap_err();
        assert!(need > cut && need <= head_len);
    }
}

#[test]
fn a_frame_that_is_cut_is_refused_and_a_longer_one_is_a_later_versions() {
    let open_ended = [
        "PREFACE",
        "JOINED",
        "JOINED with a key",
        "MESSAGE",
        "DATA",
        "CHANNEL",
        "CHANNEL of yours",
    ];
    for (name, bytes) in examples("hex") {
        if open_ended.contains(&name.as_str()) {
            continue;
        }
        let (header, body) = body(&bytes);
        for cut in 0..body.len() {
            assert!(read(header, &body[..cut]).is_err(), "{name} cut at {cut}");
        }
        let longer = [body, &[0xff; 9]].concat();
        assert_eq!(read(header, &longer), read(header, body));
    }
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
            assert!(examples("hex").contains_key(kind.name()), "{kind:?}");
        }
    }
}
