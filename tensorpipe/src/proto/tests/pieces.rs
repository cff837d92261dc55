//! A part whose lane has others carry pieces of it: each goes into memory of its own, in whatever order they come.

use std::num::NonZeroU16;

use super::hostile::scene;
use crate::error::ResetCode;
use crate::proto::OpId;
use crate::proto::sim::Pair;
use crate::proto::sim::frames::{chunk, control, data};
use crate::proto::wire::frame::Control;

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
    assert_eq!(pair.b.pipe.bytes_to_come(1), 5000 - 2700);
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
