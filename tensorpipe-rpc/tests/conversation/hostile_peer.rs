//! A hostile peer that knows the messages of calls, sends them in any order, and reads as it likes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tensorpipe::engine::EnginePipe;
use tensorpipe::{Incoming, Message, MessageTensor, Payload, Pipe, ResetCode, Tensor};
use tensorpipe_rpc::codec::{Encoded, Encoder};
use tensorpipe_rpc::schema::method_id;

use super::script::Script;

/// The methods of `Talk`, and one that it does not have.
const METHODS: [&str; 14] = [
    "echo", "bounce", "never", "sum", "first", "count", "forever", "pass", "keep", "several",
    "add", "rows", "back", "nothing",
];

/// Numbers that calls are likely to have: theirs.
const CALLS: [u64; 6] = [1, 2, 3, 4, 1000, u64::MAX];

/// Kinds of messages.
const CALL: u8 = 1;
const VALUE: u8 = 2;
const BIND: u8 = 5;

pub(crate) struct HostilePeer {
    pipe: Pipe,
    /// Numbers of our calls.
    asked: Arc<Mutex<Vec<u64>>>,
    /// The number of its last message.
    said: u64,
}

impl HostilePeer {
    /// It hears what we say, and mostly answers the first questions: which service ours are.
    pub(crate) fn new(pipe: &Pipe, script: &mut Script<'_>) -> Self {
        let asked = Arc::<Mutex<Vec<u64>>>::default();
        let (reader, calls) = (pipe.clone(), asked.clone());
        let knows_the_service = script.below(8) != 0;
        let whims = script.bytes(8).to_vec();
        tokio::spawn(async move {
            let mut whims = whims.into_iter().cycle();
            while let Ok(incoming) = reader.read_descriptor().await {
                let metadata = incoming.metadata();
                let (kind, id) = (
                    metadata.first(),
                    metadata.get(4..).and_then(<[u8]>::first_chunk),
                );
                let Some((kind, id)) = kind.copied().zip(id.copied()) else {
                    continue;
                };
                let call = u64::from_le_bytes(id);
                calls.lock().unwrap().push(call);
                if kind == BIND && knows_the_service {
                    drop(incoming.read().await);
                    let mut answer = reply(VALUE, 0, 0, call);
                    answer.push(0);
                    let _ = reader.send(Message::new(answer));
                } else {
                    take(whims.next(), incoming).await;
                }
            }
        });
        Self {
            pipe: pipe.clone(),
            asked,
            said: 0,
        }
    }

    /// Says one thing, or takes back what it has said, or will not have what was said to it.
    pub(crate) fn speaks(&mut self, script: &mut Script<'_>) {
        let message = match script.below(8) {
            0 => anything(script, &self.calls()),
            1 | 2 => call(script),
            3 | 4 => about(script, &self.calls()),
            5 => answer(script, &self.calls()),
            6 => {
                let id = self.said.saturating_sub(script.below(4) as u64);
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
        if let Ok(id) = self.pipe.send(message) {
            self.said = id;
            if script.below(4) == 1 {
                self.pipe
                    .reset(id, ResetCode::Cancelled, "on second thoughts");
            }
        }
    }

    /// Numbers of calls that mean something.
    fn calls(&self) -> Vec<u64> {
        let asked = self.asked.lock().unwrap();
        let last = asked.len().saturating_sub(8);
        [&CALLS[..], &asked[last..]].concat()
    }
}

/// Takes a message in one of the ways that there are.
async fn take(whim: Option<u8>, incoming: Incoming) {
    match whim.unwrap_or(0) % 8 {
        4 => incoming.skip(),
        5 => incoming.refuse("no"),
        6 => drop(incoming.read()),
        7 => drop(tokio::time::timeout(Duration::from_millis(2), incoming.read()).await),
        _ => drop(incoming.read().await),
    }
}

/// A header of anything but a call.
fn reply(kind: u8, flags: u8, code: u8, call: u64) -> Vec<u8> {
    let mut metadata = vec![kind, 12, flags, code];
    metadata.extend_from_slice(&call.to_le_bytes());
    metadata
}

/// A header whose every field is anything, and a body; or noise.
fn anything(script: &mut Script<'_>, calls: &[u64]) -> Message {
    if script.below(16) == 1 {
        return Message::new(script.bytes(60).to_vec());
    }
    let id = script.pick(calls).unwrap_or(0);
    let kind = script.byte() % 20;
    let mut metadata = reply(kind, script.byte(), script.byte(), id);
    if kind == CALL {
        metadata[1] = 28;
        metadata.extend_from_slice(&u32::from(script.byte()).to_le_bytes());
        metadata.extend_from_slice(&(script.number() as u32).to_le_bytes());
        metadata.extend_from_slice(&script.number().to_le_bytes());
    }
    if script.below(16) == 1 {
        metadata[1] = script.pick(&[0, 4, 52, 255]).unwrap_or(0);
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
        ..Message::default()
    }
}

fn tensors(script: &mut Script<'_>) -> Vec<MessageTensor> {
    let many = [0, 0, 1, 2];
    let many = script.pick(&many).unwrap_or(0);
    (0..many).map(|_| tensor(script).into()).collect()
}

fn tensor(script: &mut Script<'_>) -> Tensor {
    let len = script.pick(&[0usize, 1, 5000, 70_000, 70_000]);
    Tensor::from(vec![5u8; len.unwrap_or(0)])
}

/// A call that makes sense, mostly.
fn call(script: &mut Script<'_>) -> Message {
    let method = script.pick(&METHODS).unwrap_or("echo");
    let time_left = script.pick(&[0u64, 1, 500, 1_000_000]).unwrap_or(0);
    let id = script.pick(&CALLS[..5]).unwrap_or(1);
    let flags = script.pick(&[0, 0, 4, 8, 12, 16]).unwrap_or(0);
    let mut metadata = reply(CALL, flags, 0, id);
    metadata[1] = 28;
    metadata.extend_from_slice(&0u32.to_le_bytes());
    metadata.extend_from_slice(&method_id(method).to_le_bytes());
    metadata.extend_from_slice(&time_left.to_le_bytes());
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
    let mut metadata = reply(kind, 0, count, call);
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
    let mut metadata = reply(kind, flags, script.byte() % 12, id);
    if flags & 4 != 0 {
        // A reference of theirs, one of ours, or one that is neither.
        let reference = (script.byte() % 3, id, u32::from(script.byte() % 2));
        metadata.extend_from_slice(&encoded(&reference).metadata);
    }
    with_body(script, metadata)
}

fn payload() -> Payload {
    Payload::new(vec![1, 2, 3])
}

fn encoded<T: Serialize + DeserializeOwned>(value: &T) -> Encoded {
    let mut encoder = Encoder::new();
    encoder.push::<T>("x", value).unwrap();
    encoder.finish()
}
