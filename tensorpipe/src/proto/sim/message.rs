//! Messages as stories write them, greetings, and limits small enough to be met.

use bytes::Bytes;

use crate::device::Device;
use crate::proto::handshake::{ClientHandshake, LocalChannel, LocalTransport, Selection, select};
use crate::proto::wire::hello::{Answer, Brochure, Purpose, Reject, WireLimits};
use crate::proto::{OutgoingPart, OutgoingParts, TensorFields};
use crate::tensor::DType;

use super::end::Source;

/// Parts up to 64 bytes ride along; a chunk is 1 KiB; eight messages may be under way.
pub(crate) fn limits() -> WireLimits {
    WireLimits {
        chunk: 1024,
        eager_part: 64,
        eager_message: 256,
        metadata: 4096,
        parts: 16,
        payload: 1 << 20,
        tensor: 1 << 20,
        message: 1 << 21,
        window_messages: 8,
        window_bytes: 16 << 10,
        window_ahead: 0,
    }
}

/// What a connector sends first.
pub(crate) fn hello(name: &str, limits: WireLimits, brochure: Brochure) -> Vec<u8> {
    ClientHandshake::hello(&wants(name, limits, brochure))
}

/// What a connector with nothing to offer wants.
pub(crate) fn purpose(limits: WireLimits) -> Purpose {
    wants("a", limits, Brochure::default())
}

fn wants(name: &str, limits: WireLimits, brochure: Brochure) -> Purpose {
    Purpose::Pipe {
        name: name.to_owned(),
        process: [1; 16],
        limits,
        brochure,
    }
}

/// The answer of a listener that chooses nothing.
pub(crate) fn answer(limits: WireLimits) -> Answer {
    Answer {
        name: "b".to_owned(),
        process: [2; 16],
        limits,
        upgrade: None,
        channels: Vec::new(),
        refusals: Vec::new(),
    }
}

/// The answer of a listener that has no room.
pub(crate) fn reject() -> Reject {
    Reject {
        transient: true,
        reason: "full".to_owned(),
    }
}

fn here(theirs: &[u8]) -> Result<(), String> {
    match theirs {
        b"here" => Ok(()),
        _ => Err("another process".to_owned()),
    }
}

/// What a listener with `memory` and `tcp`, with `xth` and `basic`, chooses over tcp. The first of each reaches what is here.
pub(crate) fn choose(theirs: &Brochure) -> Selection {
    let transports = [
        LocalTransport {
            name: "memory",
            reaches: &here,
            address: Ok("m".to_owned()),
        },
        LocalTransport {
            name: "tcp",
            reaches: &|_| Ok(()),
            address: Err("not listening on it".to_owned()),
        },
    ];
    let channels = [
        LocalChannel {
            name: "xth",
            connections: 0,
            devices: &[(Device::CPU, Vec::new())],
            reaches: &|_, _, theirs| here(theirs.descriptor),
        },
        LocalChannel {
            name: "basic",
            connections: 0,
            devices: &[(Device::CPU, Vec::new())],
            reaches: &|_, _, _| Ok(()),
        },
    ];
    select("tcp", &transports, &channels, theirs)
}

/// What an application writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Msg {
    pub(crate) metadata: Vec<u8>,
    pub(crate) payloads: Vec<Vec<u8>>,
    /// With the number of their channel.
    pub(crate) tensors: Vec<(Vec<u8>, u8)>,
}

pub(crate) fn message(metadata: &str) -> Msg {
    Msg {
        metadata: metadata.as_bytes().to_vec(),
        ..Msg::default()
    }
}

/// Bytes that differ from place to place and from message to message.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 256 + seed) as u8).collect()
}

impl Msg {
    pub(crate) fn payload(mut self, len: usize) -> Self {
        self.payloads.push(pattern(len, self.payloads.len()));
        self
    }

    pub(crate) fn tensor(self, len: usize) -> Self {
        self.tensor_on(0, len)
    }

    pub(crate) fn tensor_on(mut self, channel: u8, len: usize) -> Self {
        self.tensors
            .push((pattern(len, 100 + self.tensors.len()), channel));
        self
    }

    /// Payloads first, then tensors, as a reader has them.
    pub(crate) fn parts(&self) -> Vec<Option<Vec<u8>>> {
        let tensors = self.tensors.iter().map(|(tensor, _)| tensor);
        let parts = self.payloads.iter().chain(tensors);
        parts.cloned().map(Some).collect()
    }

    /// The parts; small ones go in the frame, as far as the peer lets them.
    pub(crate) fn outgoing(&self, peer: &WireLimits) -> OutgoingParts<Source> {
        let payloads = self.payloads.iter().map(|payload| (payload, None));
        let tensors = self.tensors.iter().map(|(tensor, by)| (tensor, Some(*by)));
        let mut riding = 0;
        let part = |(bytes, tensor): (&Vec<u8>, Option<u8>)| {
            let len = bytes.len() as u64;
            let rides = len <= u64::from(peer.eager_part.min(64))
                && riding + len <= u64::from(peer.eager_message);
            riding += if rides { len } else { 0 };
            OutgoingPart {
                len,
                metadata: match tensor {
                    None => Bytes::from_static(b"p"),
                    Some(_) => Bytes::new(),
                },
                tensor: tensor.map(|_| TensorFields {
                    dtype: DType::U8,
                    shape: [len].into(),
                    source: Device::CPU,
                    target: None,
                }),
                channel: (!rides).then_some(tensor.unwrap_or(0)),
                source: bytes.as_slice().into(),
            }
        };
        payloads.chain(tensors).map(part).collect()
    }
}
