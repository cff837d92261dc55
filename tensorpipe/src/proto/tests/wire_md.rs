//! WIRE.md shows the bytes that the code writes and reads: each of its examples is compared, and each kind has one.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::descriptor::{Descriptor, PayloadDescriptor, TensorDescriptor};
use crate::device::{Device, DeviceKind};
use crate::error::{PeerFault, ResetCode};
use crate::keys::{Join, JoinKind, Nonce, Proof, Secret};
use crate::proto::OpId;
use crate::proto::handshake::{ExpectChallenge, ExpectProof, FirstFrame, Proven, ServerHandshake};
use crate::proto::sim::frames::{bulk, frame};
use crate::proto::sim::reject;
use crate::proto::wire::descriptor::{Carriage, Carriages, Head};
use crate::proto::wire::frame::{Control, HEADER_LEN, Header, Kind, Reason};
use crate::proto::wire::hello::{
    Amount, Answer, Brochure, ChannelOffer, ChosenChannel, Purpose, Reject, TransportOffer,
    WireLimits, decode_challenge, decode_joined, decode_key, decode_proof, decode_stay,
    put_challenge, put_joined, put_key, put_proof, put_stay,
};
use crate::proto::wire::preface;
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
        upgrade: Some(("shm".into(), "s1".into(), [0x33; 16])),
        channels: vec![ChosenChannel {
            name: "basic".into(),
            tokens: vec![[0x44; 16]],
            devices: vec![(Device::CPU, vec![])],
            offered: 2,
            pairs: vec![(0, 1)],
        }],
        refusals: vec![("channel xth".into(), "another process".into())],
    }
}

/// What the two ends of the examples prove, whose secret is the bytes from 0x80 to 0x8f.
struct Proofs {
    challenge: Proof,
    hello: Proof,
    answer: Proof,
    stay: Proof,
    join: Proof,
    joined: Proof,
}

fn proofs() -> Proofs {
    let secret = Secret::new("trainer".into(), (0x80..0x90).collect()).unwrap();
    let (mut connector, first) = ExpectChallenge::begin(&secret, &[0x55; 32], None);
    let Ok((_, Some(FirstFrame::Key(opened)))) = ServerHandshake::new(true).handle(&first) else {
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
        kind: JoinKind::Upgrade,
        over: "shm",
        token: &[0x33; 16],
        binding: None,
    };
    Proofs {
        challenge: last(&challenge),
        hello: last(&hello[..HEADER_LEN + 32]),
        answer: last(&answer[..HEADER_LEN + 32]),
        stay: connector.key().stay(&[0x33; 16]),
        join: listener.key().join(&join),
        joined: connector.key().joined(&join),
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

/// What a frame says.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Hello(Purpose),
    Answer(Answer),
    Reject(Reject),
    Stay(String, Option<Proof>),
    Joined(Option<Proof>),
    Key(String, Nonce),
    Challenge(Nonce, Proof),
    Proof(Proof),
    Message(Head),
    Control(Control),
}

impl Said {
    fn put(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Hello(purpose) => purpose.put(&mut out),
            Self::Answer(answer) => answer.put(&mut out),
            Self::Reject(reject) => reject.put(&mut out),
            Self::Stay(reason, proof) => put_stay(&mut out, reason, proof.as_ref()),
            Self::Joined(proof) => put_joined(&mut out, proof.as_ref()),
            Self::Key(name, nonce) => put_key(&mut out, name, nonce),
            Self::Challenge(nonce, proof) => put_challenge(&mut out, nonce, proof),
            Self::Proof(proof) => put_proof(&mut out, proof),
            Self::Message(head) => {
                head.put(&mut out);
                out.extend_from_slice(b"abc");
            }
            Self::Control(control) => control.put(&mut out),
        }
        out
    }

    fn read(header: Header, body: &[u8]) -> Result<Self, PeerFault> {
        Ok(match header.kind.unwrap() {
            Kind::Hello => Self::Hello(Purpose::decode(body)?),
            Kind::Answer => Self::Answer(Answer::decode(body)?),
            Kind::Reject => Self::Reject(Reject::decode(body)?),
            Kind::Stay => decode_stay(body).map(|(reason, proof)| Self::Stay(reason, proof))?,
            Kind::Joined => Self::Joined(decode_joined(body)?),
            Kind::Key => decode_key(body).map(|(name, nonce)| Self::Key(name, nonce))?,
            Kind::Challenge => {
                decode_challenge(body).map(|(nonce, proof)| Self::Challenge(nonce, proof))?
            }
            Kind::Proof => Self::Proof(decode_proof(body)?),
            Kind::Message => {
                let head = Head::decode(body, header.len, 2, &wire_limits())?;
                Self::Message(head.unwrap().0)
            }
            kind => Self::Control(Control::decode(kind, header.flags, body)?),
        })
    }
}

/// What the frames say, by the names of WIRE.md.
fn said() -> Vec<(&'static str, Said)> {
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
    let refuse = reason(ResetCode::Refused, "busy");
    let channel = |op, body: &[u8]| Control::channel(op, body);
    let controls = [
        ("GRANT", Control::Grant { message: 7, skip }),
        ("WINDOW", Control::Window(window)),
        ("RECALL", Control::Recall(1 << 18)),
        ("RECALLED", Control::Recalled(5 << 16)),
        ("RESET", reset("enough", false)),
        ("RESET in answer", reset("", true)),
        ("REFUSE", Control::Refuse(refuse)),
        ("FLUSH", Control::Flush(9)),
        ("FLUSHED", Control::Flushed(9)),
        ("PING", Control::Ping(1)),
        ("PONG", Control::Pong(1)),
        ("GOAWAY", Control::GoAway { next: 4, text }),
        ("FIN", Control::Fin),
        ("FIN_ACK", Control::FinAck),
        ("CHANNEL", channel(OpId::outgoing(3, 1), &[1, 2, 3])),
        ("CHANNEL of yours", channel(OpId::incoming(3, 1), &[4])),
    ];
    let controls = controls.map(|(name, control)| (name, Said::Control(control)));
    let proofs = proofs();
    let join = |proof| {
        let token = [0x33; 16];
        Said::Hello(Purpose::Join { token, proof })
    };
    let others = [
        ("HELLO", Said::Hello(hello())),
        ("HELLO to join", join(None)),
        ("HELLO to join with a key", join(Some(proofs.join))),
        ("ANSWER", Said::Answer(answer())),
        ("REJECT", Said::Reject(reject())),
        ("STAY", Said::Stay("timeout".into(), None)),
        (
            "STAY with a key",
            Said::Stay("timeout".into(), Some(proofs.stay)),
        ),
        ("JOINED", Said::Joined(None)),
        ("JOINED with a key", Said::Joined(Some(proofs.joined))),
        ("KEY", Said::Key("trainer".into(), [0x55; 32])),
        ("CHALLENGE", Said::Challenge([0x66; 32], proofs.challenge)),
        ("PROOF", Said::Proof(proofs.hello)),
        ("PROOF of ANSWER", Said::Proof(proofs.answer)),
        ("MESSAGE", Said::Message(message())),
    ];
    others.into_iter().chain(controls).collect()
}

fn hex(bytes: &[u8]) -> String {
    let words = bytes.iter().map(|byte| format!("{byte:02x}"));
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn the_code_writes_and_reads_what_the_examples_show() {
    let mut examples = examples("hex");
    for (name, said) in said() {
        let shown = examples.remove(name).unwrap_or_default();
        assert_eq!(hex(&said.put()), hex(&shown), "{name}");
        let (header, body) = body(&shown);
        assert_eq!(Said::read(header, body), Ok(said));
    }
    let data = [&OpId::incoming(7, 1).key()[..], &[0xca, 0xfe, 0xba, 0xbe]].concat();
    let others = [
        ("DATA".to_owned(), frame(Kind::Data as u8, 0, &data)),
        ("PREFACE".to_owned(), preface().to_vec()),
    ];
    assert_eq!(examples, BTreeMap::from(others));
}

#[test]
fn a_frame_that_is_cut_is_refused_and_a_longer_one_is_a_later_versions() {
    let open_ended = [Kind::Joined, Kind::Stay, Kind::Message, Kind::Channel];
    for (name, said) in said() {
        let bytes = said.put();
        let (header, body) = body(&bytes);
        if open_ended.contains(&header.kind.unwrap()) {
            continue;
        }
        for cut in 0..body.len() {
            let read = Said::read(header, &body[..cut]);
            assert!(read.is_err(), "{name} cut at {cut}");
        }
        let longer = [body, &[0xff; 9]].concat();
        assert_eq!(Said::read(header, &longer), Ok(said));
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
