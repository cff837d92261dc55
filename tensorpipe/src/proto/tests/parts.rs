//! Empty, eager and bulk parts, payloads and tensors, on two channels, in one message.

use std::num::NonZeroU16;

use super::hostile::scene;
use crate::error::ResetCode;
use crate::proto::OpId;
use crate::proto::sim::frames::{chunk, control, data};
use crate::proto::sim::{Pair, message};
use crate::proto::wire::frame::Control;

#[test]
fn every_kind_of_part_arrives_as_it_was() {
    let all = message("all")
        .payload(0)
        .payload(64)
        .payload(65)
        .tensor(0)
        .tensor(1)
        .tensor(1 << 20)
        .tensor_on(1, 3000)
        .tensor(64);
    let mut pair = Pair::new();
    pair.a.write(&all);
    pair.b.write(&all);
    pair.settle();
    for end in [&pair.a, &pair.b] {
        assert_eq!(end.contents(), [all.parts()]);
        assert_eq!(end.parts_started(), [2, 5, 6]);
    }
}

#[test]
fn a_message_that_the_peer_would_not_take_is_not_sent() {
    let mut pair = Pair::new();
    let peer = *pair.a.pipe.peer_limits();
    let mut is_refused = |metadata: &str, mut parts, what: &str| {
        let refused = pair.a.pipe.write(metadata.as_bytes(), &mut parts, None);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(what), "{refused}");
    };
    let many = |count, len| {
        let many = (0..count).fold(message(""), |message, _| message.payload(len));
        many.outgoing(&peer)
    };
    is_refused(&"m".repeat(4100), many(0, 0), "4100 bytes of metadata");
    is_refused("", many(17, 1), "17 payloads and tensors");
    is_refused("", many(1, (1 << 20) + 1), "1048577 bytes of a payload");
    // Each of these is small enough for the frame, but not all of them together.
    let mut parts = many(5, 64);
    parts[4].channel = None;
    is_refused("", parts, "320 bytes of eager parts");
    let mut parts = many(5, 64);
    for part in &mut parts {
        part.metadata = vec![0; 1000].into();
    }
    is_refused("", parts, "5000 bytes of metadata");
    pair.settle();
    assert!(pair.a.frames.is_empty());
}

/// An empty part goes in the frame, whatever channel it was meant for: the reader has nothing to wait for.
#[test]
fn what_is_empty_rides() {
    let mut pair = Pair::new();
    let mut parts = message("").payload(0).outgoing(pair.a.pipe.peer_limits());
    parts[0].channel = Some(0);
    pair.a.pipe.write(b"", &mut parts, None).unwrap();
    pair.settle();
    assert_eq!(pair.b.contents(), [[Some(Vec::new())]]);
}

// A part whose lane has others carry pieces of it: each goes into memory of its own, in whatever order they come.

fn piece(number: u16) -> OpId {
    OpId::incoming(1, 0).piece(NonZeroU16::new(number).unwrap())
}

/// `b` waits for pieces 1, 2 and 3 of its part of 5000 bytes, and hears this.
fn told(bytes: &[Vec<u8>]) -> Pair {
    let mut pair = scene();
    for (number, len) in [(1, 800), (2, 900), (3, 1000)] {
        assert!(pair.b.pipe.expect(piece(number), Vec::new(), len));
    }
    pair.tell(&bytes.concat());
    pair
}

#[test]
fn pieces_come_in_any_order_and_between_each_other() {
    let pair = told(&[
        data(piece(3), 600),
        data(piece(1), 800),
        data(piece(3), 400),
        data(piece(2), 900),
    ]);
    let whole = |number, len| (piece(number), vec![7; len]);
    assert_eq!(
        pair.b.pieces,
        [whole(1, 800), whole(3, 1000), whole(2, 900)]
    );
}

#[test]
fn a_piece_that_nobody_waits_for_is_a_fault() {
    let unknown = "a DATA frame names message 1, which is not under way";
    assert_eq!(told(&[data(piece(4), 10)]).b.complaint(), unknown);
    let again = [data(piece(1), 800), data(piece(1), 10)];
    assert_eq!(told(&again).b.complaint(), unknown);
}

#[test]
fn a_piece_is_no_longer_than_was_said_nor_all_of_them_than_the_part() {
    let longer = told(&[data(piece(1), 700), data(piece(1), 101)]);
    let limit = "a part of 801 exceeds this side's limit of 800";
    assert_eq!(longer.b.complaint(), limit);
    // The part itself is waited for, too.
    let rest = chunk(1, 0, 1000).repeat(4);
    let more = told(&[rest, data(piece(3), 1000), data(piece(2), 1)]);
    let limit = "a part of 1 exceeds this side's limit of 900";
    assert_eq!(more.b.complaint(), limit);
}

#[test]
fn pieces_of_what_is_refused_are_thrown_away() {
    let mut pair = told(&[]);
    pair.b.refuse(1, ResetCode::Refused);
    pair.tell(&[data(piece(2), 900), data(piece(9), 10)].concat());
    assert_eq!((&pair.b.fault, &pair.b.pieces[..]), (&None, &[][..]));
    assert_eq!(pair.b.pipe.dropped, 910);
}

#[test]
fn what_is_said_about_a_piece_is_told_with_its_number() {
    let mut pair = told(&[]);
    pair.b.lanes_wait = true;
    let of_writer = OpId {
        outgoing: true,
        ..piece(2)
    };
    pair.tell(&control([Control::channel(of_writer, &[5])]));
    assert_eq!(pair.b.pieces, [(piece(2), vec![5])]);
}
