//! A peer that knows the words of calls and says them in any order.

use std::sync::{Arc, Mutex, PoisonError};

use tensorpipe::engine::EnginePipe;
use tensorpipe::{Message, MessageTensor, Pipe, ResetCode, Tensor};

use super::script::Script;
use super::{encoded, payload};
use crate::header::{Header, Kind};
use crate::schema;

/// The methods of `Talk`, and one that it does not have.
const METHODS: [&str; 14] = [
    "echo", "bounce", "never", "sum", "first", "count", "forever", "pass", "keep", "several",
    "add", "rows", "back", "nothing",
];

/// Numbers that calls are likely to have: theirs.
const CALLS: [u64; 6] = [1, 2, 3, 4, 1000, u64::MAX];

pub(super) struct Stranger {
    pipe: Pipe,
    /// Numbers of our calls.
    asked: Arc<Mutex<Vec<u64>>>,
}

impl Stranger {
    /// It reads what we say, and answers the first questions: which service ours are.
    pub(super) fn new(pipe: &Pipe, knows_the_service: bool) -> Self {
        let asked = Arc::<Mutex<Vec<u64>>>::default();
        let (reader, calls) = (pipe.clone(), asked.clone());
        tokio::spawn(async move {
            while let Ok(message) = reader.read().await {
                let Ok(header) = Header::decode(&message.metadata) else {
                    continue;
                };
                if header.kind == Kind::Bind && knows_the_service {
                    let mut answer = Header::plain(Kind::Value, header.call).to_vec();
                    answer.push(0);
                    let _ = reader.send(Message::new(answer));
                }
                let mut calls = calls.lock().unwrap_or_else(PoisonError::into_inner);
                calls.push(header.call);
            }
        });
        Self {
            pipe: pipe.clone(),
            asked,
        }
    }

    /// Says one thing.
    pub(super) fn speaks(&self, script: &mut Script<'_>) {
        let _ = match script.below(8) {
            0 => self.pipe.send(anything(script, &self.calls())),
            1 | 2 => self.pipe.send(call(script)),
            3 | 4 => self.pipe.send(about(script, &self.calls())),
            5 => self.pipe.send(answer(script, &self.calls())),
            6 => {
                let id = script.below(16) as u64;
                self.pipe
                    .reset(id, ResetCode::Cancelled, "it thought better of it");
                return;
            }
            _ => {
                let id = script.below(16) as u64;
                self.pipe
                    .stop(id, ResetCode::Cancelled, "it does not want it");
                return;
            }
        };
    }

    /// Numbers of calls that mean something.
    fn calls(&self) -> Vec<u64> {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let last = asked.len().saturating_sub(8);
        [&CALLS[..], &asked[last..]].concat()
    }
}

/// A header whose every field is anything, and a body.
fn anything(script: &mut Script<'_>, calls: &[u64]) -> Message {
    let mut metadata = vec![script.byte() % 20, 12, script.byte() & 0x1f, script.byte()];
    let id = script.pick(calls).unwrap_or(0);
    metadata.extend_from_slice(&id.to_le_bytes());
    if metadata[0] == 1 {
        metadata[1] = 28;
        metadata.extend_from_slice(&u32::from(script.byte()).to_le_bytes());
        metadata.extend_from_slice(&(script.number() as u32).to_le_bytes());
        metadata.extend_from_slice(&script.number().to_le_bytes());
    }
    with_body(script, metadata)
}

/// Any body.
fn with_body(script: &mut Script<'_>, mut metadata: Vec<u8>) -> Message {
    match script.below(4) {
        0 => {}
        1 => metadata.extend_from_slice(&[0xff; 16]),
        _ => {
            let len = script.below(24);
            metadata.extend_from_slice(script.bytes(len));
        }
    }
    Message {
        metadata: metadata.into(),
        payloads: (0..script.below(2)).map(|_| payload()).collect(),
        tensors: tensors(script),
    }
}

fn tensors(script: &mut Script<'_>) -> Vec<MessageTensor> {
    let many = [0, 0, 1, 2];
    let many = script.pick(&many).unwrap_or(0);
    (0..many).map(|_| tensor(script).into()).collect()
}

fn tensor(script: &mut Script<'_>) -> Tensor {
    let len = script.pick(&[0usize, 1, 2, 40, 5000, 70_000]);
    Tensor::from(vec![5u8; len.unwrap_or(0)])
}

/// A call that makes sense, mostly.
fn call(script: &mut Script<'_>) -> Message {
    let method = script.pick(&METHODS).unwrap_or("echo");
    let time_left = script.pick(&[0u64, 1, 500, 1_000_000]).unwrap_or(0);
    let id = script.pick(&CALLS[..5]).unwrap_or(1);
    let header = Header::call(
        id,
        0,
        schema::method_id(method),
        time_left,
        Default::default(),
    );
    let mut metadata = header.to_vec();
    metadata[2] = script.pick(&[0, 0, 4, 8, 12, 16]).unwrap_or(0);
    let mut message = Message::default();
    match method {
        "echo" | "back" => metadata.extend_from_slice(b"\x03abc"),
        "bounce" | "keep" | "rows" => {
            let body = encoded(&tensor(script));
            metadata.extend_from_slice(&body.metadata);
            message.tensors = body.tensors.into_iter().map(Into::into).collect();
        }
        "count" | "several" => metadata.push(script.byte()),
        "forever" => metadata.extend_from_slice(&[0xe8, 0x07]),
        "add" => {
            metadata[2] |= 4;
            for _ in 0..2 {
                // Ours, by the call that brought it: this side's are not known here.
                let of = script.pick(&CALLS[..5]).unwrap_or(1);
                let reference = encoded(&(script.byte() % 3, of, u32::from(script.byte() % 2)));
                metadata.extend_from_slice(&reference.metadata);
            }
        }
        _ => {}
    }
    if metadata[2] & 8 != 0 {
        let many = script.below(3) as u8;
        for _ in 0..many {
            let waits_for = script.pick(&CALLS[..5]).unwrap_or(1);
            metadata.extend_from_slice(&waits_for.to_le_bytes());
        }
        metadata.push(many);
    }
    message.metadata = metadata.into();
    message
}

/// Items, credit, ends and references of some call.
fn about(script: &mut Script<'_>, calls: &[u64]) -> Message {
    let call = script.pick(calls).unwrap_or(1);
    let count = script.pick(&[1, 1, 2, 0, 255]).unwrap_or(1);
    let (kind, body) = match script.below(10) {
        0..=2 => (9, vec![4; usize::from(count)]),
        3 | 4 => (10, vec![4; usize::from(count)]),
        5 => (11, vec![]),
        6 => {
            let (items, bytes) = (script.number(), script.number());
            (12, [items.to_le_bytes(), bytes.to_le_bytes()].concat())
        }
        7 => (13, vec![]),
        8 => {
            let of = script.pick(calls).unwrap_or(1);
            let kind = script.pick(&[15, 17]).unwrap_or(15);
            let index = u32::from(script.byte() % 3);
            (kind, [&of.to_le_bytes()[..], &index.to_le_bytes()].concat())
        }
        _ => {
            let index = u32::from(script.byte() % 3);
            (16, index.to_le_bytes()[..4 * script.below(2)].to_vec())
        }
    };
    let mut metadata = vec![kind, 12, 0, count];
    metadata.extend_from_slice(&call.to_le_bytes());
    let mut message = Message::default();
    if script.below(2) == 1 && matches!(kind, 9 | 10) {
        // Tensors as items.
        for index in 0..count {
            metadata.push(index);
            message.tensors.push(tensor(script).into());
            if index == 3 {
                break;
            }
        }
    } else {
        metadata.extend_from_slice(&body);
    }
    message.metadata = metadata.into();
    message
}

/// How a call of ours ends.
fn answer(script: &mut Script<'_>, calls: &[u64]) -> Message {
    let id = script.pick(calls).unwrap_or(1);
    let kind = script.pick(&[2, 2, 2, 3, 4, 14]).unwrap_or(2);
    let flags = script.pick(&[0, 0, 4, 16, 1, 5]).unwrap_or(0);
    let mut metadata = vec![kind, 12, flags, script.byte() % 12];
    metadata.extend_from_slice(&id.to_le_bytes());
    if flags & 4 != 0 {
        // A reference of theirs, one of ours, or one that is neither.
        let reference = (script.byte() % 3, id, u32::from(script.byte() % 2));
        metadata.extend_from_slice(&encoded(&reference).metadata);
    }
    with_body(script, metadata)
}
