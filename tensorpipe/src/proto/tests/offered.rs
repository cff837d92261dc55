//! A message with one part that its channel sends at once, about which the channel's word is here, too: the reader's channel may
//! have the part for that word, and the message is here whole.

use std::time::Instant;

use crate::error::PeerFault;
use crate::proto::sim::frames::{bulk, control, told, whole};
use crate::proto::sim::{Pair, limits, message};
use crate::proto::wire::descriptor::Carriage;
use crate::proto::wire::frame::{Control, Kind};
use crate::proto::{Arriving, AtOnce, Event, Input, KeepAlive, Offer, OpId, PipeState, Room};

type State = PipeState<Vec<u8>, Vec<u8>>;

/// Channel 1 sends at once.
fn state() -> State {
    let mut state = State::new(limits(), limits(), 2, KeepAlive::new(None, Instant::now()));
    state.set_at_once(AtOnce::new([false, true]));
    state
}

/// One part of 3 bytes that rides, and one of 5 on channel 1.
fn parts() -> Vec<u8> {
    whole(&[(3, Carriage::Eager), (5, bulk(1, true))])
}

fn word() -> Vec<u8> {
    control([told(0, 1, b"there")])
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
    let frames = [parts(), word(), b"next frame".to_vec()].concat();
    let (used, arriving, offer) = offered(&mut reader, &frames).unwrap();
    assert_eq!(&frames[used..][offer.word.clone()], b"there");
    assert_eq!(&frames[used + offer.word.end..], b"next frame");
    assert_eq!((arriving.here, offer.part, offer.channel), (Some(3), 1, 1));
    // Its word was used up: there is no other.
    assert!(reader.handle(&word(), Instant::now()).is_err());
    reader.take_whole(arriving.message);
    assert_eq!(reader.receive_window.outstanding(), Default::default());
}

#[test]
fn what_it_does_not_have_comes_as_any_other_does() {
    let mut reader = state();
    let frames = [parts(), word()].concat();
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
    let frames = [parts(), word()].concat();
    for cut in 0..frames.len() {
        assert!(offered(&mut state(), &frames[..cut]).is_none(), "{cut}");
    }
    let of_reader = Control::channel(OpId::incoming(0, 1), vec![1]);
    for other in [told(1, 1, b""), told(0, 0, b""), of_reader, Control::Fin] {
        let frames = [parts(), control([other])].concat();
        assert!(offered(&mut state(), &frames).is_none(), "{frames:?}");
    }
    // Two parts that channels send; a channel that waits for a go-ahead.
    let at_once = bulk(1, true);
    for parts in [
        [(5, at_once), (6, at_once)],
        [(5, at_once), (65, bulk(0, false))],
    ] {
        let frames = [whole(&parts), control([told(0, 0, b"")])].concat();
        assert!(offered(&mut state(), &frames).is_none(), "{parts:?}");
    }
    let mut going = state();
    going.go_away("enough");
    assert!(offered(&mut going, &frames).is_none());
}

#[test]
fn more_than_its_credit_is_a_fault_there_too() {
    let mut reader = state();
    let mut of = |message| {
        let frames = [parts(), control([told(message, 1, b"there")])].concat();
        reader.handle(&frames, Instant::now()).map(|_| ())
    };
    (0..8).for_each(|message| of(message).unwrap());
    let fault = of(8).unwrap_err();
    assert!(matches!(fault, PeerFault::CreditExceeded { .. }), "{fault}");
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
    let mut pair = Pair::new().at_once();
    let sent = message("at once").tensor(20).tensor_on(1, 100).tensor(7);
    for _ in 0..50 {
        pair.send(&sent);
    }
    pair.settle();
    assert!(pair.b.adopted.len() > 10, "{:?}", pair.b.adopted);
    assert_eq!(pair.b.contents(), vec![sent.parts(); 50]);
}
