//! A part whose lane has others carry pieces of it: each goes into memory of its own, in whatever order they come.

use std::num::NonZeroU16;
use std::time::Instant;

use super::hostile::{control, data, data_of, scene};
use crate::error::{PeerFault, ResetCode};
use crate::proto::sim::Pair;
use crate::proto::wire::frame::Control;
use crate::proto::{Event, Input, OpId};

const OP: OpId = OpId::incoming(1, 0);

fn piece(number: u16) -> OpId {
    OP.piece(NonZeroU16::new(number).unwrap())
}

/// `b` waits for pieces 1, 2 and 3 of its part of 5000 bytes.
fn waiting() -> Pair {
    let mut pair = scene();
    for (number, len) in [(1, 800), (2, 900), (3, 1000)] {
        let room = vec![0; len];
        assert!(pair.b.pipe.expect(piece(number), room, len as u64));
    }
    pair
}

/// What comes to be there of `bytes`.
fn feed(pair: &mut Pair, mut bytes: &[u8]) -> Result<Vec<(OpId, Vec<u8>)>, PeerFault> {
    let pipe = &mut pair.b.pipe;
    while !bytes.is_empty() {
        let (used, input) = pipe.handle(bytes, Instant::now())?;
        bytes = &bytes[used..];
        let Input::Bulk(len) = input else { continue };
        let len = len as usize;
        let dest = pipe.bulk_target().and_then(|op| pipe.take_dest(op));
        let dest = dest.map(|(mut dest, at)| {
            let at = at as usize;
            dest[at..at + len].copy_from_slice(&bytes[..len]);
            dest
        });
        pipe.bulk_received(len as u64, dest);
        bytes = &bytes[len..];
    }
    let events = std::iter::from_fn(|| pipe.poll_event());
    let there = events.filter_map(|event| match event {
        Event::StreamReceived { op, dest } => dest.map(|dest| (op, dest)),
        _ => None,
    });
    Ok(there.collect())
}

#[test]
fn pieces_come_in_any_order_and_between_each_other() {
    let mut pair = waiting();
    let frames = [
        data_of(piece(3), 600),
        data_of(piece(1), 800),
        data_of(piece(3), 400),
        data_of(piece(2), 900),
    ];
    let there = feed(&mut pair, &frames.concat()).unwrap();
    let whole = |number, len| (piece(number), vec![7; len]);
    assert_eq!(there, [whole(1, 800), whole(3, 1000), whole(2, 900)]);
    assert_eq!(pair.b.pipe.bytes_to_come(1), 5000 - 2700);
}

#[test]
fn a_piece_that_nobody_waits_for_is_a_fault() {
    let unknown = PeerFault::UnknownMessage {
        frame: "DATA",
        message: 1,
    };
    let fault = |frames: &[Vec<u8>]| feed(&mut waiting(), &frames.concat()).unwrap_err();
    assert_eq!(fault(&[data_of(piece(4), 10)]), unknown);
    let again = [data_of(piece(1), 800), data_of(piece(1), 10)];
    assert_eq!(fault(&again), unknown);
}

#[test]
fn a_piece_is_no_longer_than_was_said_nor_all_of_them_than_the_part() {
    let too_long = |found, limit| PeerFault::LimitExceeded {
        what: "a part",
        found,
        limit,
    };
    let fault = |frames: &[Vec<u8>]| feed(&mut waiting(), &frames.concat()).unwrap_err();
    let longer = [data_of(piece(1), 700), data_of(piece(1), 101)];
    assert_eq!(fault(&longer), too_long(801, 800));
    // The part itself is waited for, too.
    let rest: Vec<_> = (0..4).map(|_| data(1, 0, 1000)).collect();
    let more = [rest, vec![data_of(piece(3), 1000), data_of(piece(2), 1)]].concat();
    assert_eq!(fault(&more), too_long(1, 900));
}

#[test]
fn pieces_of_what_is_refused_are_thrown_away() {
    let mut pair = waiting();
    pair.b.pipe.refuse(1, ResetCode::Refused, "enough");
    let frames = [data_of(piece(2), 900), data_of(piece(9), 10)];
    assert_eq!(feed(&mut pair, &frames.concat()).unwrap(), []);
    assert_eq!(pair.b.pipe.dropped, 910);
}

#[test]
fn what_is_said_about_a_piece_is_told_with_its_number() {
    let mut pair = waiting();
    let said = Control::Channel {
        op: piece(2).key(),
        yours: false,
        body: vec![5].into(),
    };
    let frames = control(&[said]);
    pair.b.pipe.handle(&frames, Instant::now()).unwrap();
    let told = std::iter::from_fn(|| pair.b.pipe.poll_event());
    let told = told.filter_map(|event| match event {
        Event::Channel { op, body, .. } => Some((op, body.to_vec())),
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), [(piece(2), vec![5])]);
}
