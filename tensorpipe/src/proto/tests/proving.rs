//! Handshakes in which both ends prove that they have a secret. Also with an end that has none, or that repeats or changes what another one
//! has said.

use crate::error::PeerFault;
use crate::keys::{Join, JoinKind, PipeKey, Secret};
use crate::proto::handshake::{
    ClientHandshake, ExpectAnswer, ExpectChallenge, ExpectProof, FirstFrame, Opened, Proven, Reply,
    ServerHandshake,
};
use crate::proto::sim::frames::frame;
use crate::proto::sim::{answer, limits, purpose, reject};
use crate::proto::wire::frame::Kind;
use crate::proto::wire::hello::{CHALLENGE_LEN, HANDSHAKE_MAX, KEY_MAX, Purpose};
use crate::proto::wire::preface;

const SECRET: [u8; 16] = *b"sixteen bytes it";

/// One of several.
fn secret(number: u8) -> Secret {
    let mut bytes = SECRET;
    bytes[0] += number - 1;
    Secret::new("trainers".to_owned(), bytes.to_vec()).unwrap()
}

/// A fault, or what is made of `bytes` that come one by one. Nothing may be left.
pub(super) fn each<T>(
    bytes: &[u8],
    mut handle: impl FnMut(&[u8]) -> Result<(usize, Option<T>), PeerFault>,
) -> Result<T, PeerFault> {
    let mut input = Vec::new();
    for (at, byte) in bytes.iter().enumerate() {
        input.push(*byte);
        let (used, found) = handle(&input)?;
        input.drain(..used);
        if let Some(found) = found {
            assert!(input.is_empty() && at + 1 == bytes.len());
            return Ok(found);
        }
    }
    // More is to come.
    Err(PeerFault::Truncated { frame: "a" })
}

fn is_unproven<T: std::fmt::Debug>(heard: Result<T, PeerFault>) {
    let fault = heard.unwrap_err();
    assert!(matches!(fault, PeerFault::Unproven { .. }), "{fault}");
}

/// What each end says.
struct Said {
    first: Vec<u8>,
    challenge: Vec<u8>,
    hello: Vec<u8>,
    answer: Vec<u8>,
}

/// One of the two ends of a handshake.
#[derive(Clone, Copy)]
struct Side<'a> {
    secret: &'a Secret,
    number: u8,
    binding: Option<[u8; 32]>,
}

fn side(secret: &Secret, number: u8) -> Side<'_> {
    Side {
        secret,
        number,
        binding: None,
    }
}

fn begins(here: Side<'_>) -> (ExpectChallenge, Vec<u8>) {
    ExpectChallenge::begin(here.secret, &[here.number; 32], here.binding.as_ref())
}

fn opened(first: &[u8]) -> Result<Opened, PeerFault> {
    let mut server = ServerHandshake::new(true);
    match each(first, |input| server.handle(input))? {
        FirstFrame::Key(opened) => Ok(opened),
        other => panic!("{other:?}"),
    }
}

fn challenges(there: Side<'_>, first: &[u8]) -> Result<(ExpectProof, Vec<u8>), PeerFault> {
    let (nonce, binding) = ([there.number; 32], there.binding.as_ref());
    let opened = opened(first)?;
    Ok(ExpectProof::challenge(
        &opened,
        there.secret,
        &nonce,
        binding,
    ))
}

fn believes(connector: &mut ExpectChallenge, challenge: &[u8]) -> Result<ExpectAnswer, PeerFault> {
    match each(challenge, |input| connector.handle(input))? {
        Proven::Listener(proven) => Ok(proven),
        Proven::Reject(reject) => panic!("{reject:?}"),
    }
}

/// Runs a whole handshake; `way` may change each message. Returns both keys, and what was said.
fn shake(
    here: Side<'_>,
    there: Side<'_>,
    way: impl Fn(usize, Vec<u8>) -> Vec<u8>,
) -> Result<(PipeKey, PipeKey, Said), PeerFault> {
    let (mut connector, first) = begins(here);
    let first = way(0, first);
    let (mut listener, challenge) = challenges(there, &first)?;
    let challenge = way(1, challenge);
    let mut connector = believes(&mut connector, &challenge)?;
    let hello = way(2, connector.hello(&purpose(limits())));
    let heard = each(&hello, |input| listener.handle(input))?;
    assert_eq!(heard, purpose(limits()), "what is proved is what was said");
    let answered = way(3, listener.answer(&answer(limits())));
    let reply = each(&answered, |input| connector.handle(input))?;
    assert_eq!(reply, Reply::Answer(Box::new(answer(limits()))));
    let keys = (connector.key().clone(), listener.key().clone());
    let answer = answered;
    let said = Said {
        first,
        challenge,
        hello,
        answer,
    };
    Ok((keys.0, keys.1, said))
}

fn as_it_is(_: usize, said: Vec<u8>) -> Vec<u8> {
    said
}

/// Two keys are the same.
fn fits(one: &PipeKey, other: &PipeKey) -> bool {
    let join = Join {
        kind: JoinKind::Further,
        over: "tcp",
        token: &[1; 16],
        binding: None,
    };
    one.join(&join) == other.join(&join)
}

#[test]
fn both_prove_and_have_a_key_that_is_another_each_time() {
    let secret = secret(1);
    let (one, two, said) = shake(side(&secret, 1), side(&secret, 2), as_it_is).unwrap();
    assert!(fits(&one, &two));
    let all = [said.first, said.challenge, said.hello, said.answer].concat();
    let shown = all.windows(16).any(|window| window == SECRET);
    assert!(!shown, "it is never sent");
    let (other, _, _) = shake(side(&secret, 1), side(&secret, 3), as_it_is).unwrap();
    assert!(!fits(&one, &other));
    let (other, _, _) = shake(side(&secret, 3), side(&secret, 2), as_it_is).unwrap();
    assert!(!fits(&one, &other));
}

#[test]
fn a_connector_says_nothing_of_itself_to_who_has_another_secret() {
    let (here, there) = (secret(1), secret(2));
    let (mut connector, first) = begins(side(&here, 1));
    let (_, challenge) = challenges(side(&there, 2), &first).unwrap();
    is_unproven(believes(&mut connector, &challenge));
    // Somebody who asks for nothing at all.
    let answer = ServerHandshake::answer(&answer(limits()));
    let fault = begins(side(&here, 1)).0.handle(&answer).unwrap_err();
    assert!(fault.to_string().contains("asks for no token"), "{fault}");
}

#[test]
fn a_listener_looks_at_nothing_that_is_not_proved() {
    let (here, there) = (secret(1), secret(2));
    // It goes on though the listener has proved nothing to it.
    let (_, first) = begins(side(&here, 1));
    let (mut listener, _) = challenges(side(&there, 2), &first).unwrap();
    let proof = frame(8, 0, &[7; 32]);
    for body in [&[0xff; 100][..], &[], &vec![0; HANDSHAKE_MAX as usize]] {
        let hello = frame(1, 0, body);
        is_unproven(listener.handle(&[&proof[..], &hello].concat()));
    }
    // Nothing may stand behind a proof in its frame: no proof would cover it.
    let longer = frame(8, 0, &[7; 33]);
    let fault = listener.handle(&longer[..8]);
    assert!(matches!(fault, Err(PeerFault::FrameTooLarge { .. })));
    // No more than a frame of a handshake is waited for.
    let long = frame(1, 0, &vec![0; HANDSHAKE_MAX as usize + 1]);
    let fault = listener.handle(&[&proof[..], &long[..20]].concat());
    assert!(matches!(fault, Err(PeerFault::FrameTooLarge { .. })));
    // Without a proof in front there is no HELLO.
    let hello = ClientHandshake::hello(&purpose(limits()));
    let fault = listener.handle(&hello[12..]).unwrap_err();
    assert!(fault.to_string().contains("instead of PROOF"), "{fault}");
}

#[test]
fn a_listener_that_asks_for_a_token_lets_only_joins_do_without() {
    let hear = |bytes: &[u8]| ServerHandshake::new(true).handle(bytes).unwrap().1;
    assert_eq!(
        hear(&ClientHandshake::hello(&purpose(limits()))),
        Some(FirstFrame::Unproven)
    );
    // Also for a HELLO that cannot be decoded: it was not checked.
    let nonsense = [&preface()[..], &frame(1, 0, &[0, 0xff, 0xff])].concat();
    assert_eq!(hear(&nonsense), Some(FirstFrame::Unproven));
    let (token, proof) = ([3; 16], None);
    let join = Purpose::Join { token, proof };
    let heard = hear(&ClientHandshake::hello(&join));
    assert_eq!(heard, Some(FirstFrame::Hello(join)));
    // The longest name, and those that no token has.
    let longest = Secret::new("a".repeat(64), SECRET.to_vec()).unwrap();
    let (_, first) = begins(side(&longest, 1));
    assert_eq!(opened(&first).unwrap().name, "a".repeat(64));
    for name in [String::new(), "a".repeat(65)] {
        let mut body = (name.len() as u16).to_le_bytes().to_vec();
        body.extend(name.bytes());
        body.extend([0; 32]);
        let key = [&preface()[..], &frame(6, 0, &body)].concat();
        let fault = ServerHandshake::new(true).handle(&key).unwrap_err();
        let is_named = matches!(
            fault,
            PeerFault::Malformed { .. } | PeerFault::FrameTooLarge { .. }
        );
        assert!(is_named, "{fault}");
    }
}

#[test]
fn what_was_said_once_proves_nothing_again() {
    let secret = secret(1);
    let (_, _, said) = shake(side(&secret, 1), side(&secret, 2), as_it_is).unwrap();
    // To a listener, whose number is another one now.
    let (mut listener, _) = challenges(side(&secret, 3), &said.first).unwrap();
    is_unproven(each(&said.hello, |input| listener.handle(input)));
    // To a connector.
    let (mut connector, _) = begins(side(&secret, 4));
    is_unproven(believes(&mut connector, &said.challenge));
    let (mut connector, first) = begins(side(&secret, 4));
    let (_, challenge) = challenges(side(&secret, 5), &first).unwrap();
    let mut connector = believes(&mut connector, &challenge).unwrap();
    connector.hello(&purpose(limits()));
    is_unproven(each(&said.answer, |input| connector.handle(input)));
}

/// A hostile peer between the two has each of them talk to itself.
#[test]
fn no_end_is_answered_with_its_own_words() {
    let secret = secret(1);
    let (mut connector, first) = begins(side(&secret, 1));
    let (mut listener, challenge) = challenges(side(&secret, 1), &first).unwrap();
    // The proof of the listener as that of the connector.
    let own = frame(8, 0, challenge.last_chunk::<32>().unwrap());
    let hello = &ClientHandshake::hello(&purpose(limits()))[12..];
    is_unproven(listener.handle(&[&own, hello].concat()));
    // The connector's HELLO as the listener's answer.
    let mut connector = believes(&mut connector, &challenge).unwrap();
    let hello = connector.hello(&purpose(limits()));
    connector.handle(&hello).unwrap_err();
    let proof = &hello[..40];
    let answer = &ServerHandshake::answer(&answer(limits()))[12..];
    is_unproven(connector.handle(&[proof, answer].concat()));
}

/// Each end has TLS to the hostile peer between them, who has a connection of its own to either.
#[test]
fn a_proof_is_good_on_its_own_connection_alone() {
    let secret = secret(1);
    let on = |number, binding| Side {
        binding,
        ..side(&secret, number)
    };
    let (one, two, _) = shake(on(1, Some([1; 32])), on(2, Some([1; 32])), as_it_is).unwrap();
    assert!(fits(&one, &two));
    for binding in [Some([2; 32]), None] {
        let relayed = shake(on(1, Some([1; 32])), on(2, binding), as_it_is);
        is_unproven(relayed.map(|_| ()));
    }
}

/// KEY and CHALLENGE may hold nothing behind their fields: the header alone is enough to refuse them.
#[test]
fn a_frame_that_is_longer_than_what_it_says_is_refused() {
    let secret = secret(1);
    let longer = |said: &[u8], len: u32| {
        let mut said = said[..12 + 8].to_vec();
        said[12..16].copy_from_slice(&len.to_le_bytes());
        said
    };
    let (mut connector, first) = begins(side(&secret, 1));
    let (_, challenge) = challenges(side(&secret, 2), &first).unwrap();
    let key = longer(&first, KEY_MAX + 1);
    let fault = ServerHandshake::new(true).handle(&key).unwrap_err();
    assert!(matches!(fault, PeerFault::FrameTooLarge { .. }), "{fault}");
    let challenge = longer(&challenge, CHALLENGE_LEN + 1);
    let fault = connector.handle(&challenge).unwrap_err();
    assert!(matches!(fault, PeerFault::FrameTooLarge { .. }), "{fault}");
}

/// Proved or not, only the frame whose turn it is may follow.
#[test]
fn another_frame_behind_the_proof_is_named() {
    let secret = secret(1);
    let (mut connector, first) = begins(side(&secret, 1));
    let (mut listener, challenge) = challenges(side(&secret, 2), &first).unwrap();
    let mut connector = believes(&mut connector, &challenge).unwrap();
    let mut said = connector.hello(&purpose(limits()));
    let kind = 8 + 32 + 4;
    said[kind] = Kind::Answer as u8;
    let fault = listener.handle(&said).unwrap_err().to_string();
    assert_eq!(fault, "it sent a ANSWER frame instead of HELLO");
}

#[test]
fn a_rejection_is_heard_whenever_it_comes() {
    let secret = secret(1);
    let (mut connector, first) = begins(side(&secret, 1));
    let bytes = ServerHandshake::reject(&reject());
    match connector.handle(&bytes).unwrap() {
        (_, Some(Proven::Reject(heard))) => assert_eq!(heard, reject()),
        other => panic!("{other:?}"),
    }
    let (mut connector, again) = begins(side(&secret, 1));
    assert_eq!(first, again);
    let (_, challenge) = challenges(side(&secret, 2), &first).unwrap();
    let mut connector = believes(&mut connector, &challenge).unwrap();
    connector.hello(&purpose(limits()));
    let bytes = ExpectProof::reject(&reject());
    let heard = each(&bytes, |input| connector.handle(input)).unwrap();
    assert_eq!(heard, Reply::Reject(reject()));
}

#[test]
fn a_connection_that_joins_a_pipe_with_a_key_believes_its_listener_alone() {
    let hear = |wanted: [u8; 32], said: Option<[u8; 32]>| {
        let bytes = ServerHandshake::joined(said.as_ref());
        let mut handshake = ClientHandshake::joining(Some(wanted));
        each(&bytes, |input| handshake.handle(input))
    };
    assert_eq!(hear([1; 32], Some([1; 32])), Ok(Reply::Joined));
    let mut nearly = [1; 32];
    nearly[31] = 2;
    for said in [None, Some(nearly)] {
        is_unproven(hear([1; 32], said));
    }
    // A pipe without a key asks for no proof.
    let bytes = ServerHandshake::joined(Some(&[1; 32]));
    let (_, reply) = ClientHandshake::joining(None).handle(&bytes).unwrap();
    assert_eq!(reply, Some(Reply::Joined));
}

proptest::proptest! {
    /// A change on the way is noticed by the end that gets it, or then by the other one. Exception: bits in the headers of CHALLENGE and
    /// PROOF that mean nothing.
    #[test]
    fn nothing_changed_is_believed(message in 0usize..4, at in 0usize..400, by in 1u8..) {
        let secret = secret(1);
        let changed = std::cell::Cell::new(false);
        let way = |number, mut said: Vec<u8>| {
            let says_nothing = match number {
                0 => 0..0,
                1 => 12 + 5..12 + 8,
                _ => 5..8,
            };
            let at = at % said.len();
            if number == message && !says_nothing.contains(&at) {
                said[at] ^= by;
                changed.set(true);
            }
            said
        };
        let heard = shake(side(&secret, 1), side(&secret, 2), way).map(|_| ());
        assert_eq!(heard.is_err(), changed.get(), "{message}, {at}");
    }
}
