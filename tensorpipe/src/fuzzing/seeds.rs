//! Where a run begins: valid frames, made by the code that writes them.

use bytes::Bytes;

use super::THEIRS;
use crate::descriptor::{Descriptor, PayloadDescriptor, TensorDescriptor};
use crate::device::{Device, DeviceKind};
use crate::proto::OpId;
use crate::proto::handshake::{ClientHandshake, ServerHandshake};
use crate::proto::sim::frames::{bulk, chunk, control, filled, frame, refuse, reset, told};
use crate::proto::sim::{answer, hello};
use crate::proto::wire::descriptor::{Carriage, Head};
use crate::proto::wire::frame::{Control, OPTIONAL};
use crate::proto::wire::hello::{
    Amount, Answer, Brochure, ChannelOffer, ChosenChannel, Purpose, Reject, TransportOffer,
    put_stay,
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
        all.push(("descriptor", control([frame])));
    }
    for head in heads() {
        all.push(("descriptor", message(&head)));
    }
    all
}

fn conversations() -> Vec<Vec<u8>> {
    let mut every: Vec<u8> = heads().iter().flat_map(message).collect();
    every.extend(chunk(2, 1, 1000));
    every.extend(chunk(2, 1, 24));
    every.extend(control(controls()));
    every.extend(frame(200, OPTIONAL, &[0; 3]));
    let plain = |len| message(&head(&[(len, Carriage::Eager)], &[]));
    let mut many: Vec<u8> = (0..20).flat_map(|len| plain(len * 3)).collect();
    many.extend(control([Control::Flush(19), Control::Fin]));
    let mut refused = message(&head(&[(100, BULK)], &[]));
    refused.extend(chunk(0, 0, 100));
    refused.extend(control([reset(0, true)]));
    vec![every, many, refused, control(controls())]
}

const BULK: Carriage = bulk(0, false);
const AHEAD: Carriage = bulk(0, true);

fn heads() -> Vec<Head> {
    let other = bulk(1, false);
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
    let payload = |(len, _): &(u64, Carriage)| PayloadDescriptor {
        len: *len,
        metadata: Bytes::from_static(b"p"),
    };
    let tensor = |carriage: &Carriage| TensorDescriptor {
        dtype: DType::F32,
        shape: [2, 2].into(),
        source: gpu,
        target: (*carriage != Carriage::Eager).then_some(Device::CPU),
        metadata: Bytes::new(),
    };
    let descriptor = Descriptor {
        metadata: Bytes::from_static(b"meta"),
        payloads: payloads.iter().map(payload).collect(),
        tensors: tensors.iter().map(tensor).collect(),
    };
    let carriages = payloads.iter().map(|(_, carriage)| carriage);
    Head::with(descriptor, carriages.chain(tensors).copied().collect())
}

fn message(head: &Head) -> Vec<u8> {
    let mut out = Vec::new();
    head.put(&mut out);
    filled(out)
}

fn controls() -> Vec<Control> {
    let window = Amount {
        messages: 1 << 10,
        bytes: 1 << 30,
        ahead: 1 << 20,
    };
    let grant = |message, skip| Control::Grant { message, skip };
    let text = "enough".to_owned();
    vec![
        grant(1, vec![]),
        grant(2, vec![1, 3]),
        Control::Window(window),
        Control::channel(OpId::incoming(2, 1), vec![1, 2, 3]),
        told(3, 1, &[1, 2, 3]),
        reset(0, false),
        refuse(2),
        Control::Flush(0),
        Control::Flushed(0),
        Control::Ping(1),
        Control::Pong(1),
        Control::GoAway { next: 1, text },
        Control::Fin,
        Control::FinAck,
    ]
}

/// Who is spoken to, and what is said.
fn greetings() -> Vec<(u8, Vec<u8>)> {
    let gpu = Device::new(DeviceKind::CUDA, 1);
    let devices = vec![(Device::CPU, b"here".to_vec()), (gpu, vec![])];
    let transport = |name: &str| TransportOffer {
        name: name.to_owned(),
        domain: b"here".to_vec(),
    };
    let channel = |name: &str| ChannelOffer {
        name: name.to_owned(),
        connections: 0,
        devices: devices.clone(),
    };
    let brochure = Brochure {
        transports: ["memory", "tcp", "smoke"].map(transport).into(),
        channels: ["xth", "basic", "mirrors"].map(channel).into(),
    };
    let answer = Answer {
        moved: Some(("memory".to_owned(), "m".to_owned(), [3; 16])),
        channels: vec![ChosenChannel {
            name: "basic".to_owned(),
            tokens: vec![[4; 16]],
            devices: devices.clone(),
            pairs: vec![(Device::CPU, gpu)],
        }],
        refusals: vec![("channel xth".to_owned(), "another process".to_owned())],
        ..answer(THEIRS)
    };
    let reject = Reject {
        transient: true,
        reason: "full".to_owned(),
    };
    let mut stay = Vec::new();
    put_stay(&mut stay, "timeout");
    vec![
        (0, hello("a", THEIRS, brochure)),
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
    use crate::proto::wire::frame::HEADER_LEN;

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
