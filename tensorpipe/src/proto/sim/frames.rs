//! Frames made by hand, also such as no pipe sends.

use crate::descriptor::{Descriptor, PayloadDescriptor};
use crate::error::ResetCode;
use crate::proto::OpId;
use crate::proto::wire::descriptor::{Carriage, Head};
use crate::proto::wire::frame::{Control, HEADER_LEN, Kind, Reason};

pub(crate) fn frame(kind: u8, flags: u8, body: &[u8]) -> Vec<u8> {
    let mut out = (body.len() as u32).to_le_bytes().to_vec();
    out.extend_from_slice(&[kind, flags, 0, 0]);
    out.extend_from_slice(body);
    out
}

pub(crate) fn control(frames: impl IntoIterator<Item = Control>) -> Vec<u8> {
    let mut out = Vec::new();
    frames.into_iter().for_each(|frame| frame.put(&mut out));
    out
}

pub(crate) fn data(op: OpId, len: usize) -> Vec<u8> {
    let mut body = op.key().to_vec();
    body.resize(body.len() + len, 7);
    frame(Kind::Data as u8, 0, &body)
}

/// A chunk of part number `part`.
pub(crate) fn chunk(message: u64, part: u16, len: usize) -> Vec<u8> {
    data(OpId::incoming(message, part), len)
}

pub(crate) const fn bulk(channel: u8, ahead: bool) -> Carriage {
    Carriage::Bulk { channel, ahead }
}

/// The head of a message of payloads of these lengths.
pub(crate) fn payloads(payloads: &[(u64, Carriage)]) -> Head {
    let payload = |(len, _): &(u64, Carriage)| PayloadDescriptor {
        len: *len,
        metadata: Default::default(),
    };
    let descriptor = Descriptor {
        payloads: payloads.iter().map(payload).collect(),
        ..Descriptor::default()
    };
    let carriages = payloads.iter().map(|(_, carriage)| *carriage);
    Head::with(descriptor, carriages.collect())
}

/// The front of such a message.
pub(crate) fn head(parts: &[(u64, Carriage)]) -> Vec<u8> {
    front(&payloads(parts))
}

pub(crate) fn front(head: &Head) -> Vec<u8> {
    let mut out = Vec::new();
    head.put(&mut out);
    out
}

/// All of the frame of a message of payloads of these lengths.
pub(crate) fn whole(payloads: &[(u64, Carriage)]) -> Vec<u8> {
    let mut frame = head(payloads);
    let len = u32::from_le_bytes(frame[..4].try_into().unwrap()) as usize;
    frame.resize(HEADER_LEN + len, b'e');
    frame
}

pub(crate) fn reset(message: u64, answer: bool) -> Control {
    let reason = Reason::new(message, ResetCode::Cancelled, "");
    Control::Reset { reason, answer }
}

pub(crate) fn refuse(message: u64) -> Control {
    Control::Refuse(Reason::new(message, ResetCode::Refused, &"no".repeat(500)))
}

/// A frame of the writer's channel about a part.
pub(crate) fn told(message: u64, part: u16, body: &[u8]) -> Control {
    Control::channel(OpId::outgoing(message, part), body)
}
