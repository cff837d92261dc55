//! A hostile peer's first bytes, at a listener and at a connector, and those of one that was asked to prove something. They mean the same
//! in one piece and byte by byte. What is accepted comes back from its own encoding. Whatever HELLO a listener accepts, a connector accepts
//! its answer.

use std::fmt::Debug;

use super::OURS;
use crate::device::Device;
use crate::error::PeerFault;
use crate::keys::Secret;
use crate::proto::handshake::{
    ClientHandshake, ExpectAnswer, ExpectChallenge, ExpectProof, FirstFrame, Proven, Reply,
    ServerHandshake,
};
use crate::proto::sim;
use crate::proto::wire::hello::{Answer, Brochure, ChosenChannel, Purpose, put_stay};

/// The first byte says who is spoken to, the rest is what it is told.
pub fn handshake(data: &[u8]) {
    match data.split_first() {
        None => {}
        Some((0, bytes)) => listener(bytes, false),
        Some((1, bytes)) => connector(bytes),
        Some((2, bytes)) => stay(bytes),
        Some((3, bytes)) => listener(bytes, true),
        Some((4, bytes)) => challenging(bytes),
        Some((5, bytes)) => challenged(bytes),
        Some((_, bytes)) => answered(bytes),
    }
}

fn listener(bytes: &[u8], asks: bool) {
    let make = || {
        let mut handshake = ServerHandshake::new(asks);
        move |input: &[u8]| handshake.handle(input)
    };
    let heard = accepted(bytes, make, |heard| match heard {
        FirstFrame::Hello(purpose) => ClientHandshake::hello(purpose),
        FirstFrame::Key(opened) => opened.said.clone(),
        FirstFrame::Unproven => ClientHandshake::hello(&sim::purpose(OURS)),
    });
    assert!(asks || heard != Some(FirstFrame::Unproven));
    if let Some(FirstFrame::Hello(Purpose::Pipe { brochure, .. })) = heard {
        assert!(!asks, "who asks for a pipe proves a token first");
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
                true => ClientHandshake::joining(None),
                false => ClientHandshake::default(),
            };
            move |input: &[u8]| handshake.handle(input)
        };
        accepted(bytes, make, |reply| match reply {
            Reply::Answer(answer) => ServerHandshake::answer(answer),
            Reply::Reject(reject) => ServerHandshake::reject(reject),
            Reply::Joined => ServerHandshake::joined(None),
        });
    }
}

/// Both ends of a handshake that proves what is known here, when the listener has challenged: what the connector and the listener have
/// said, too.
pub(super) fn proving() -> (ExpectChallenge, ExpectProof, [Vec<u8>; 2]) {
    let secret = Secret::new("fuzz".to_owned(), vec![7; 16]);
    let secret = secret.unwrap_or_else(|misuse| panic!("{misuse}"));
    let (connector, first) = ExpectChallenge::begin(&secret, &[1; 32], None);
    let opened = match ServerHandshake::new(true).handle(&first) {
        Ok((_, Some(FirstFrame::Key(opened)))) => opened,
        other => panic!("{other:?}"),
    };
    let (listener, challenge) = ExpectProof::challenge(&opened, &secret, &[2; 32], None);
    (connector, listener, [first, challenge])
}

/// The connector when it believes the listener.
pub(super) fn believing() -> ExpectAnswer {
    let (mut connector, _, [_, challenge]) = proving();
    match connector.handle(&challenge) {
        Ok((_, Some(Proven::Listener(proven)))) => proven,
        other => panic!("{other:?}"),
    }
}

/// A listener that has challenged.
fn challenging(bytes: &[u8]) {
    let make = || {
        let (_, mut listener, _) = proving();
        move |input: &[u8]| listener.handle(input)
    };
    accepted(bytes, make, |purpose| believing().hello(purpose));
}

/// A connector that has named its token: it is challenged, or rejected.
fn challenged(bytes: &[u8]) {
    let make = || {
        let (mut connector, ..) = proving();
        move |input: &[u8]| {
            let (used, found) = connector.handle(input)?;
            let rejected = found.map(|found| match found {
                Proven::Listener(_) => None,
                Proven::Reject(reject) => Some(reject),
            });
            Ok((used, rejected))
        }
    };
    accepted(bytes, make, |rejected| match rejected {
        // Only one challenge is proven: that of the listener here.
        None => {
            let (.., [_, challenge]) = proving();
            challenge
        }
        Some(reject) => ServerHandshake::reject(reject),
    });
}

/// A connector that has proved its token and said HELLO.
fn answered(bytes: &[u8]) {
    let make = || {
        let mut connector = believing();
        connector.hello(&sim::purpose(OURS));
        move |input: &[u8]| connector.handle(input)
    };
    accepted(bytes, make, |reply| {
        let (_, mut listener, _) = proving();
        let said = believing().hello(&sim::purpose(OURS));
        listener
            .handle(&said)
            .unwrap_or_else(|fault| panic!("{fault}"));
        match reply {
            Reply::Answer(answer) => listener.answer(answer),
            Reply::Reject(reject) => ExpectProof::reject(reject),
            Reply::Joined => ServerHandshake::joined(None),
        }
    });
}

fn stay(bytes: &[u8]) {
    let make = || |input: &[u8]| ServerHandshake::handle_stay(input, None);
    accepted(bytes, make, |reason: &String| {
        let mut out = Vec::new();
        put_stay(&mut out, reason, None);
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
        offered: chosen.offered,
        pairs: chosen.pairs,
    });
    Answer {
        upgrade: selection.upgrade.map(|(name, at)| (name, at, [3; 16])),
        channels: chosen.collect(),
        refusals: selection.refusals,
        ..sim::answer(OURS)
    }
}
