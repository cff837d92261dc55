//! Where a run begins: valid frames, made by the code that writes them.

use bytes::Bytes;

use super::THEIRS;
use crate::descriptor::{Descriptor, PayloadDescriptor, TensorDescriptor};
use crate::device::{Device, DeviceKind};
use crate::error::ResetCode;
use crate::proto::OpId;
use crate::proto::handshake::{ClientHandshake, ServerHandshake};
use crate::proto::wire::descriptor::{Carriage, Head};
use crate::proto::wire::frame::{Control, HEADER_LEN, Header, Kind, OPTIONAL};
use crate::proto::wire::hello::{
    Answer, Brochure, ChannelOffer, ChosenChannel, Purpose, Reject, TransportOffer, put_stay,
};
use crate::tensor::DType;

/// Inputs to begin with: the target's name, and one of its inputs.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let mut all = Vec::new();
    for body in conversations() {
        // In one piece, in pieces of five bytes, with a script of everything that an application can do.
        all.push(("frames", [&[0, 0][..], &body].concat()));
        all.push(("frames", [&[5, 0][..], &body].concat()));
        let script: Vec<u8> = (0..12).chain((0..12).map(|c| c << 4 | (11 - c))).collect();
        let front = [7, script.len() as u8];
        all.push(("frames", [&front[..], &script, &body].concat()));
    }
    for (to, bytes) in greetings() {
        all.push(("handshake", [&[to][..], &bytes].concat()));
    }
    for frame in controls() {
        let mut out = Vec::new();
        frame.put(&mut out);
        all.push(("descriptor", out));
    }
    for head in heads() {
        all.push(("descriptor", message(&head)));
    }
    all
}

fn conversations() -> Vec<Vec<u8>> {
    let frames = |frames: &[Control]| {
        let mut out = Vec::new();
        frames.iter().for_each(|frame| frame.put(&mut out));
        out
    };
    let mut every: Vec<u8> = heads().iter().flat_map(message).collect();
    every.extend(data(2, 1, 1000));
    every.extend(data(2, 1, 24));
    every.extend(frames(&controls()));
    Header::put(&mut every, Kind::Ping, OPTIONAL, 3);
    every.extend([0; 3]);
    let kind = every.len() - 3 - HEADER_LEN + 4;
    every[kind] = 200;
    let plain = |len| message(&head(&[(len, Carriage::Eager)], &[]));
    let mut many: Vec<u8> = (0..20).flat_map(|len| plain(len * 3)).collect();
    many.extend(frames(&[Control::Flush { message: 19 }, Control::Fin]));
    let mut refused = message(&head(&[(100, BULK)], &[]));
    refused.extend(data(0, 0, 100));
    refused.extend(frames(&[Control::Reset {
        message: 0,
        code: ResetCode::Refused,
        text: String::new(),
        answer: true,
    }]));
    vec![every, many, refused, frames(&controls())]
}

const BULK: Carriage = Carriage::Bulk {
    channel: 0,
    ahead: false,
};

const AHEAD: Carriage = Carriage::Bulk {
    channel: 0,
    ahead: true,
};

fn heads() -> Vec<Head> {
    let other = Carriage::Bulk {
        channel: 1,
        ahead: false,
    };
    vec![
        head(&[], &[]),
        head(&[(3, Carriage::Eager), (0, Carriage::Eager)], &[]),
        head(&[(7, Carriage::Eager), (1024, AHEAD)], &[BULK]),
        head(&[(500, BULK)], &[other, Carriage::Eager]),
    ]
}

/// Payloads of these lengths, and tensors of four numbers.
fn head(payloads: &[(u64, Carriage)], tensors: &[Carriage]) -> Head {
    let gpu = Device::new(DeviceKind::CUDA, 1);
    Head::with(
        Descriptor {
            metadata: Bytes::from_static(b"meta"),
            payloads: payloads
                .iter()
                .map(|(len, _)| PayloadDescriptor {
                    len: *len,
                    metadata: Bytes::from_static(b"p"),
                })
                .collect(),
            tensors: tensors
                .iter()
                .map(|carriage| TensorDescriptor {
                    dtype: DType::F32,
                    shape: [2, 2].into(),
                    source: gpu,
                    target: (*carriage != Carriage::Eager).then_some(Device::CPU),
                    metadata: Bytes::new(),
                })
                .collect(),
        },
        (payloads.iter().map(|(_, carriage)| *carriage))
            .chain(tensors.iter().copied())
            .collect(),
    )
}

fn message(head: &Head) -> Vec<u8> {
    let mut out = Vec::new();
    let body = head.put(&mut out);
    out.resize(HEADER_LEN + body as usize, 7);
    out
}

fn data(message: u64, part: u16, len: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let op = OpId::incoming(message, part).key();
    Header::put(&mut out, Kind::Data, 0, (op.len() + len) as u32);
    out.extend(op);
    out.resize(out.len() + len, 9);
    out
}

fn controls() -> Vec<Control> {
    let (code, text) = (ResetCode::Cancelled, "enough");
    let channel = |message, yours| Control::Channel {
        op: OpId::incoming(message, 1).key(),
        yours,
        body: vec![1, 2, 3].into(),
    };
    vec![
        Control::Grant {
            message: 1,
            skip: vec![],
        },
        Control::Grant {
            message: 2,
            skip: vec![1, 3],
        },
        Control::Window {
            messages: 1 << 10,
            bytes: 1 << 30,
            ahead: 1 << 20,
        },
        channel(2, true),
        channel(3, false),
        Control::Reset {
            message: 0,
            code,
            text: text.to_owned(),
            answer: false,
        },
        Control::Refuse {
            message: 2,
            code,
            text: text.to_owned(),
        },
        Control::Flush { message: 0 },
        Control::Flushed { message: 0 },
        Control::Ping { nonce: 1 },
        Control::Pong { nonce: 1 },
        Control::GoAway {
            next: 1,
            text: text.to_owned(),
        },
        Control::Fin,
        Control::FinAck,
    ]
}

/// Who is spoken to, and what is said.
fn greetings() -> Vec<(u8, Vec<u8>)> {
    let gpu = Device::new(DeviceKind::CUDA, 1);
    let devices = vec![(Device::CPU, b"any".to_vec()), (gpu, vec![])];
    let hello = Purpose::Pipe {
        name: "a".to_owned(),
        process: [1; 16],
        limits: THEIRS,
        brochure: Brochure {
            transports: ["memory", "tcp", "smoke"]
                .map(|name| TransportOffer {
                    name: name.to_owned(),
                    domain: b"here".to_vec(),
                })
                .into(),
            channels: ["xth", "basic", "mirrors"]
                .map(|name| ChannelOffer {
                    name: name.to_owned(),
                    connections: 0,
                    devices: devices.clone(),
                })
                .into(),
        },
    };
    let answer = Answer {
        name: "b".to_owned(),
        process: [2; 16],
        limits: THEIRS,
        moved: Some(("memory".to_owned(), "m".to_owned(), [3; 16])),
        channels: vec![ChosenChannel {
            name: "basic".to_owned(),
            tokens: vec![[4; 16]],
            devices,
            pairs: vec![(Device::CPU, gpu)],
        }],
        refusals: vec![("channel xth".to_owned(), "another process".to_owned())],
    };
    let reject = Reject {
        transient: true,
        reason: "full".to_owned(),
    };
    let mut stay = Vec::new();
    put_stay(&mut stay, "timeout");
    vec![
        (0, ClientHandshake::hello(&hello)),
        (0, ClientHandshake::hello(&Purpose::Join([5; 16]))),
        (1, ServerHandshake::answer(&answer)),
        (1, ServerHandshake::reject(&reject)),
        (2, stay),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::OURS;
    use super::*;

    /// Else a run would begin outside what it is about.
    #[test]
    fn the_frames_are_such_as_a_pipe_takes() {
        for head in heads() {
            let out = message(&head);
            let len = (out.len() - HEADER_LEN) as u32;
            let decoded = Head::decode(&out[HEADER_LEN..], len, 2, &OURS);
            assert_eq!(decoded.unwrap().unwrap().0, head);
        }
    }
}
