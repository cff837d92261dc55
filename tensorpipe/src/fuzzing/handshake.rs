//! A stranger's first bytes, at a listener and at a connector: the same in one piece and byte by byte; what is accepted
//! comes back from its own encoding; and whatever HELLO a listener accepts, a connector accepts its answer.

use std::fmt::Debug;

use super::OURS;
use crate::device::Device;
use crate::error::PeerFault;
use crate::proto::handshake::{ClientHandshake, Reply, ServerHandshake};
use crate::proto::sim;
use crate::proto::wire::hello::{Answer, Brochure, ChosenChannel, Purpose, put_stay};

/// The first byte says who is spoken to, the rest is what it is told.
pub fn handshake(data: &[u8]) {
    match data.split_first() {
        None => {}
        Some((0, bytes)) => listener(bytes),
        Some((1, bytes)) => connector(bytes),
        Some((_, bytes)) => stay(bytes),
    }
}

fn listener(bytes: &[u8]) {
    let make = || {
        let mut handshake = ServerHandshake::default();
        move |input: &[u8]| handshake.handle(input)
    };
    let purpose = accepted(bytes, make, ClientHandshake::hello);
    if let Some(Purpose::Pipe { brochure, .. }) = purpose {
        let answer = answer(&brochure);
        let said = ServerHandshake::answer(&answer);
        let heard = ClientHandshake::default().handle(&said);
        let reply = Reply::Answer(Box::new(answer));
        assert_eq!(heard, Ok((said.len(), Some(reply))));
    }
}

fn connector(bytes: &[u8]) {
    for joins in [false, true] {
        let make = || {
            let mut handshake = match joins {
                true => ClientHandshake::joining(),
                false => ClientHandshake::default(),
            };
            move |input: &[u8]| handshake.handle(input)
        };
        accepted(bytes, make, |reply| match reply {
            Reply::Answer(answer) => ServerHandshake::answer(answer),
            Reply::Reject(reject) => ServerHandshake::reject(reject),
            Reply::Joined => ServerHandshake::joined(),
        });
    }
}

fn stay(bytes: &[u8]) {
    let make = || ServerHandshake::handle_stay;
    accepted(bytes, make, |reason: &String| {
        let mut out = Vec::new();
        put_stay(&mut out, reason);
        out
    });
}

/// What is made of `bytes`: the same in whatever pieces they come, and the same again of what `put` makes of it.
fn accepted<T, H>(bytes: &[u8], make: impl Fn() -> H, put: impl Fn(&T) -> Vec<u8>) -> Option<T>
where
    T: Debug + PartialEq,
    H: FnMut(&[u8]) -> Result<(usize, Option<T>), PeerFault>,
{
    let [whole, single] = [bytes.len().max(1), 1].map(|piece| {
        let mut handle = make();
        let mut input = Vec::new();
        for piece in bytes.chunks(piece) {
            input.extend_from_slice(piece);
            let (used, found) = handle(&input).ok()?;
            assert!(used <= input.len());
            input.drain(..used);
            if found.is_some() {
                return found;
            }
        }
        None
    });
    assert_eq!(whole, single);
    let again = put(whole.as_ref()?);
    assert_eq!(make()(&again), Ok((again.len(), single)));
    whole
}

/// The answer of a context with what a usual one has.
fn answer(theirs: &Brochure) -> Answer {
    let selection = sim::choose(theirs);
    let chosen = selection.channels.into_iter().map(|chosen| ChosenChannel {
        name: chosen.name,
        tokens: vec![[4; 16]; usize::from(chosen.connections)],
        devices: vec![(Device::CPU, b"any".to_vec())],
        pairs: chosen.pairs,
    });
    Answer {
        moved: selection.moved.map(|(name, at)| (name, at, [3; 16])),
        channels: chosen.collect(),
        refusals: selection.refusals,
        ..sim::answer(OURS)
    }
}
