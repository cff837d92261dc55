//! A message with one part that its channel sends at once, about which the channel's word is here, too: the reader's channel may
//! have the part for that word, and the message is here whole.

use std::time::Instant;

use crate::descriptor::Descriptor;
use crate::error::PeerFault;
use crate::proto::sim::{Pair, limits, message};
use crate::proto::wire::descriptor::{Carriage, Head};
use crate::proto::wire::frame::{Control, Kind};
use crate::proto::{Arriving, AtOnce, Event, Input, KeepAlive, Offer, OpId, PipeState, Room};

type State = PipeState<Vec<u8>, Vec<u8>>;

/// Channel 1 sends at once.
fn state() -> State {
    let mut state = State::new(limits(), limits(), 2, KeepAlive::new(None, Instant::now()));
    state.set_at_once(AtOnce::new([false, true]));
    state
}

fn bulk(channel: u8) -> Carriage {
    let ahead = channel == 1;
    Carriage::Bulk { channel, ahead }
}

/// The head of a message of payloads of these lengths, and the bytes of those that ride.
fn frame(parts: &[(u64, Carriage)]) -> Vec<u8> {
    let payload = |(len, _): &(u64, Carriage)| crate::descriptor::PayloadDescriptor {
        len: *len,
        metadata: Default::default(),
    };
    let head = Head::with(
        Descriptor {
            payloads: parts.iter().map(payload).collect(),
            ..Descriptor::default()
        },
        parts.iter().map(|(_, carriage)| *carriage).collect(),
    );
    let mut frame = Vec::new();
    head.put(&mut frame);
    frame.resize(frame.len() + head.eager_len() as usize, b'e');
    frame
}

/// One part of 3 bytes that rides, one of 5 on channel 1, and the word about it.
fn offer() -> Vec<u8> {
    let mut frames = frame(&[(3, Carriage::Eager), (5, bulk(1))]);
    word(0, 1, false).put(&mut frames);
    frames
}

fn word(message: u64, part: u16, yours: bool) -> Control {
    let body = b"there"[..].into();
    Control::Channel {
        op: OpId::incoming(message, part).key(),
        yours,
        body,
    }
}

fn offered(state: &mut State, frames: &[u8]) -> Option<(usize, Arriving, Offer)> {
    match state.handle(frames, Instant::now()) {
        Ok((used, Input::Message(arriving))) => {
            let offer = state.offered(&arriving, &frames[used..])?;
            Some((used, arriving, offer))
        }
        _ => None,
    }
}

#[test]
fn what_its_channel_has_is_here_whole() {
    let mut reader = state();
    let frames = offer();
    let more = [&frames[..], b"next frame"].concat();
    let (used, arriving, offer) = offered(&mut reader, &more).unwrap();
    assert_eq!(&frames[used..][offer.word.clone()], b"there");
    assert_eq!(arriving.here, Some(3));
    let told = (used + offer.word.end, offer.part, offer.channel);
    assert_eq!(told, (frames.len(), 1, 1));
    // Its word was used up: there is no other.
    let mut again = Vec::new();
    word(arriving.message, 1, false).put(&mut again);
    assert!(reader.handle(&again, Instant::now()).is_err());
    reader.take_whole(arriving.message);
    assert_eq!(reader.receive_window.outstanding(), Default::default());
}

#[test]
fn what_it_does_not_have_comes_as_any_other_does() {
    let mut reader = state();
    let frames = offer();
    let (used, arriving, _) = offered(&mut reader, &frames).unwrap();
    let message = arriving.message;
    reader.expect_parts(message, &arriving.head);
    reader.has_eager(message);
    let rest = &frames[used + 3..];
    let (used, _) = reader.handle(rest, Instant::now()).unwrap();
    assert_eq!(used, rest.len());
    let Some(Event::Channel {
        op,
        channel: 1,
        body,
    }) = reader.poll_event()
    else {
        panic!("its word is lost");
    };
    assert_eq!((op, &body[..]), (OpId::incoming(message, 1), &b"there"[..]));
}

#[test]
fn what_is_not_all_here_or_not_as_usual_is_not_offered() {
    let frames = offer();
    for cut in 0..frames.len() {
        assert!(offered(&mut state(), &frames[..cut]).is_none(), "{cut}");
    }
    let at = frames.len() - 23;
    let others = [
        word(1, 1, false),
        word(0, 0, false),
        word(0, 1, true),
        Control::Fin,
    ];
    for other in others {
        let mut frames = frames[..at].to_vec();
        other.put(&mut frames);
        assert!(offered(&mut state(), &frames).is_none(), "{other:?}");
    }
    // Two parts that channels send; a channel that waits for a go-ahead.
    for parts in [[(5, bulk(1)), (6, bulk(1))], [(5, bulk(1)), (65, bulk(0))]] {
        let mut frames = frame(&parts);
        word(0, 0, false).put(&mut frames);
        assert!(offered(&mut state(), &frames).is_none(), "{parts:?}");
    }
    let mut going = state();
    going.go_away("enough");
    assert!(offered(&mut going, &frames).is_none());
}

#[test]
fn more_than_its_credit_is_a_fault_there_too() {
    let mut reader = state();
    let frames = offer();
    let at = frames.len() - 15;
    let mut of = |message: u64| {
        let mut frames = frames.clone();
        frames[at..at + 8].copy_from_slice(&message.to_le_bytes());
        reader.handle(&frames, Instant::now()).map(|_| ())
    };
    for message in 0..8 {
        of(message).unwrap();
    }
    let fault = of(8);
    assert!(
        matches!(fault, Err(PeerFault::CreditExceeded { .. })),
        "{fault:?}"
    );
}

#[test]
fn an_answer_that_nobody_waits_for_leaves_when_there_is_time() {
    let mut state = state();
    state.channel_late(OpId::incoming(0, 0), vec![1]);
    let (mut out, mut segments) = (Vec::new(), Vec::new());
    assert!(!state.poll_transmit(&mut out, &mut segments));
    let room = Room {
        out: &mut out,
        segments: &mut segments,
    };
    let first = state.write(b"first", &mut Default::default(), Some(room));
    assert!(first.unwrap().sent, "it is in nobody's way");
    out.clear();
    state.send_late();
    assert!(state.poll_transmit(&mut out, &mut segments));
    assert_eq!(out[4], Kind::Channel as u8);
}

#[test]
fn two_ends_agree() {
    let mut pair = Pair::with(limits(), limits(), None);
    for end in [&mut pair.a, &mut pair.b] {
        end.pipe.set_at_once(AtOnce::new([false, true]));
    }
    let sent = message("at once").tensor(20).tensor_on(1, 100).tensor(7);
    for _ in 0..50 {
        pair.a.write(&sent);
        pair.run();
    }
    assert!(pair.b.adopted.len() > 10, "{:?}", pair.b.adopted);
    assert_eq!(pair.b.delivered.len(), 50);
    let mut delivered = pair.b.delivered.iter();
    assert!(delivered.all(|delivered| delivered.parts == sent.parts()));
    pair.assert_clean();
}
